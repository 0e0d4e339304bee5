"""Laws of trust models as objects: found by name, in one registry, also one from outside of the package."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, ClassVar

import pytest

import fedsw
from fedsw._tools.settings import ExperimentError
from fedsw.experiment import Experiment, parse_experiment
from fedsw.experiment.sections import Local, Privacy, TableSettings
from fedsw.experiment.trust import (
    TRUSTS,
    TrustModel,
    accounting_at_server,
    comparing,
    register,
    releasing_gradients,
    trust_model,
    trust_models,
)
from fedsw.federation.messages import EXCHANGES, HELLO, ROLL, SIZES, trusts_of
from fedsw.federation.trust import Sides
from tests.syntax import nodes

PACKAGE = Path(fedsw.__file__).parent
NAMES = ("none", "central", "distributed", "local-gradient", "local-slices", "local-release", "sketch", "sketch-local")
LOOP = (
    "federation/server",
    "federation/client.py",
    "federation/exchange",
    "federation/messages",
    "learning/tasks/kinds",
)
"""Where nothing knows a trust model by its name."""


def parse(*overrides: str, **sections: Any) -> Experiment:
    return parse_experiment({"name": "plain", **sections}, overrides)


def test_every_shipped_trust_model_is_an_object_that_can_be_served():
    assert tuple(trust_models()) == NAMES
    for name in NAMES:
        assert isinstance(trust_model(name).sides, Sides) and trust_model(name).name == name


def test_every_exchange_but_the_greetings_belongs_to_some_trust_model():
    models = [each for model in trust_models().values() for each in (model, model.sketching) if each is not None]
    answered = {kind for model in models for kind in model.exchanges()}
    assert answered == {exchange.kind for exchange in EXCHANGES} - {ROLL.kind, HELLO.kind, SIZES.kind}
    assert all(trusts_of(exchange) for exchange in EXCHANGES)


def test_a_trust_model_for_two_kinds_of_tasks_is_two_objects_of_one_name():
    rounds, once = trust_model("distributed"), trust_model("distributed", sketch=True)
    assert rounds is trust_models()["distributed"] is trust_model("distributed", sketch=False) is not once
    for model, leaves, gradients in ((rounds, "RoundRun", True), (once, "OnceRun", False)):
        assert (model.name, model.runs.rpartition(":")[2]) == ("distributed", leaves)
        assert bool(model.beside) is gradients
    assert trust_model("sketch", sketch=True) is trust_model("sketch")
    assert parse("privacy.trust=distributed").privacy.model is rounds


def test_what_compares_groups_and_releases_gradients_follows_from_the_objects():
    assert releasing_gradients() == ("none", "central", "distributed", "local-gradient") == comparing("groups")
    assert comparing("sketch") == ("distributed", "sketch", "sketch-local")
    assert accounting_at_server() == ("none", "central", "sketch")


def test_one_from_outside_is_known_by_its_name_and_takes_nobody_elses(monkeypatch):
    monkeypatch.setattr(TRUSTS, "_things", dict(trust_models()))

    class Toy(TrustModel):
        name = "toy"
        compares = frozenset(("groups",))

    class Thief(Toy):
        name = "central"

    register(Toy())
    assert "toy" in comparing("groups") and "toy" in accounting_at_server()
    with pytest.raises(ExperimentError, match="there is a privacy.trust 'central'"):
        register(Thief())
    with pytest.raises(ExperimentError, match="says what it is and not what it does"):
        _ = trust_model("toy").sides
    with pytest.raises(ExperimentError, match="'nobody'; there are 'none', 'central'"):
        trust_model("nobody")


def test_the_loop_the_app_the_exchange_and_the_tasks_compare_no_name_of_a_trust_model():
    found = []
    paths = [path for each in LOOP for path in sorted((PACKAGE / each).rglob("*.py")) or [PACKAGE / each]]
    for path in paths:
        for node in nodes(path):
            if isinstance(node, ast.Compare):
                texts = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                found += [f"{path.relative_to(PACKAGE)}:{node.lineno}" for name in NAMES if name in texts]
    assert found == []


class OwnPrivacy(Privacy):
    """Settings of a trust model from outside: one of its own in [privacy]."""

    honest: int = 2


class Honest(TrustModel):
    """A trust model with settings of its own."""

    name = "honest"
    compares = frozenset(("groups",))
    sections: ClassVar = {"privacy": OwnPrivacy, "local": TableSettings}


@pytest.fixture
def honest(monkeypatch):
    monkeypatch.setattr(TRUSTS, "_things", dict(trust_models()))
    return register(Honest())


def test_a_trust_model_from_outside_brings_settings_of_its_own_that_no_other_takes(honest):
    experiment = parse("privacy.trust=honest", "privacy.honest=3", "local.bins=8")
    assert (experiment.privacy.honest, experiment.own(TableSettings).bins) == (3, 8)
    assert Experiment.model_validate_json(experiment.model_dump_json()) == experiment
    with pytest.raises(ExperimentError, match="honest is 3, which has no meaning under privacy.trust 'central'"):
        parse("privacy.honest=3")
    with pytest.raises(ExperimentError, match="bins is 8, .* 'local-gradient' and 'honest': leave it out"):
        parse("local.bins=8")
    with pytest.raises(ExperimentError, match="'privacy.honets'; nearest known: 'privacy.honest'"):
        parse("privacy.trust=honest", "privacy.honets=3")
    with pytest.raises(ExperimentError, match="'local.bin'; nearest known: 'local.bins'"):
        parse("local.bin=8")


def test_what_a_trust_model_does_not_read_is_not_in_its_section_and_may_be_written_with_its_default_alone():
    whole = {"order": 2, "bins": 32, "thresholds": [], "iterations": None}  # as files have it that were written whole
    for name in trust_models():
        kind = trust_model(name).sections.get("local", Local)
        sections = {"privacy": {"trust": name}, "local": {**whole, **kind().model_dump()}}
        try:
            local = parse(**sections).local
        except ExperimentError as refused:  # another task: its sections are read all the same
            assert "cannot run" in str(refused) or "model.kind" in str(refused), refused
        else:
            assert type(local) is kind and set(local.model_dump()) == set(kind.model_fields)


def test_choosing_another_trust_model_drops_what_a_file_says_that_only_its_own_reads():
    written = {"privacy": {"trust": "local-gradient"}, "local": {"bins": 8}}
    assert parse("privacy.trust=central", **written).local == Local()
    assert parse(**written).own(TableSettings).bins == 8
    with pytest.raises(ExperimentError, match="bins is 9"):
        parse("privacy.trust=central", "local.bins=9", **written)
