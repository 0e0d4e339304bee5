"""Laws of trust models from outside that do not keep to the door: what no ledger has a row of ends the run."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import fedsw
from fedsw._tools.settings import FederationError, Unaccounted
from fedsw.experiment import ExperimentError
from fedsw.experiment.trust import TRUSTS, register, trust_models
from fedsw.federation import messages
from fedsw.federation.messages.table import NoisedContribution
from fedsw.federation.node.replies import answer_together
from fedsw.federation.trust import Sides
from fedsw.federation.trust.central import Central
from fedsw.federation.trust.central import rounds as central
from fedsw.federation.trust.local_gradient import LocalGradients
from fedsw.federation.trust.local_gradient import adding as local
from fedsw.privacy.accounting import Ledger
from fedsw.runs.observer import Outcome
from tests.federations import Federation, small
from tests.syntax import nodes

SETTINGS = ("training.rounds=2", "federation.clients=2", "privacy.epsilon=20")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(TRUSTS, "_things", dict(trust_models()))
    yield


class Rounds(central.Rounds):
    """Rounds that noise a sum themselves, from the second on."""

    def round(self, round_: int, theta: torch.Tensor) -> Outcome:
        if round_ == 1:
            return super().round(round_, theta)
        found = self.run(round_, theta)
        noised = found.vector + torch.randn_like(found.vector)
        return Outcome(noised, 1.0, 0.0, found.attempt, found.clients)


class Silent(Central):
    """As `central`, past the door."""

    name = "silent"

    @property
    def sides(self) -> Sides:
        return replace(central.SIDES, server=Rounds)


def past_the_door(node: Any, asked: Any, positions: Any, context: Any) -> dict[int, NoisedContribution]:
    return {position: NoisedContribution(0.5, torch.zeros(node.task.parameters), 1.0) for position in positions}


class Whispering(LocalGradients):
    """As `local-gradient`, at clients that never ask their ledgers."""

    name = "whispering"

    @property
    def sides(self) -> Sides:
        handlers = {messages.LOCAL_GRADIENTS: answer_together(messages.LOCAL_GRADIENTS, past_the_door)}
        return replace(local.SIDES, handlers={**local.SIDES.handlers, **handlers})


def test_a_round_without_a_row_in_the_ledger_ends_the_run_which_then_has_no_guarantee(tmp_path: Path) -> None:
    register(Silent())
    federation = Federation(tmp_path)
    with pytest.raises(Unaccounted, match=r"round 2, attempt 0.*'silent'.*has no row of it"):
        federation.run(small(*SETTINGS, "privacy.trust=silent"))
    summary = json.loads(((tmp_path / "run1") / "summary.json").read_text())
    assert summary["status"] == "failed: round 2 was released, and no ledger has a row of it"
    assert summary["guarantee"]["statement"].startswith("No guarantee")
    assert [float(summary[name]) for name in ("epsilon", "epsilon_spent", "epsilon_of_reader")] == [math.inf] * 3
    assert len(((tmp_path / "run1") / "metrics.jsonl").read_text().splitlines()) == 1  # nothing of round 2
    with Ledger.open((tmp_path / "run1") / "ledger.sqlite", read_only=True) as ledger:
        assert {round_ for round_, _ in ledger.attempts()} == {1}


@pytest.mark.parametrize("sites", [(), ("federation.sites=1",)])
def test_what_a_client_would_send_of_a_round_without_a_row_stays_there(tmp_path: Path, sites: tuple[str, ...]) -> None:
    register(Whispering())
    asked = small(*SETTINGS, *sites, "privacy.trust=whispering", "objective.alpha=0")
    with pytest.raises(FederationError, match=r"something would leave in round 1 .*'whispering'.*Nothing left"):
        Federation(tmp_path).run(asked)


def test_one_place_says_the_accountant(tmp_path: Path) -> None:
    class Older(Central):
        """As `central`, accounted for by Renyi divergences, whatever the settings say."""

        name = "older"

        def accountant(self, experiment: Any) -> str:
            return "rdp-wor"

    register(Older())
    federation = Federation(tmp_path)
    summary = federation.run(small(*SETTINGS, "privacy.trust=older"))
    with Ledger.open((tmp_path / "run1") / "ledger.sqlite", read_only=True) as ledger:
        assert (ledger.accountant, ledger.mechanism) == ("rdp-wor", "gaussian")
        assert summary["epsilon_spent"] == ledger.epsilon() <= 20 * (1 + 1e-6)
    assert (summary["guarantee"]["accountant"], summary["guarantee"]["mechanism"]) == ("rdp-wor", "gaussian")
    assert summary["delta"] > 0 and "pure" not in summary["guarantee"]["statement"]


def test_normal_noise_is_never_called_pure(tmp_path: Path) -> None:
    """Three lines of a class said "pure 1-differential privacy, delta = 0" of normal noise."""

    class Pure(Central):
        name = "pure"

        def accountant(self, experiment: Any) -> str:
            return "laplace"

    class Purer(Pure):
        name = "purer"

        def mechanism(self, experiment: Any) -> str:
            return "laplace"

    register(Pure())
    with pytest.raises(ExperimentError, match="'laplace' takes laplace noise, and what trust 'pure' releases has 'g"):
        small(*SETTINGS, "privacy.trust=pure")
    register(Purer())  # whose bounds are in l2
    with pytest.raises(ValueError, match="bounded in l2 norm, and laplace noise is in proportion to l1"):
        Federation(tmp_path).run(small(*SETTINGS, "privacy.trust=purer"))


def test_a_plan_that_says_something_else_than_its_trust_model_is_refused_before_anything_is_spent(
    tmp_path: Path,
) -> None:
    class Secretive(Central):
        name = "secretive"
        change: ClassVar[dict[str, str]] = {"accountant": "rdp-wor"}

        def plan(self, task: Any, sites: Any) -> Any:
            return replace(super().plan(task, sites), **self.change)

    register(Secretive())
    federation = Federation(tmp_path)
    with pytest.raises(ValueError, match="the accountant 'rdp-wor', and the trust model says 'pld'.*Nothing was spent"):
        federation.run(small(*SETTINGS, "privacy.trust=secretive"))
    assert not ((tmp_path / "run1") / "ledger.sqlite").exists()


def test_nothing_but_a_trust_model_reads_the_accountant_of_the_settings() -> None:
    """Whatever is planned, charged, limited or said asks `Experiment.accountant`, and so the trust model."""
    package = Path(fedsw.__file__).parent
    readers = set()
    for path in package.rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and node.attr == "accountant":
                owner = node.value
                if (getattr(owner, "attr", None) or getattr(owner, "id", None)) == "privacy":
                    readers.add(path.relative_to(package).as_posix())
    assert readers == {"experiment/trust.py", "federation/trust/local_release/__init__.py"}
