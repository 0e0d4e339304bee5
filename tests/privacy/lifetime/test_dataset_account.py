"""Laws of the account of a data set: it composes what its runs spent, keeps to its limit, and forgets nothing."""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fedsw._tools.text import downward
from fedsw.privacy.accounting import Charge, Head, Ledger, LedgerReplaced, Slicing, Step, epsilon
from fedsw.privacy.accounting.lifetime import (
    About,
    Cost,
    DatasetAccount,
    Limit,
    LimitReached,
    Reservation,
    accounts_folder,
    composed_epsilon,
    in_order,
    planned,
    room,
)
from fedsw.privacy.accounting.lifetime.composing import counted, one_of, uncovered, worst_of
from fedsw.privacy.accounting.profiles import stated_step
from fedsw.privacy.accounting.stated import Pure
from fedsw.runs.accounts import account_record, together_record
from fedsw.runs.report.screens import account_view, accounts_view, together_view

DELTA = 1e-6
OWN = About("own", "central", "runs/own/1")


class Rows:
    """A ledger by the digests of its rows."""

    def __init__(self, *digests: str) -> None:
        self.digests = digests

    def head(self) -> Head:
        return Head(len(self.digests), self.digests[-1])

    def passes(self, head: Head) -> bool:
        return self.digests[head.sequence - 1 : head.sequence] == (head.digest,)


@pytest.fixture
def account(tmp_path):
    return DatasetAccount(tmp_path, "people")


KINDS = {
    "central, subsampled": {Step(0.1, 0.2): 60},
    "central, another rate": {Step(0.05, 0.4): 100},
    "sketch": {Step(1.0, 0.3): 1},
    "histograms and contribution on one batch": {Step(0.2, 0.25): 30},
    "table": {Step(1.0, 0.1): 1},
    "full batches": {Step(1.0, 0.02): 40},
    "slices": {Step(0.1, 0.5, slicing=Slicing(8, 4)): 20},
    "records, Gaussian": {Step(1.0, 0.2): 1},
    "records, Laplace": {stated_step(Pure(0.1)): 1},
    "scores": {Step(0.3, 0.05): 10},
}


def test_ten_runs_of_different_kinds_compose_to_one_composition_of_their_steps_and_far_below_their_sum(account):
    for name, steps in KINDS.items():
        account.reserve(name, steps, OWN)
        account.settle(name, steps, None)
    everything = {step: times for steps in KINDS.values() for step, times in steps.items()}
    found = account.state().spent(DELTA)
    assert found == pytest.approx(epsilon(everything, DELTA), rel=1e-3)
    assert found < 0.7 * sum(epsilon(steps, DELTA / 10) for steps in KINDS.values())


def test_the_account_agrees_with_an_independent_accountant(account):
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    steps = {Step(0.1, 0.6): 20, Step(0.05, 0.8): 30, Step(1.0, 0.3): 2, Step(1.0, 0.15): 4, stated_step(Pure(0.2)): 2}
    total = None
    for number, (step, times) in enumerate(steps.items()):
        account.reserve(str(number), {step: times}, OWN)
        together = _oracle(pld, step).self_compose(times)
        total = together if total is None else total.compose(together)
    found = account.state().spent(1e-5)
    assert found == pytest.approx(total.get_epsilon_for_delta(1e-5), rel=5e-3)


def _oracle(pld, step):
    """dp_accounting's distribution of a step; of a sampled one from the profile of C_p(G_mu), by its own grid."""
    if isinstance(step.stated, Pure):
        return pld.from_privacy_parameters(_parameters(step.stated.epsilon), value_discretization_interval=5e-4)
    if step.sampling_rate == 1.0:
        return pld.from_gaussian_mechanism(1 / step.mu, value_discretization_interval=5e-4)
    return _sampled(step)


def _parameters(epsilon):
    from dp_accounting.pld import common

    return common.DifferentialPrivacyParameters(epsilon, 0)


def _sampled(step):
    import numpy as np
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution
    from scipy.special import ndtr

    p, mu, spacing = step.sampling_rate, step.mu, 5e-4
    losses = np.arange(0, 12_001) * spacing
    unmixed = np.log1p(np.expm1(losses) / p)
    profile = p * (ndtr(mu / 2 - unmixed / mu) - np.exp(unmixed) * ndtr(-mu / 2 - unmixed / mu))
    whole = np.concatenate([(1 - np.exp(-losses) + np.exp(-losses) * profile)[:0:-1], profile])
    rounded = np.concatenate([-losses[:0:-1], losses])
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots(spacing, np.rint(rounded / spacing).astype(int), whole)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def test_a_run_that_does_not_fit_is_refused_and_nothing_is_set_aside(account):
    account.limit(2.0, DELTA)
    account.reserve("first", {Step(0.1, 0.4): 60}, OWN)
    before = account.state()
    with pytest.raises(LimitReached, match=r"data set 'people' would reach epsilon .*its limit is 2.*still fits"):
        account.reserve("second", {Step(0.1, 0.4): 60}, OWN)  # which fits by itself
    assert account.state() == before
    account.reserve("third", {Step(1.0, 0.05): 1}, OWN)


def test_under_a_limit_a_run_without_a_guarantee_is_refused(account):
    seeded = About("own", "central", "", "seed is 1: whoever knows it can undo sampling and noise")
    account.reserve("before", {Step(1.0, 0.1): 1}, seeded)
    account.limit(5.0, DELTA)
    with pytest.raises(LimitReached, match="seed is 1"):
        account.reserve("after", {Step(1.0, 0.1): 1}, seeded)
    with pytest.raises(LimitReached):
        account.reserve("bare", {Step(1.0, float("inf")): 1}, OWN)


def test_a_run_that_ended_counts_with_what_it_spent_and_one_that_broke_off_with_its_plan(account):
    plan, spent = planned(Step(0.1, 0.4), 100), {Step(0.1, 0.4): 30}
    account.reserve("ended", plan, OWN)
    account.settle("ended", spent, Rows("30 releases"))
    account.reserve("broke off", plan, OWN)
    assert account.state().spent(DELTA) == pytest.approx(epsilon({Step(0.1, 0.4): 130}, DELTA), rel=1e-4)
    account.reserve("ended", plan, OWN)  # it goes on: what it spent is not set aside twice
    assert account.state().spent(DELTA) == pytest.approx(epsilon({Step(0.1, 0.4): 200}, DELTA), rel=1e-4)


def test_a_run_is_not_settled_with_a_shorter_ledger_than_before(account):
    account.reserve("run", {Step(0.1, 0.4): 100}, OWN)
    account.settle("run", {Step(0.1, 0.4): 2}, Rows("x", "y"))
    for other in (Rows("x"), Rows("x", "z"), Rows("x", "z", "y"), None):
        with pytest.raises(LedgerReplaced, match="release 2"):
            account.settle("run", {Step(0.1, 0.4): 1}, other)
    account.settle("run", {Step(0.1, 0.4): 3}, Rows("x", "y", "z"))


def test_an_account_put_back_from_an_older_copy_is_refused(account, tmp_path):
    account.reserve("first", {Step(0.1, 0.4): 10}, OWN)
    shutil.copy(account.path, tmp_path / "copy")
    head = account.reserve("second", {Step(0.1, 0.4): 10}, OWN)
    shutil.copy(tmp_path / "copy", account.path)
    for use in (account.state, lambda: account.reserve("third", {Step(0.1, 0.1): 1}, OWN)):
        with pytest.raises(LedgerReplaced, match="older copy"):
            use()
    account.path.with_suffix(".head").unlink()  # who puts the memory back as well still has the runs' own against them
    with pytest.raises(LedgerReplaced, match="run 2 remembers row 2"):
        account.reserve("third", {Step(0.1, 0.1): 1}, OWN, witnesses=[(head, "run 2")])


def test_an_account_that_is_gone_is_refused(account):
    account.reserve("first", {Step(0.1, 0.4): 10}, OWN)
    account.path.unlink()
    with pytest.raises(LedgerReplaced, match="is gone"):
        account.reserve("second", {Step(0.1, 0.4): 10}, OWN)


def _try(folder, name, results):
    try:
        DatasetAccount(folder, "people").reserve(name, {Step(0.1, 0.45): 60}, OWN)
        results.put(True)
    except LimitReached:
        results.put(False)


@pytest.mark.slow
def test_of_processes_at_the_same_time_no_more_pass_than_fit(account, tmp_path):
    account.limit(2.0, DELTA)
    context = multiprocessing.get_context("spawn")  # a fork of a process whose threads compute may wait for ever
    results = context.Queue()
    tries = [context.Process(target=_try, args=(tmp_path, str(number), results)) for number in range(3)]
    for one in tries:
        one.start()
    found = [results.get(timeout=60) for _ in tries]
    for one in tries:
        one.join()
    assert sorted(found) == [False, False, True]
    assert account.state().spent(DELTA) <= 2.0


def test_a_release_beyond_the_reservation_asks_the_account_before_it_is_charged(account, tmp_path):
    account.limit(2.0, DELTA)
    account.reserve("run", planned(Step(0.1, 0.5), 2), OWN)
    with Ledger.create(tmp_path / "l.sqlite", groups=("all",), delta=1e-5, epsilon=50.0) as ledger:
        ledger.limiter = Reservation(account, "run")
        for round_ in range(2):
            ledger.spend(round_, 0, [Charge("all", 0.1, 0.5)], 1.0)
        before = account.state().runs["run"].steps
        assert sum(before.values()) == 2
        ledger.spend(2, 0, [Charge("all", 0.2, 0.5)], 1.0)
        assert sum(account.state().runs["run"].steps.values()) == 3
        with pytest.raises(LimitReached):
            ledger.spend(3, 0, [Charge("all", 1.0, 3.0)], 1.0)
        assert ledger.head().sequence == 3
    assert account.state().spent(DELTA) <= 2.0


def test_a_release_is_set_aside_for_whichever_group_takes_more_than_was_reserved(account, tmp_path):
    account.reserve("run", planned(Step(0.1, 0.5), 2), OWN)
    with Ledger.create(tmp_path / "l.sqlite", groups=("a", "b", "c"), delta=1e-5, epsilon=50.0) as ledger:
        ledger.limiter = Reservation(account, "run")
        for round_, rates in enumerate([(0.1, 0.3, 0.1), (0.1, 0.1, 0.4)]):
            ledger.spend(round_, 0, [Charge(g, r, 0.5) for g, r in zip("abc", rates, strict=True)], 1.0)
        steps = account.state().runs["run"].steps
        assert all(not uncovered(counted(own.items()), steps) for own in ledger.steps_by_group().values())
        assert account.state().spent(DELTA) >= epsilon({Step(0.1, 0.5): 1, Step(0.4, 0.5): 1}, DELTA)


def test_a_run_that_goes_on_keeps_what_exceeded_its_plan(account):
    plan = planned(Step(0.1, 0.5), 2)
    account.reserve("run", plan, OWN)
    account.extend("run", {Step(0.3, 0.5): 1})
    before = account.state().spent(DELTA)
    account.reserve("run", plan, OWN)
    assert account.state().spent(DELTA) == before > epsilon(plan, DELTA)
    account.settle("run", {Step(0.3, 0.5): 5}, Rows("5 releases"))
    account.reserve("run", plan, OWN)
    assert account.state().runs["run"].steps[Step(0.3, 0.5)] >= 5


def test_a_reservation_covers_smaller_steps_once_each():
    reserved = {Step(0.2, 0.5): 3}
    assert uncovered({Step(0.1, 0.5): 2, Step(0.2, 0.4): 1}, reserved) == {}
    assert uncovered({Step(0.1, 0.5): 4}, reserved) == {Step(0.1, 0.5): 1}
    assert sum(uncovered({Step(0.1, 0.5): 2, Step(0.2, 0.4): 2}, reserved).values()) == 1
    assert uncovered({Step(0.3, 0.1): 1}, reserved) == {Step(0.3, 0.1): 1}
    assert uncovered({Step(0.1, 0.1, slicing=Slicing(8, 4)): 1}, reserved) != {}


def test_a_small_step_leaves_what_covers_a_larger_one_to_that():
    small, large = Step(1.0, 0.2), Step(1.0, 0.3)
    assert uncovered({small: 1, large: 2}, {large: 2, Step(1.0, 0.2000001): 1}) == {}
    assert uncovered({small: 2, large: 1}, {large: 2, Step(1.0, 0.2000001): 1}) == {}
    assert uncovered({small: 2, large: 2}, {large: 2, Step(1.0, 0.2000001): 1}) == {large: 1}


def test_a_run_counts_with_steps_that_cover_every_group_of_it():
    first, second = {Step(0.1, 0.5): 10}, {Step(0.2, 0.4): 10}
    assert worst_of([first, {Step(0.1, 0.2): 10}]) == first
    together = worst_of([first, second])
    assert together == {Step(0.2, 0.5): 10}
    longer = worst_of([first, {Step(0.2, 0.4): 12}])
    assert not uncovered(first, longer) and not uncovered({Step(0.2, 0.4): 12}, longer)


def test_a_poisson_step_counts_as_a_replacement_at_twice_the_sensitivity():
    assert counted([(Step(0.1, 0.25, "poisson"), 7)]) == {Step(0.1, 0.5): 7}


def test_steps_that_round_alike_share_a_line_and_none_goes_down():
    found = counted([(Step(0.1, 0.3 + 1e-13 * number), 1) for number in range(5)])
    assert sum(found.values()) == 5 and len(found) <= 2 and min(step.mu for step in found) >= 0.3


def test_what_was_rounded_up_once_is_not_rounded_up_again():
    """Else a run that goes on is taken for one that spent more than it reserved, and counts twice."""
    for mu in torch.logspace(-4, 2, 3001, dtype=torch.float64).tolist():
        once = counted([(Step(0.1, mu), 1), (stated_step(Pure(mu)), 1)])
        assert counted(once.items()) == once and all(step.mu >= mu for step in once)


def test_ledgers_of_laplace_noise_count_as_pure(tmp_path):
    with Ledger.create(tmp_path / "l.sqlite", groups=("all",), delta=1e-5, epsilon=2.0, accountant="laplace") as ledger:
        ledger.spend(0, 0, [Charge("all", 1.0, 0.5)], 1.0)
        assert Cost.of_ledger(ledger).steps == {stated_step(Pure(0.5)): 1}


def test_releases_with_laplace_noise_at_two_rates_count_both(tmp_path):
    """Without amplification they cost alike, and one of them must not take the other's place."""
    with Ledger.create(tmp_path / "l.sqlite", groups=("all",), delta=1e-5, epsilon=2.0, accountant="laplace") as ledger:
        ledger.spend(0, 0, [Charge("all", 1.0, 0.5)], 1.0)
        ledger.spend(1, 0, [Charge("all", 0.1, 0.5)], 1.0)
        assert Cost.of_ledger(ledger).steps == {stated_step(Pure(0.5)): 2} and ledger.epsilon() == 1.0


def test_laplace_noise_for_presence_counts_twice_for_a_replacement(tmp_path):
    """A record that is replaced is one that goes and one that comes."""
    asked = {"groups": ("all",), "delta": 1e-5, "epsilon": 2.0, "accountant": "laplace"}
    with Ledger.create(tmp_path / "l.sqlite", **asked, relation="add-or-remove-one") as ledger:
        ledger.spend(0, 0, [Charge("all", 0.5, 0.5, "poisson")], 1.0)
        assert Cost.of_ledger(ledger).steps == {stated_step(Pure(1.0)): 1}


def test_a_run_of_the_size_that_is_left_fits():
    taken = {Step(0.1, 0.3): 50}
    left = room(Limit(2.0, DELTA), in_order([Cost.one(taken)]))
    spent = composed_epsilon([taken], DELTA)
    assert 2.0 - spent < left < 2.0  # more than the difference: epsilons do not add up
    assert room(Limit(spent / 2, DELTA), in_order([Cost.one(taken)])) == 0.0


@pytest.mark.parametrize("shape", [{Step(1.0, 0.7): 1}, {Step(0.1, 0.4): 60}, {Step(0.3, 0.2): 5, Step(1.0, 0.1): 1}])
def test_what_is_advised_is_admitted_and_two_per_cent_more_is_not(account, shape):
    account.limit(2.0, DELTA)
    account.reserve("taken", {Step(0.1, 0.3): 50}, OWN)
    state = account.state()
    left = room(state.limit, state.uses(), like=Cost.one(shape))

    def sized(epsilon):
        low, high = 0.0, 50.0
        for _ in range(30):
            middle = (low + high) / 2
            steps = {replace(step, mu=step.mu * middle): times for step, times in shape.items()}
            low, high = (middle, high) if composed_epsilon([steps], DELTA) <= epsilon else (low, middle)
        return {replace(step, mu=step.mu * low): times for step, times in shape.items()}

    with pytest.raises(LimitReached):
        account.reserve("more", sized(1.02 * left), OWN)
    account.reserve("as advised", sized(float(downward(left))), OWN)


def test_what_a_refusal_advises_is_admitted(account):
    account.limit(2.0, DELTA)
    account.reserve("taken", {Step(0.1, 0.3): 50}, OWN)
    plan = {Step(0.1, 1.0): 60}
    with pytest.raises(LimitReached, match=r"A run like it of epsilon (\S+) still fits") as refused:
        account.reserve("more", plan, OWN)
    advised = float(str(refused.value).split("of epsilon ")[1].split()[0])
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if composed_epsilon([{Step(0.1, middle): 60}], DELTA) <= advised else (low, middle)
    account.reserve("more", {Step(0.1, low): 60}, OWN)


TWO_PARTS = Cost.of([{Step(0.1, 0.45): 60}, {Step(1.0, 0.25): 1}])


def test_a_run_alone_costs_what_the_group_costs_that_a_record_is_in(account):
    dearest = max(composed_epsilon([part], DELTA) for part in TWO_PARTS.parts)
    assert len(TWO_PARTS.parts) == 2 and composed_epsilon([TWO_PARTS.steps], DELTA) > 1.02 * dearest
    account.limit(1.001 * dearest, DELTA)
    account.reserve("run", TWO_PARTS, OWN)
    account.settle("run", TWO_PARTS, None)
    state = account.state()
    assert state.spent(DELTA) == dearest and state.runs["run"].cost.parts == TWO_PARTS.parts
    record = account_record(account)
    assert record["epsilon"] == record["runs"][0]["epsilon"] == dearest
    assert record["runs"][0]["composes"] == "60 × (rate 0.1, μ 0.45) or 1 × (all records, μ 0.25)"


def test_of_several_runs_each_counts_with_the_largest_profile_of_its_groups(account):
    """A later run's groups may be chosen by what an earlier one released: no fixed choice of groups bounds that."""
    for name in ("one", "two"):
        account.reserve(name, TWO_PARTS, OWN)
    found = account.state().spent(DELTA)
    assert found == composed_epsilon([{one_of(TWO_PARTS.parts): 2}], DELTA)
    fixed = [composed_epsilon([one, other], DELTA) for one in TWO_PARTS.parts for other in TWO_PARTS.parts]
    assert max(fixed) < found < 1.01 * max(fixed)
    assert found < 0.9 * composed_epsilon([TWO_PARTS.steps] * 2, DELTA)  # which cover the steps of both


def test_a_release_that_no_group_s_part_covers_asks_the_account(account):
    account.reserve("run", TWO_PARTS, OWN)
    reservation = Reservation(account, "run")
    reservation.admit({"trained": {Step(0.1, 0.45): 60}, "held out": {Step(1.0, 0.25): 1}})
    assert account.state().runs["run"].cost == Cost(TWO_PARTS.steps, TWO_PARTS.parts)
    both = {Step(0.1, 0.45): 30, Step(1.0, 0.25): 1}  # within the steps that cover both groups, and in none
    assert not uncovered(both, TWO_PARTS.steps)
    reservation.admit({"trained": both})
    cost = account.state().runs["run"].cost
    assert any(not uncovered(both, part) for part in cost.parts) and cost != TWO_PARTS


def test_a_plan_that_goes_on_otherwise_counts_with_both(account):
    account.reserve("run", TWO_PARTS, OWN)
    other = Cost.of([{Step(0.1, 0.45): 60}, {Step(1.0, 0.2): 1}])
    account.reserve("run", other, OWN)
    cost = account.state().runs["run"].cost
    assert all(not uncovered(part, cost.steps) for part in (*TWO_PARTS.parts, *other.parts))
    assert len(cost.parts) == 1


@pytest.mark.parametrize("without", ["noise", "seed"])
def test_a_run_without_a_guarantee_is_infinite_in_the_first_place_and_never_left_out(account, without):
    account.reserve("private", {Step(0.1, 0.4): 60}, OWN)
    bare = {Step(1.0, math.inf): 1} if without == "noise" else {Step(1.0, 0.1): 1}
    account.reserve("bare", bare, About("bare", "central", "", "no noise was added" if without == "noise" else "seed"))
    others = composed_epsilon([{Step(0.1, 0.4): 60}], DELTA)
    for record in (account_record(account), together_record([account])):
        assert record["epsilon"] == math.inf and record["epsilon_of_others"] == others
    for view in (account_view(account_record(account)), together_view(together_record([account]))):
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(view)
        text = console.export_text()
        assert "ε = ∞ for readers of a run without a guarantee (1 of 2); the others: ε = " in text
    console.print(accounts_view([account_record(account)]))
    assert "∞" in console.export_text().split("people")[1]


def test_the_file_holds_no_more_than_names_and_steps(account):
    account.reserve("run", {Step(0.1, 0.4): 10}, OWN)
    import sqlite3

    rows = sqlite3.connect(account.path).execute("SELECT body FROM rows").fetchall()
    kept = json.loads(rows[0][0])
    assert set(kept) == {"kind", "run", "label", "doing", "place", "unprotected", "begun", "steps"}


def test_accounts_are_in_one_folder_wherever_a_command_is_started(monkeypatch, tmp_path):
    for where in ("one", "other"):
        (tmp_path / where).mkdir()
        monkeypatch.chdir(tmp_path / where)
        monkeypatch.setenv("FEDSW_ACCOUNTS", "accounts")
        with pytest.raises(
            ValueError, match=f"FEDSW_ACCOUNTS is 'accounts', .* Write the whole path, .*/{where}/accounts"
        ):
            accounts_folder()
        monkeypatch.setenv("FEDSW_ACCOUNTS", "~/accounts")
        assert accounts_folder() == Path.home() / "accounts"


def test_a_home_that_is_not_there_is_said_with_the_variable_that_names_another_folder(monkeypatch):
    monkeypatch.delenv("FEDSW_ACCOUNTS", raising=False)
    monkeypatch.setenv("HOME", "/proc/nobody")  # where nobody makes a folder
    with pytest.raises(OSError, match=r"accounts are kept in .*nobody/\.fedsw/accounts, which .*FEDSW_ACCOUNTS names"):
        DatasetAccount(accounts_folder(), "ward").limit(1.0, 1e-6)
