"""Laws of the table of messages: what it says is what both sides hold each other to."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_to_proto
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsw.experiment.trust import trust_models
from fedsw.federation import messages, wire
from fedsw.federation.messages import Malformed, Message, Terms, trusts_of
from fedsw.federation.messages.codec import ArrayField, Limits, NumberField, Seen, fields_of
from fedsw.federation.messages.table import Contribution, Outputs, OutputsAsked
from fedsw.learning.models import flatten
from fedsw.learning.tasks.problem import Problem
from tests.federation.messages.inspector import exchanges_of
from tests.federation.node.runs import RUNS, watched_run
from tests.federations import array_record, small
from tests.laws.fuzz.test_messages import arrays, metrics, require_declared, texts

NUMBER = NumberField("x", Seen.PUBLIC, Limits(0), about="a number")


@dataclass(frozen=True)
class Sent:
    """A message of a run, and what its reader knew."""

    kind: type[Message]
    content: RecordDict
    terms: Terms

    def changed(self, record: str, key: str, value: Any) -> RecordDict:
        """A copy in which a key has another value, or none at all."""
        copy = RecordDict({name: type(held)(dict(held)) for name, held in self.content.items()})
        del copy[record][key]
        if value is not None:
            copy[record][key] = value
        return copy


@pytest.fixture(scope="module", params=RUNS)
def traffic(request, tmp_path_factory) -> list[Sent]:
    """One message of every kind and direction of a run."""
    run = watched_run(request.param, tmp_path_factory.mktemp("traffic"))
    first, known = run.kept.first, exchanges_of(run.experiment).values()
    assert set(first) == {kind for exchange in known for kind in (exchange.down, exchange.up)}
    terms = Terms.of(run.inspector.task)  # with the bins that released histograms led to
    return [Sent(kind, content, terms) for kind, content in first.items()]


def _field(sent: Sent, record: str, key: str):
    return next(f for f in fields_of(sent.kind).values() if f.record == record and key in f.keys(sent.terms))


def test_a_message_decodes_and_encodes_again_to_the_same_fields(traffic):
    for sent in traffic:
        read = messages.decode(sent.kind, sent.content, sent.terms)
        rows = read.outputs if sent.kind is Outputs else getattr(read, "cotangents", torch.zeros(0))
        again = messages.encode(read, sent.terms.knowing(P=len(rows)))
        assert {name: set(record) for name, record in again.items()} == {
            name: set(record) for name, record in sent.content.items()
        }
        for name, record in again.items():
            for key, value in record.items():
                was = sent.content[name][key]
                if isinstance(record, ArrayRecord):
                    assert (value.dtype, value.shape, len(value.data)) == (was.dtype, was.shape, len(was.data))
                elif key != wire.NONCE:
                    assert value == was


def test_a_real_message_with_any_value_in_one_place_is_read_as_declared_or_refused(traffic):
    """Of which some are read: what is made up of nothing else is hardly ever a message."""
    whole, read = {sent.kind for sent in traffic}, set()

    @given(data=st.data())
    @settings(max_examples=5 * max(8, len(whole)), derandomize=True, suppress_health_check=list(HealthCheck))
    def check(data: st.DataObject) -> None:
        sent = data.draw(st.sampled_from(traffic))
        record = data.draw(st.sampled_from(sorted(sent.content)))
        key = data.draw(st.sampled_from(sorted(sent.content[record])))
        same = sent.content[record][key]
        values = {ArrayRecord: arrays(), ConfigRecord: texts, MetricRecord: metrics}[type(sent.content[record])]
        changed = sent.changed(record, key, data.draw(st.one_of(st.just(same), values)))
        try:
            found = messages.decode(sent.kind, changed, sent.terms)
        except Malformed as refused:
            assert str(refused) and len(str(refused)) < 400
            return
        require_declared(found, changed, sent.terms)
        read.add(sent.kind)

    check()
    assert read <= whole and len(read) > len(whole) // 2


def test_a_message_without_one_of_its_keys_is_refused_by_name(traffic):
    for sent in traffic:
        for record, held in sent.content.items():
            for key in held:
                if _field(sent, record, key).spare:
                    continue
                with pytest.raises(Malformed, match=f"no (setting|metric|array) '{key}' came"):
                    messages.decode(sent.kind, sent.changed(record, key, None), sent.terms)


def test_a_key_that_no_message_of_the_run_holds_is_refused_by_name(traffic):
    for sent in traffic:
        for record in sent.content:
            extra = sent.changed(record, next(iter(sent.content[record])), None)
            extra[record] = type(extra[record])(dict(sent.content[record]))
            extra[record]["more"] = (
                array_record("x", torch.zeros(1))["x"] if isinstance(extra[record], ArrayRecord) else 1.0
            )
            with pytest.raises(Malformed, match=rf"{record}\['more'\] came"):
                messages.decode(sent.kind, extra, sent.terms)
        extra = RecordDict({**sent.content, "labels": array_record("labels", torch.zeros(1))})
        with pytest.raises(Malformed, match=r"labels\['labels'\] came"):
            messages.decode(sent.kind, extra, sent.terms)


def _wrong(value: Any) -> list[Any]:
    """Values of other types, and of lengths one more."""
    if isinstance(value, str):
        return [1.0, [value]]
    if isinstance(value, list):
        other = [int(each) for each in value] if isinstance(value[0], float) else [float(each) for each in value]
        return [other, [*value, value[0]], 1.0]
    if isinstance(value, int | float):
        return [[value], float(value) if isinstance(value, int) else int(max(value, 0) if value < 1e300 else 0)]
    return []


def test_a_setting_or_metric_of_another_type_or_length_is_refused_and_a_diagnostic_left_out(traffic):
    for sent in traffic:
        for record, held in sent.content.items():
            if not isinstance(held, ConfigRecord | MetricRecord):
                continue
            for key, value in held.items():
                field = _field(sent, record, key)
                for wrong in _wrong(value):
                    content = sent.changed(record, key, wrong)
                    if field.spare:
                        read = messages.decode(sent.kind, content, sent.terms)
                        attribute = next(name for name, each in fields_of(sent.kind).items() if each is field)
                        assert getattr(read, attribute) is None
                        continue
                    with pytest.raises(Malformed) as refusal:
                        messages.decode(sent.kind, content, sent.terms)
                    assert key in str(refusal.value)
                    assert (field.seen in (Seen.SECRET, Seen.COUNTED)) == (repr(wrong)[:100] not in str(refusal.value))


def test_an_array_of_another_shape_or_precision_is_refused_and_filled_rows_are_not_quoted(traffic):
    for sent in traffic:
        for record, held in sent.content.items():
            if not isinstance(held, ArrayRecord):
                continue
            for key, array in held.items():
                other = torch.float64 if array.dtype != "float64" else torch.float32
                longer = (*array.shape[:-1], array.shape[-1] + 1)
                for values in (torch.zeros(array.shape, dtype=other), torch.zeros(longer, dtype=torch.float32)):
                    wrong = array_record(key, values)[key]
                    content, terms = sent.changed(record, key, wrong), sent.terms.knowing(**_lengths(sent))
                    with pytest.raises(Malformed) as refusal:
                        messages.decode(sent.kind, content, terms)
                    field = _field(sent, record, key)
                    assert isinstance(field, ArrayField)
                    if field.filled:
                        assert str(refusal.value) == f"{key}: not of the asked type and shape"


def _lengths(sent: Sent) -> dict[str, int]:
    """Those that the message's own arrays have."""
    known: dict[str, int] = {}
    for field in fields_of(sent.kind).values():
        if isinstance(field, ArrayField) and field.name in sent.content.get(field.record, {}):
            known.update(zip(field.shape.split(), sent.content[field.record][field.name].shape, strict=True))
    return known


def test_what_the_settings_do_not_allow_is_not_encoded():
    terms = Terms.of(Problem.from_experiment(small()))
    vector, nobody = torch.zeros(terms.sizes["r"]), torch.zeros(0, dtype=torch.int64)
    for loss, count in ((0.5, 3.0), (0.5, None), (None, 3.0)):
        with pytest.raises(RuntimeError, match=r"Contribution\.\w+ may not travel: it travels with `unsafe_metrics`"):
            messages.encode(Contribution(vector, nobody, loss, count), terms)
    open_terms = Terms.of(Problem.from_experiment(small("unsafe_metrics=true")))
    with pytest.raises(RuntimeError, match=r"Contribution.training_loss is missing"):
        messages.encode(Contribution(vector, nobody, None, None), open_terms)


def test_every_attribute_of_a_message_needs_a_field_of_the_table():
    class Complete(Message):
        x: Annotated[int, "a number", NUMBER]

    class Undeclared(Complete):
        y: int

    assert dict(fields_of(Complete)) == {"x": NUMBER}
    with pytest.raises(TypeError, match=r"Undeclared\.y has 0 fields in the table"):
        fields_of(Undeclared)


def test_every_trust_model_is_in_the_table_and_a_field_is_optional_exactly_where_it_can_be_missing():
    trusts = trust_models()
    assert {trust for exchange in messages.EXCHANGES for trust in trusts_of(exchange)} == set(trusts)
    for exchange in messages.EXCHANGES:
        for kind in (exchange.down, exchange.up):
            hints = typing.get_type_hints(kind)
            for attribute, field in fields_of(kind).items():
                if attribute != "nonce":
                    optional = type(None) in typing.get_args(hints[attribute])
                    assert optional == (field.when is not None or field.spare), (kind, attribute)


def test_the_size_of_a_request_does_not_follow_its_secret_counts():
    problem = Problem.from_experiment(small())
    terms = Terms.of(problem, P=8)
    model = messages.Broadcast.of(flatten(problem.build_model()), terms)
    sizes = {
        len(recorddict_to_proto(messages.encode(OutputsAsked(model, 1, 0, counts, 8), terms)).SerializeToString())
        for counts in (torch.tensor([each]) for each in ((0, 0), (1, 0), (63, 64), (2**14, 2**21), (2**40, 3)))
    }
    assert len(sizes) == 1
