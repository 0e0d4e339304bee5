"""Laws of trust models as objects: found by name, in one registry, also one from outside of the package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fedsw
from fedsw.experiment import trust
from fedsw.experiment.trust import TrustModel, names_of, register, trust_model, trust_models
from fedsw.federation.messages import EXCHANGES, HELLO, SIZES
from fedsw.federation.trust import NAMES
from fedsw.federation.trust.model import Served, served_by_name
from fedsw.settings import ExperimentError

PACKAGE = Path(fedsw.__file__).parent
LOOP = ("federation/server", "federation/client", "federation/exchange", "federation/messages", "tasks/kinds")
"""Where nothing knows a trust model by its name."""


def test_every_shipped_trust_model_is_an_object_that_can_be_served():
    assert tuple(trust_models()) == NAMES
    for name in NAMES:
        assert isinstance(served_by_name(name), Served) and trust_model(name).name == name


def test_every_exchange_but_the_greetings_belongs_to_some_trust_model():
    answered = {kind for model in trust_models().values() for kind in model.exchanges()}
    assert answered == {exchange.kind for exchange in EXCHANGES} - {HELLO.kind, SIZES.kind}


def test_what_compares_groups_and_releases_gradients_follows_from_the_objects():
    assert (
        names_of(gradients=True)
        == ("none", "central", "distributed", "local-gradient")
        == names_of(comparison="groups")
    )
    assert names_of(comparison="sketch") == ("sketch", "sketch-local")


def test_one_from_outside_is_known_by_its_name_and_takes_nobody_elses(monkeypatch):
    monkeypatch.setattr(trust, "_known", dict(trust_models()))

    class Toy(TrustModel):
        name = "toy"
        compares = frozenset(("groups",))

    class Thief(Toy):
        name = "central"

    register(Toy())
    assert "toy" in names_of(comparison="groups") and not trust_model("toy").local
    with pytest.raises(ExperimentError, match="there is a trust model 'central'"):
        register(Thief())
    with pytest.raises(ExperimentError, match="says what it is and not what it does"):
        served_by_name("toy")
    with pytest.raises(ExperimentError, match="'nobody'; there are 'none', 'central'"):
        trust_model("nobody")


def test_the_loop_the_app_the_exchange_and_the_tasks_compare_no_name_of_a_trust_model():
    found = []
    for path in (path for folder in LOOP for path in sorted((PACKAGE / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                texts = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                found += [f"{path.relative_to(PACKAGE)}:{node.lineno}" for name in NAMES if name in texts]
    assert found == []
