"""Laws of going on: a resumed run keeps to the guarantee that its rounds were paid for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsw._tools.settings import FederationError
from fedsw.privacy.accounting import Ledger
from tests.federations import small

LOCAL = ("privacy.trust=local-gradient", "privacy.epsilon=5.0")


class Stop:
    """An operator who stops a run after two rounds."""

    def started(self, plan): ...
    def finished(self, summary): ...
    def round_done(self, record):
        if record["round"] == 2:
            raise InterruptedError("stopped by its operator")


def stopped(federation, *overrides: str) -> Path:
    """The folder of a run that was stopped."""
    with pytest.raises(InterruptedError):
        federation.run(small(*overrides), observer=Stop())
    return federation.folder / "run1"


_CHANGED = r"ledger\.sqlite keeps .* at delta 0\.000166667; with the 6000 records .* at delta 1\.66667e-05"


@pytest.mark.parametrize(
    ("trust", "reason"),
    [
        (("privacy.epsilon=2.0",), _CHANGED),
        (("privacy.noise_multiplier=2.0",), _CHANGED),
        (LOCAL, r"client-0\.sqlite accounts for another run.*: .* at \(5, 0\.000166667\) .* at \(5, 5e-05\)"),
    ],
)
def test_a_run_goes_on_only_at_the_delta_that_its_rounds_were_paid_for(federation, trust, reason):
    """delta = "0.1/n" of ten times as many records is a tenth, at which the rounds so far cost more."""
    directory = stopped(federation, *trust)
    with pytest.raises(FederationError, match=reason):
        federation.run(small(*trust, "data.records=6000"), directory=directory, resume=True)
    assert (directory / "attempts.log").read_text().splitlines() == ["1 0", "2 0"]
    summary = federation.run(small(*trust), directory=directory, resume=True)
    assert summary["status"] == "completed" and summary["delta"] == 0.1 / 600


def test_a_run_goes_on_only_at_the_epsilon_that_its_ledger_allows(federation):
    """With a fixed batch fewer records are sampled more often, so that a given noise means a larger epsilon."""
    given = ("privacy.noise_multiplier=2.0", "privacy.delta=1e-5", "training.batch_size=30")
    directory = stopped(federation, *given)
    with pytest.raises(FederationError, match=r"keeps a run of epsilon 0\.57.*the plan is epsilon 1\.2"):
        federation.run(small(*given, "data.records=300"), directory=directory, resume=True)


def test_other_sizes_at_the_same_guarantee_are_charged_at_the_rates_of_each_round(federation):
    given = ("privacy.epsilon=2.0", "privacy.delta=1e-5", "training.batch_size=30")
    directory = stopped(federation, *given)
    summary = federation.run(small(*given, "data.records=300"), directory=directory, resume=True)
    with Ledger.open(directory / "ledger.sqlite", read_only=True) as ledger:
        rates = [entry.sampling_rate for entry in ledger.entries() if entry.group == "A=0"]
        assert ledger.delta == summary["delta"] == 1e-5 and ledger.replay() <= summary["epsilon"] == 2.0
    assert rates[0] == rates[1] < min(rates[2:])
