"""An experiment is validated whole, and refuses with the key, the value and the remedy."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw._tools.settings import TAKEN, known_keys
from fedsw.data import as_records
from fedsw.experiment import (
    DEFAULT_DELTA,
    Experiment,
    ExperimentError,
    load_experiment,
    parse_experiment,
    read_delta,
    resolve_delta,
)
from fedsw.experiment.sections import LEAST_DELTA
from fedsw.experiment.synonyms import SYNONYMS
from fedsw.privacy.accounting.composition import SMALLEST_DELTA

LEAF_SETTINGS = {
    "data.source=adult": ("data", "source", "adult"),
    "data.records=500": ("data", "records", 500),
    "data.correlation=0.5": ("data", "correlation", 0.5),
    "data.data_dir=/some/where": ("data", "data_dir", "/some/where"),
    "partition.scheme=dirichlet": ("partition", "scheme", "dirichlet"),
    "model.hidden=[16, 8]": ("model", "hidden", (16, 8)),
    "objective.alpha = 0.75": ("objective", "alpha", 0.75),
    "clip.loss=2": ("clip", "loss", 2.0),
    "slicing.ties='stable'": ("slicing", "ties", "stable"),
    "training.learning_rate=5e-1": ("training", "learning_rate", 0.5),
    "privacy.epsilon=inf": ("privacy", "epsilon", math.inf),
    "privacy.delta=1/n^2": ("privacy", "delta", "1/n^2"),
    "federation.clients=7": ("federation", "clients", 7),
}


def parse(*overrides: str, **raw: Any) -> Experiment:
    return parse_experiment({"name": "toy", **raw}, overrides)


@pytest.mark.parametrize("override", LEAF_SETTINGS)
def test_a_setting_reaches_its_key_with_its_toml_type(override: str) -> None:
    section, key, value = LEAF_SETTINGS[override]
    assert getattr(getattr(parse(override, model={"kind": "mlp"}), section), key) == value


def test_top_level_settings_are_written_without_a_section() -> None:
    assert parse("seed=3", "unsafe_metrics=true", "name=other").model_dump(
        include={"seed", "unsafe_metrics", "name"}
    ) == {
        "seed": 3,
        "unsafe_metrics": True,
        "name": "other",
    }


def test_overrides_leave_the_mapping_they_are_given_unchanged() -> None:
    raw = {"name": "toy", "training": {"rounds": 5}}
    assert parse_experiment(raw, ["training.rounds=7"]).training.rounds == 7
    assert raw == {"name": "toy", "training": {"rounds": 5}}


@pytest.mark.parametrize(
    ("override", "nearest"),
    [
        ("training.roundz=3", "training.rounds"),
        ("privacy.epsilonn=3", "privacy.epsilon"),
        ("rounds=3", "training.rounds"),
        ("clip.alpha=1", "objective.alpha"),
        ("objectiv.alpha=1", "objective"),
        ("training.lerning_rate=1", "training.learning_rate"),
        ("privacy.zzz=3", "privacy."),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(override: str, nearest: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        parse(override)
    assert "unknown key '" in str(refused.value)
    assert f"nearest known: '{nearest}" in str(refused.value)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("training.lr=0.1", "training.learning_rate"),
        ("lr=0.1", "training.learning_rate"),
        ("privacy.max_grad_norm=1", "clip.loss"),
        ("clip.l2-norm-clip=1", "clip.loss"),
        ("training.epochs=3", "training.rounds"),
        ("training.batchSize=3", "training.batch_size"),
        ("privacy.target_epsilon=3", "privacy.epsilon"),
        ("privacy.target_delta=1e-5", "privacy.delta"),
        ("objective.sensitive_features=sex", "data.columns.sensitive"),
        ("federation.num_clients=3", "federation.clients"),
        ("training.weight_decay=0.1", "training.optimizer_arguments"),
        ("training.random_state=1", "seed"),
    ],
)
def test_names_that_people_bring_are_told_what_they_are_called_here(override: str, meant: str) -> None:
    with pytest.raises(ExperimentError, match=f"it is called '{meant}' here"):
        parse(override)


WORDS = {
    "privacy.epsilon": ({"epsilon": 2}, "epsilon=2", 2.0),
    "privacy.delta": ({"privacy": {"epsilon": 1}, "delta": 1e-5}, "delta=1e-5", 1e-5),
    "privacy.noise_multiplier": ({"noise_multiplier": 1.5}, "noise_multiplier=1.5", 1.5),
    "clip.loss": ({"clip": {"max_grad_norm": 2}}, "max_grad_norm=2", 2.0),
    "data.columns.sensitive": ({}, "", None),
    "seed": ({"random_state": 3}, "random_state=3", 3),
    "federation.clients": ({"federation": {"n_clients": 3}}, "federation.n_clients=3", 3),
}
"""Each setting that a word of the field is taken for: sections and an override that say it so, and its value."""


@pytest.mark.parametrize("setting", WORDS)
def test_the_field_s_words_are_taken_for_settings_that_mean_the_same(setting: str) -> None:
    raw, override, value = WORDS[setting]
    section, _, name = setting.rpartition(".")
    said = parse_experiment({"name": "toy", **raw}) if setting != "data.columns.sensitive" else None
    for experiment in () if said is None else (said, parse(override)):
        assert getattr(getattr(experiment, section) if section else experiment, name) == value


def test_every_word_that_is_taken_is_tried_and_is_one_of_a_setting() -> None:
    known = set(known_keys(Experiment))
    assert {".".join(keys) for keys in TAKEN.values()} == set(WORDS) <= known


@pytest.mark.parametrize("place", ["", "data", "data.columns"])
def test_sensitive_features_are_the_column_of_the_groups(place: str, tmp_path: Path) -> None:
    columns: dict[str, Any] = {"features": [{"name": "age"}], "target": {"name": "ill", "values": [0, 1]}}
    raw: dict[str, Any] = {"name": "toy", "data": {"source": "object", "columns": columns}}
    sections = {"": raw, "data": raw["data"], "data.columns": columns}
    sections[place]["sensitive_features"] = {"name": "sex", "values": ["f", "m"]}
    parsed = parse_experiment(raw)
    assert parsed.data.columns is not None and parsed.data.columns.groups == ("f", "m")


def test_a_setting_in_both_words_is_refused() -> None:
    with pytest.raises(ExperimentError, match="epsilon and privacy.epsilon are one setting"):
        parse(epsilon=1, privacy={"epsilon": 2})
    with pytest.raises(ExperimentError, match="federation.n_clients and federation.clients are one setting"):
        parse(federation={"n_clients": 2, "clients": 3})
    table = {"x": [0.0, 1.0], "sex": ["f", "m"]}
    assert as_records(table, sensitive_features="sex").columns == as_records(table, group="sex").columns
    with pytest.raises(TypeError, match="sensitive_features and group are one argument"):
        as_records(table, sensitive_features="sex", group="sex")


def test_an_override_in_the_field_s_words_wins_as_ours_does() -> None:
    assert parse("epsilon=2", privacy={"noise_multiplier": 1}).privacy.noise_multiplier is None
    assert parse("max_grad_norm=2", clip={"loss": 1}).clip.loss == 2.0


def test_names_that_people_bring_are_no_settings_and_mean_some() -> None:
    known = set(known_keys(Experiment))
    assert {key for key, _ in SYNONYMS.values()} <= known
    assert SYNONYMS.keys() & {key.rpartition(".")[2] for key in known} == set()
    assert all(name == name.lower().replace("-", "_") for name in SYNONYMS)
    for override, meant in (
        ("training.noise_multiplier=1", "privacy.noise_multiplier"),
        ("rounds=3", "training.rounds"),
    ):
        with pytest.raises(ExperimentError, match=f"nearest known: '{meant}'"):  # a setting's own name elsewhere
            parse(override)


def test_a_text_is_one_override(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('name = "own"\n')
    for place in ("fair-classification", tmp_path / "own.toml"):
        assert load_experiment(place, "training.rounds=7") == load_experiment(place, ["training.rounds=7"])
    assert parse_experiment({"name": "own"}, "training.rounds=7").training.rounds == 7


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("privacy.epsilon=0", ["privacy.epsilon", "0", "above 0"]),
        ("privacy.epsilon=-1", ["privacy.epsilon", "-1", "above 0"]),
        ("privacy.epsilon=nan", ["privacy.epsilon", "nan", "above 0"]),
        ("privacy.delta=1", ["privacy.delta", "strictly between 0 and 1"]),
        ("privacy.delta=soon", ["privacy.delta", "soon", "0.1/n"]),
        ("privacy.delta=[1]", ["privacy.delta: delta cannot be read", "[1]", "0.1/n"]),
        ("privacy.relation=add-remove", ["add-remove", "replace-one"]),
        ("objective.alpha=1.5", ["objective.alpha", "1.5", "less than or equal to 1"]),
        ("training.rounds=0", ["training.rounds", "greater than 0"]),
        ("training.rounds=true", ["training.rounds", "True", "integer"]),
        ("training.rounds=2.5", ["training.rounds", "2.5", "integer"]),
        ("clip.loss=inf", ["clip.loss", "finite"]),
        ("clip.output='1'", ["clip.output", "'1'"]),
        ("model.kind=forest", ["model.kind", "forest", "'logistic'", "'generator'"]),
        ("model={kind='mlp', hidden=[8, 0]}", ["model.hidden.1", "greater than 0"]),
        ("model=mlp", ["model", "'mlp'", "section", "model.key=value"]),
        ("model.kind.deep=1", ["model.kind"]),
        ("seed=-1", ["seed", "-1"]),
        ("name=../escape", ["name", "folder"]),
        ("federation.min_clients=9", ["min_clients is 9", "clients = 4"]),
        ("objective.task=representation", ["encoder-decoder", "representation"]),
        ("unsafe_metrics=maybe", ["unsafe_metrics", "maybe"]),
        ("training.device=mps", ["training.device", "'mps'", "no float64", "'cpu' or 'cuda'"]),
        ("training.device=tpu", ["training.device", "'cpu'", "'cuda'"]),
        ("privacy.device=tpu", ["privacy.device", "'cpu'", "'cuda'"]),
        ("no equals sign", ["no equals sign", "section.key=value"]),
        ("training.=3", ["training.=3", "section.key=value"]),
    ],
)
def test_a_bad_value_is_refused_by_name_with_its_limit(override: str, words: list[str]) -> None:
    with pytest.raises(ExperimentError) as refused:
        parse(override)
    for word in words:
        assert word in str(refused.value)
    assert "https://" not in str(refused.value)


ADAPTATION = ("objective.task=adaptation", "objective.penalty=distribution-matching", "model.kind=adaptor",
              "data.source=usps", "data.public=mnist")  # fmt: skip
AUTOENCODER = ("objective.task=autoencoder", "objective.penalty=prior-matching", "model.kind=encoder-decoder",
               "data.source=digits")  # fmt: skip
GENERATION = ("objective.task=generation", "objective.penalty=distribution-matching", "objective.alpha=1",
              "model.kind=generator", "data.source=ring")  # fmt: skip
GRADIENT = ("privacy.trust=local-gradient",)
RELEASE = (*GENERATION, "privacy.trust=local-release")


@pytest.mark.parametrize(
    ("base", "setting", "words"),
    [
        (ADAPTATION, "objective.alpha=0", "nothing to noise.*above 0, or use privacy.trust 'none'"),
        (AUTOENCODER, "clip.centre=0.5", "clip.centre is 0.5; .* prior about 0"),
        (AUTOENCODER, "data.row_norm=1.5", r"data.row_norm is 1.5; .* numbers in \[0, 1\]"),
        (GRADIENT, "privacy.epsilon=inf", "use trust 'none'"),
        (GRADIENT, "training.batch_size=10", "use training.batch_fraction"),
        (RELEASE, "training.batch_size=10", "use training.batch_fraction"),
        (RELEASE, "privacy.epsilon=inf", "finite privacy.epsilon"),
        (RELEASE, "privacy.noise_multiplier=2", "finite privacy.epsilon"),
        (RELEASE, 'privacy={trust="local-release", epsilon=inf, noise_multiplier=2.0}', "finite privacy.epsilon"),
        (("privacy.sampling=stratified",), "training.batch_size=10", "use training.batch_fraction with"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_at_load(base: tuple[str, ...], setting: str, words: str) -> None:
    parse(*base)
    with pytest.raises(ExperimentError, match=words):
        parse(*base, setting)


def test_adaptation_without_matching_is_the_baseline_of_trust_none() -> None:
    assert parse(*ADAPTATION, "objective.alpha=0", "privacy.trust=none").objective.alpha == 0


@pytest.mark.parametrize(
    ("base", "setting", "words"),
    [
        (GENERATION, "unsafe_metrics=true", "'generation' has none"),
        (GRADIENT, "unsafe_metrics=true", "'local-gradient' clients send none"),
        ((*GENERATION, "privacy.trust=local-slices"), "unsafe_metrics=true", "'local-slices' clients send none"),
        (RELEASE, "unsafe_metrics=true", "'local-release' clients send none"),
        ((), "model.hidden=[64]", "model.hidden is .64., which model.kind 'logistic' does not read"),
        ((), "model.activation=relu", "model.activation is 'relu', which model.kind 'logistic'"),
        (
            (*AUTOENCODER, "model.kind=image-autoencoder"),
            "model.hidden=[64]",
            "'image-autoencoder' does not read",
        ),
        (ADAPTATION, "model.hidden=[64]", "model.kind 'adaptor' does not read"),
        (RELEASE, "local.order=1", "order is 1, .* no meaning under privacy.trust 'local-release'.*'local-slices'"),
        (GRADIENT, "privacy.bound=paper", "privacy: bound is .* meaning under .* 'none' and 'central'"),
        (
            GRADIENT,
            "privacy.sampling=stratified",
            "privacy: sampling is .* meaning under .* 'none' and 'central'",
        ),
        (
            GRADIENT,
            "privacy.device=cpu",
            "privacy: device is .* meaning under .* 'none' and 'central'.*accounts for",
        ),
        (("data.source=adult",), "data.records=500", "data: records is for records drawn from a law"),
        (AUTOENCODER, "data.records=500", "data: records is for records drawn from a law"),
        (AUTOENCODER, "data.test_records=500", "data: test_records is for records drawn from a law"),
        (GENERATION, "data.correlation=0.5", "data: correlation is about the law of source 'synthetic'"),
        ((), "data.public=mnist", "objective.task 'classification' does not read; it is read by 'adaptation'"),
    ],
)
def test_a_setting_that_would_have_no_effect_is_refused(base: tuple[str, ...], setting: str, words: str) -> None:
    parse(*base)
    with pytest.raises(ExperimentError, match=words):
        parse(*base, setting)


def test_a_setting_cannot_turn_a_value_into_a_section() -> None:
    with pytest.raises(ExperimentError, match="'privacy' is a value, not a section"):
        parse("privacy.epsilon=1", privacy=3)


def test_a_value_that_smuggles_in_a_second_line_is_taken_as_a_word() -> None:
    with pytest.raises(ExperimentError, match="training.rounds"):
        parse("training.rounds=5\nextra=6")


def test_epsilon_and_noise_multiplier_exclude_each_other() -> None:
    with pytest.raises(ExperimentError, match="both given; keep one"):
        parse(privacy={"epsilon": 1.0, "noise_multiplier": 2.0})
    with pytest.raises(ExperimentError, match="both given; keep one"):
        parse("privacy.epsilon=1", "privacy.noise_multiplier=2")


def test_a_noise_multiplier_alone_leaves_epsilon_to_follow() -> None:
    privacy = parse(privacy={"noise_multiplier": 2.0}).privacy
    assert (privacy.epsilon, privacy.noise_multiplier, privacy.guarantee.unprotected) == (None, 2.0, None)


@pytest.mark.parametrize(
    ("override", "epsilon", "multiplier", "noisy"),
    [
        ("privacy.noise_multiplier=2", None, 2.0, True),
        ("privacy.epsilon=3", 3.0, None, True),
        ("privacy.epsilon=inf", math.inf, None, False),
        ("privacy.trust=none", math.inf, None, False),
    ],
)
@pytest.mark.parametrize("written", [{"epsilon": 1.0}, {"noise_multiplier": 5.0}])
def test_overriding_the_noise_replaces_what_the_file_says_of_it(
    written: dict[str, float], override: str, epsilon: float | None, multiplier: float | None, noisy: bool
) -> None:
    privacy = parse(override, privacy=written).privacy
    assert (privacy.epsilon, privacy.noise_multiplier) == (epsilon, multiplier)
    assert (privacy.guarantee.unprotected is None) is noisy


def test_a_finite_epsilon_without_noise_is_refused() -> None:
    with pytest.raises(ExperimentError, match="trust 'none' adds no noise"):
        parse("privacy.trust=none", "privacy.epsilon=1")
    with pytest.raises(ExperimentError, match="trust 'none' adds no noise"):
        parse(privacy={"trust": "none", "noise_multiplier": 1.0})


@pytest.mark.parametrize(
    "overrides", [(), ("privacy.epsilon=inf",), ("privacy.noise_multiplier=2", "model.kind=mlp", "model.hidden=[4]")]
)
def test_json_keeps_an_experiment_whole_without_infinity_literals(overrides: tuple[str, ...]) -> None:
    experiment = parse(*overrides)
    text = experiment.model_dump_json()
    assert Experiment.model_validate_json(text) == experiment
    assert Experiment.model_validate(json.loads(text)) == experiment

    def refuse(literal: str) -> None:
        raise AssertionError(f"{literal} in JSON")

    json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("delta", "value"),
    [
        ("0.1/n", 0.1 / 5000),
        ("1/n^2", 1 / 5000**2),
        (" 1 / n ^ 1.5 ", 5000**-1.5),
        (1e-5, 1e-5),
        ("auto", 1 / 5000**2),
    ],
)
def test_delta_is_a_number_or_an_expression_in_the_number_of_records(delta: float | str, value: float) -> None:
    assert resolve_delta(delta, records=5000) == pytest.approx(value, rel=1e-12)


def test_a_delta_that_a_published_record_would_satisfy_draws_a_warning() -> None:
    with pytest.warns(UserWarning, match="not below 1/n"):
        resolve_delta(0.01, records=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve_delta("0.1/n", records=100)


def test_auto_is_the_delta_of_whoever_names_none_and_never_above_a_thousandth() -> None:
    """It was 1/4 for two records; budgets and settings had another rule than drafts."""
    assert parse_experiment({"name": "x"}).privacy.delta == DEFAULT_DELTA == "auto"
    for records in (1, 2, 10, 31, 32, 999):
        with pytest.warns(UserWarning, match=f"for {records} records, fewer than 1000"):
            delta = resolve_delta("auto", records=records)
        assert delta == min(1e-3, 1 / records**2) and delta * records < 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_delta("auto", records=1000) == 1e-6
        assert resolve_delta(1e-5, records=10) == 1e-5, "whoever writes it has thought of it"


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, "5/n^0.1"])
def test_a_delta_outside_its_range_is_refused(delta: float | str) -> None:
    with pytest.raises(ExperimentError, match="strictly between 0 and 1"):
        resolve_delta(delta, records=3)


def test_an_expression_that_accounts_could_not_tell_from_round_off_is_refused_with_what_fits() -> None:
    assert LEAST_DELTA == SMALLEST_DELTA
    with pytest.raises(ExperimentError, match=r"'1/n\^2' is 1e-12 for 1000000 records.*'auto', which is 1e-09 here"):
        resolve_delta("1/n^2", records=10**6)


@pytest.mark.parametrize("records", [1, 2, 7, 31, 32, 100, 31_622, 31_623, 10**5, 10**7])
def test_auto_delta_is_the_square_of_one_in_all_records_within_its_limits(records: int) -> None:
    assert read_delta("auto", records=records) == min(1e-3, max(1e-9, 1 / math.pow(records, 2)))


def test_a_delta_too_small_for_a_float_is_refused() -> None:
    with pytest.raises(ExperimentError, match="cannot be read"):
        resolve_delta("1/n^999", records=10)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"no experiment file at .*nothing\.toml.*fedsw list"):
        load_experiment(tmp_path / "nothing.toml")
    with pytest.raises(ExperimentError, match="cannot be read"):
        load_experiment(tmp_path)
    broken = tmp_path / "broken.toml"
    broken.write_text("name = ")
    with pytest.raises(ExperimentError, match=r"broken\.toml is not valid TOML"):
        load_experiment(broken)
    broken.write_bytes(b"name = '\xff'")
    with pytest.raises(ExperimentError, match=r"broken\.toml is not valid TOML"):
        load_experiment(broken)


def test_a_fault_is_named_once() -> None:
    """Neither as every type that a value could have had, nor as what it leaves missing."""
    columns = {"features": [{"name": "age", "lo": 3}], "sensitive": {"name": "sex", "values": [0, 1]}}
    for raw in ({"data": {"source": "files", "columns": columns}}, {"privacy": {"delta": [1]}}):
        with pytest.raises(ExperimentError) as refused:
            parse(**raw)
        assert len(str(refused.value).splitlines()) == 1


def test_every_fault_of_a_file_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('name = "bad"\n[training]\nrounds = -1\nspeed = 3\n[clip]\nloss = 0\n')
    with pytest.raises(ExperimentError) as refused:
        load_experiment(path)
    assert [word in str(refused.value) for word in ("training.rounds", "training.speed", "clip.loss")] == [True] * 3


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["name", "data", "training", "privacy", "objective", "seed", "zzz"])


@given(raw=st.dictionaries(keys, json_values, max_size=4), override=st.text(max_size=30))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_whatever_is_written_is_an_experiment_or_an_experiment_error(raw: dict[str, Any], override: str) -> None:
    for overrides in ([], [override], [f"privacy.epsilon={override}"], [f"{override}=1"]):
        try:
            parse_experiment(raw, overrides)
        except ExperimentError as refused:
            assert str(refused)
