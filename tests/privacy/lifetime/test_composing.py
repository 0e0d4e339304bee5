"""A law of any sequence of releases of all kinds on one data set: the account's epsilon is a fresh composition."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.privacy.accounting import Charge, Composition, Ledger, Step
from fedsw.privacy.accounting.lifetime import About, DatasetAccount, composed_epsilon, counting
from fedsw.privacy.accounting.profiles import stated_step
from fedsw.privacy.accounting.selection import Repetitions, renyi_of_best
from fedsw.privacy.accounting.stated import Pure

DELTA = 1e-6
CURVES = [renyi_of_best(Repetitions(0.0, 0.1), [(Step(1.0, mu), 1)]) for mu in (0.1, 0.3)]
MUS = st.floats(0.02, 0.6)
GAUSSIAN = st.tuples(st.just("pld"), st.sampled_from([0.05, 0.3, 1.0]), MUS, st.integers(1, 4))
LAPLACE = st.tuples(st.just("laplace"), st.just(1.0), MUS, st.integers(1, 2))
SELECTION = st.tuples(st.just("selection"), st.integers(0, 1))
KILLED = st.booleans()


def release(account: DatasetAccount, place: Path, accountant, rate, mu, times, *, killed) -> dict[Step, int]:
    """Charge a ledger that counts in the account; killed half-way, what was set aside stays."""
    step = stated_step(Pure(mu)) if accountant == "laplace" else Step(rate, mu)
    about = About("own", accountant, "")
    with Ledger.create(place, groups=("all",), delta=1e-5, epsilon=1e3, accountant=accountant) as ledger:
        with counting(ledger, account, {step: times}, about):
            for round_ in range(1 if killed else times):
                ledger.spend(round_, 0, [Charge("all", rate, mu)], 1.0)
        if killed:  # as the row of the reservation is, without the one that settled it
            account.reserve(ledger.identity, {step: times}, about)
    return {step: times}


@settings(max_examples=6, deadline=None, derandomize=True)
@given(st.lists(st.tuples(GAUSSIAN | LAPLACE | SELECTION, KILLED), min_size=2, max_size=4))
def test_of_any_releases_one_after_the_other_the_account_has_the_epsilon_of_all_their_charges(releases):
    with tempfile.TemporaryDirectory() as folder:
        account, fresh = DatasetAccount(Path(folder), "people"), Composition()
        for number, ((kind, *law), killed) in enumerate(releases):
            if kind == "selection":
                steps = {stated_step(CURVES[law[0]]): 1}
                account.reserve(f"tune-{number}", steps, About("own", "selection", ""))
            else:
                steps = release(account, Path(folder) / f"{number}.sqlite", kind, *law, killed=killed)
            for step, times in steps.items():
                fresh.add(step, times)
            exact, found = fresh.epsilon(DELTA), account.state().spent(DELTA)
            assert exact * (1 - 1e-4) <= found <= exact * (1 + 1e-3) + 1e-6
        rows = account.state().runs.values()
        assert len(rows) == len(releases)
        assert account.state().spent(DELTA) <= sum(composed_epsilon([run.steps], DELTA) for run in rows) + 1e-6
