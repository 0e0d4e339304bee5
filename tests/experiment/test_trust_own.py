"""Laws of a trust model from outside of the package: it runs as shipped ones do, in process and in real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsw.audit.record import audit
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.trust import TRUSTS, register, trust_models
from fedsw.federation.engines.driver import run
from fedsw.privacy.accounting import Ledger
from tests.experiment import cautious
from tests.federations import small
from tests.processes import mark

SETTINGS = ("training.rounds=2", "federation.clients=2", "seed=5")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(TRUSTS, "_things", dict(trust_models()))
    register(cautious.CAUTIOUS)
    yield


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A package that brings it by an entry point, in a folder that this process and all that it starts look in."""
    place = tmp_path / "site"
    about = place / "cautious_trust-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: cautious-trust\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fedsw.trust]\ncautious = cautious_trust:CAUTIOUS\n")
    (place / "cautious_trust.py").write_text(Path(cautious.__file__).read_text())
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(TRUSTS, "_things", {})
    monkeypatch.setattr(TRUSTS, "_loaded", False)
    yield place


def with_margin(margin: float, *more: str) -> Experiment:
    return small(*SETTINGS, "privacy.trust=cautious", f"privacy.margin={margin}", *more)


def noise_of(directory: Path) -> float:
    with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
        return min(each.sigma for each in ledger.entries())


def test_it_runs_adds_the_noise_of_its_own_setting_and_spends_less(known: None, tmp_path: Path) -> None:
    central = run(small(*SETTINGS), runs=tmp_path / "central")
    own = run(with_margin(3.0), runs=tmp_path / "own")
    assert noise_of(own.directory) == pytest.approx(3 * noise_of(central.directory), rel=1e-12)
    assert own.summary["epsilon_spent"] < central.summary["epsilon_spent"] / 2
    assert own.summary["guarantee"]["trust"] == "cautious"
    assert audit(own.directory).passed


def test_a_package_that_is_installed_brings_it_and_one_that_breaks_is_named(installed: Path) -> None:
    assert list(trust_models())[-1] == "cautious" and with_margin(2.0).privacy.trust == "cautious"
    TRUSTS._things.clear()
    TRUSTS._loaded = False
    (installed / "cautious_trust.py").write_text("CAUTIOUS = 1 / 0\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(__import__("sys").modules, "cautious_trust")
        with pytest.raises(ExperimentError, match="'cautious_trust:CAUTIOUS' of an installed package cannot be loaded"):
            trust_models()


@pytest.mark.slow
def test_real_processes_run_it_and_end_as_one_process_does(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark(monkeypatch)
    experiment = with_margin(3.0, "federation.timeout=600.0")
    ours = run(experiment, runs=tmp_path / "ours")
    theirs = run(experiment, engine="deployed", runs=tmp_path / "theirs")
    assert theirs.summary["status"] == ours.summary["status"] == "completed"
    assert theirs.summary["epsilon_spent"] == ours.summary["epsilon_spent"]
    assert noise_of(theirs.directory) == noise_of(ours.directory)
