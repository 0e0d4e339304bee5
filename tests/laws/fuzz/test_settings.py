"""Whatever an experiment file or a setting says, it is an experiment or an ExperimentError."""

from __future__ import annotations

import datetime
import math
import tomllib
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedsw._tools.settings import known_keys, read_setting
from fedsw.experiment import Experiment, ExperimentError, load_experiment, parse_experiment

KEYS = sorted(known_keys(Experiment))
LONGEST_MESSAGE = 20_000
"""Characters of the longest message: faults of every key, each with a short value."""

WORDS = ["inf", "0.1/n", "1/n^99999", "none", "files"]
TOKENS = ["name", "=", '"x"', "[", "]", "data", ".", "\n", "{", "}", ",", "1", "source", "'", "#"]

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.sampled_from([10**400, -(2**70), math.inf, -math.inf, math.nan, 0.5, *WORDS]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([datetime.date(1, 1, 1), datetime.time(0), datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)]),
)
names = st.one_of(st.text(max_size=6), st.sampled_from(["name", "low", "values", "count"]))
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def files(draw) -> dict[str, Any]:
    """Sections and keys that exist, and some that do not, with any values."""
    raw: dict[str, Any] = draw(st.sampled_from([{}, {"name": "fuzz"}, {"name": "fuzz", "data": {"source": "files"}}]))
    raw = {key: dict(value) if isinstance(value, dict) else value for key, value in raw.items()}
    for key in draw(st.lists(st.one_of(st.sampled_from(KEYS), st.text(max_size=6)), max_size=5)):
        node, *rest = raw, *key.split(".")
        for part in rest[:-1]:
            inside = node.setdefault(part, {})
            if not isinstance(inside, dict):
                break
            node = inside
        else:
            node[rest[-1]] = draw(values)
    return raw


overrides = st.one_of(
    st.text(max_size=30),
    st.tuples(st.sampled_from(KEYS), st.one_of(st.text(max_size=12), leaves.map(str))).map("=".join),
)
DEEP = ".".join(["a"] * 5000)


def nested(depth: int) -> dict[str, Any]:
    raw: dict[str, Any] = {}
    for _ in range(depth):
        raw = {"data": raw}
    return raw


@given(raw=files(), settings_=st.lists(overrides, max_size=2))
@example(raw={"name": "x", "training": {"rounds": 16**5000}}, settings_=[])
@example(raw={"name": "x", "clip": {"loss": 16**5000}}, settings_=[])
@example(raw={"name": "x", "seed": 16**5000}, settings_=[])
@example(raw={"name": "x"}, settings_=[f"{DEEP}=1"])
@example(raw={"name": "x"}, settings_=["training.rounds=" + "9" * 5000])
@example(raw={"name": "x"}, settings_=["training.rounds=" + "[" * 5000])
@example(raw={"name": "x", "data": {"source": "files", "columns": {"features": [{"count": 10**400}]}}}, settings_=[])
@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_any_mapping_with_any_overrides_is_an_experiment_or_an_experiment_error(raw, settings_):
    try:
        experiment = parse_experiment(raw, settings_)
    except ExperimentError as refused:
        assert 0 < len(str(refused)) < LONGEST_MESSAGE
    else:
        assert Experiment.model_validate_json(experiment.model_dump_json()) == experiment


@pytest.mark.parametrize("depth", [21, 900, 5000])
def test_sections_without_end_are_an_experiment_error(depth):
    with pytest.raises(ExperimentError, match="nested over 20 deep"):
        parse_experiment({"name": "x", **nested(depth)})


@given(text=st.one_of(st.text(max_size=60), overrides))
@example(text="a=" + "[" * 5000)
@example(text="a=" + "9" * 5000)
@example(text=f"{DEEP}=1")
@example(text="a=1\nb=2")
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_text_is_a_setting_or_an_experiment_error(text):
    try:
        keys, _ = read_setting(text)
    except ExperimentError as refused:
        assert "section.key=value" in str(refused) or "nested" in str(refused)
    else:
        assert keys and all(keys)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "x.toml"


toml = st.one_of(
    st.binary(max_size=80),
    st.lists(st.sampled_from(TOKENS)).map(lambda words: "".join(words).encode()),
)


@given(content=toml)
@example(content=b"a = " + b"[" * 9000)
@example(content=b"a = " + b"9" * 9000)
@example(content=DEEP.encode() + b" = 1")
@example(content=b"[" + DEEP.encode() + b"]")
@settings(max_examples=250, deadline=None, derandomize=True)
def test_any_bytes_are_an_experiment_or_an_experiment_error_that_names_the_file(path, content):
    path.write_bytes(content)
    try:
        load_experiment(path)
    except ExperimentError as refused:
        try:
            tomllib.loads(content.decode())
        except (ValueError, RecursionError):
            assert str(path) in str(refused)
