"""Whatever a message holds, its reader gets the message that the table describes, or one kind of error."""

from __future__ import annotations

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.federation import messages, wire
from fedsw.federation.messages import EXCHANGES, Malformed, Terms, trusts_of
from fedsw.federation.messages.codec import declared, fields_of
from fedsw.learning.tasks.problem import Problem
from tests.federation.sketch_runs import sketched
from tests.federations import small

EXPERIMENTS = {
    "central": small("privacy.noise_multiplier=2", "unsafe_metrics=true", "seed=3"),
    "distributed": small("privacy.trust=distributed", "privacy.noise_multiplier=2"),
    "local-gradient": small("privacy.trust=local-gradient", "privacy.noise_multiplier=2"),
    "sketch": sketched(),
    "sketch-local": sketched("privacy.trust=sketch-local"),
}
TERMS = {trust: Terms.of(Problem.from_experiment(each), P=3) for trust, each in EXPERIMENTS.items()}
KINDS = [
    (kind, TERMS[trust])
    for exchange in EXCHANGES
    for trust in trusts_of(exchange)
    if trust in TERMS
    for kind in (exchange.down, exchange.up)
]

numbers = st.one_of(
    st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1), st.floats(), st.sampled_from([2**28, 2**40, 2**40 + 1, 1e30])
)
lists = st.one_of(st.lists(st.integers(0, 5), max_size=3), st.lists(st.floats(), max_size=3))
metrics = st.one_of(numbers, lists)
texts = st.one_of(metrics, st.text(max_size=5), st.booleans(), st.binary(max_size=3))


@st.composite
def arrays(draw) -> Array:
    """Arrays of any type, shape and bytes; some are whole."""
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    dtype = draw(st.sampled_from(["float32", "float64", "int64", "object", "uint8"]))
    if draw(st.booleans()) and dtype in ("float32", "float64", "int64"):
        return Array(*wire.encode(torch.zeros(shape, dtype=getattr(torch, dtype))))
    stype = draw(st.sampled_from([wire.ARRAY_FORMAT, "numpy.ndarray"]))
    return Array(dtype, shape, stype, draw(st.binary(max_size=60)))


@st.composite
def contents(draw, kind: type[messages.Message], terms: Terms) -> RecordDict:
    """Records with the declared keys, some left out and some more, and any values."""
    content = RecordDict()
    for name, keys in {**declared(kind, terms), "labels": frozenset({"x"})}.items():
        if draw(st.integers(0, 5)) == 0 or (name == "labels" and draw(st.integers(0, 5))):
            continue
        held = draw(st.sampled_from([*[_of(name)] * 6, ArrayRecord, ConfigRecord, MetricRecord]))
        values = {ArrayRecord: arrays(), ConfigRecord: texts, MetricRecord: metrics}[held]
        chosen = [key for key in [*sorted(keys), "more"] if draw(st.integers(0, 5)) != (0 if key in keys else 1)]
        record = held()
        for key in chosen:
            record[key] = draw(values)
        content[name] = record
    return content


def _of(name: str) -> type:
    return {"config": ConfigRecord, "metrics": MetricRecord}.get(name, ArrayRecord)


@pytest.mark.parametrize(("kind", "terms"), KINDS, ids=lambda each: getattr(each, "__name__", ""))
def test_whatever_comes_is_a_message_of_the_table_or_malformed(kind, terms):
    @given(content=contents(kind, terms))
    @settings(max_examples=30, deadline=None, derandomize=True)
    def read(content: RecordDict) -> None:
        try:
            found = messages.decode(kind, content, terms)
        except Malformed as refused:
            assert str(refused) and len(str(refused)) < 400
            return
        require_declared(found, content, terms)

    read()


def require_declared(found: messages.Message, content: RecordDict, terms: Terms) -> None:
    """What was read has the fields that its table declares, and nothing else had come."""
    fields = fields_of(type(found))
    assert {key for record in content.values() for key in record} <= {
        key for field in fields.values() for key in field.keys(terms)
    }
    for attribute, field in fields.items():
        if attribute != "nonce" and not field.spare:
            assert (getattr(found, attribute) is not None) == field.present(terms)
