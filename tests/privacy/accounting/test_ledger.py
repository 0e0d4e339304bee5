"""Laws of the ledger: what was released is charged, whatever happens, and never more than the budget."""

import math
import os
import sqlite3
from contextlib import closing
from dataclasses import asdict
from statistics import median
from time import perf_counter

import pytest

from fedsw.privacy.accountants import ACCOUNTANTS
from fedsw.privacy.accounting import (
    AlreadySpent,
    BudgetExhausted,
    Charge,
    Ledger,
    LedgerBusy,
    LedgerDamaged,
    Slicing,
    Step,
    epsilon,
    epsilon_by,
    noise_multiplier,
)
from fedsw.privacy.accounting import ledger as columns
from fedsw.privacy.accounting import ledger as ledgers
from fedsw.privacy.accounting.journal import Journal

GROUPS = ("A=0", "A=1")


def charges(p=0.1, sensitivity=1.0, other=0.5):
    return [Charge("A=0", p, sensitivity), Charge("A=1", other * p, sensitivity)]


def create(path, budget=1.0, **more):
    settings = {"groups": GROUPS, "delta": 1e-5, "epsilon": budget, "nominal": False} | more
    return Ledger.create(path, **settings)


def test_spending_costs_what_the_steps_cost_for_the_worst_group(path):
    with create(path) as ledger:
        assert ledger.epsilon() == 0.0
        ledger.spend(1, 0, charges(0.1, 1.0), 10.0)
        spent = ledger.spend(2, 0, charges(0.2, 3.0), 20.0)
        worst = epsilon([(Step(0.1, 0.1), 1), (Step(0.2, 0.15), 1)], 1e-5)
        assert spent == ledger.epsilon() == pytest.approx(worst, rel=1e-9)
        assert ledger.epsilon_by_group()["A=1"] < spent
        assert ledger.released_rounds() == 2 and ledger.guarantee


def test_the_total_is_that_of_the_worst_group_whichever_it_is_by_now(path):
    """Groups overtake one another, and one reading of the others must not hide it."""
    rounds = [(0.1, 1.0, 0.5)] * 3 + [(0.05, 0.5, 3.0)] * 12 + [(0.2, 2.0, 0.9)] * 3 + [(0.1, 1.0, 1.0)] * 2
    worst = set()
    with create(path, budget=math.inf) as ledger:
        for round_, (p, sensitivity, other) in enumerate(rounds):
            spent = ledger.spend(round_, 0, charges(p, sensitivity, other), 8.0)
            by_group = ledger.epsilon_by_group()
            assert spent == pytest.approx(max(by_group.values()), rel=1e-9)
            worst.add(max(by_group, key=by_group.__getitem__))
    assert worst == set(GROUPS)


def test_slices_are_charged_kept_and_read_back_as_slices(path):
    slicing = Slicing(784, 200)
    with create(path, groups=["all"]) as ledger:
        spent = ledger.spend(0, 0, [Charge("all", 0.01, 2.0, slicing=slicing)], 4.0)
        assert spent == pytest.approx(epsilon({Step(0.01, 0.5, slicing=slicing): 1}, 1e-5), rel=1e-9)
        assert spent < epsilon({Step(0.01, 0.5): 1}, 1e-5)
        ledger.spend(1, 0, [Charge("all", 0.01, 2.0)], 4.0)
        total = ledger.epsilon()
    with Ledger.open(path) as ledger:
        assert [entry.slicing for entry in ledger.entries()] == [slicing, None]
        assert ledger.epsilon() == ledger.replay() == pytest.approx(total, rel=1e-12)


def test_rows_from_before_slices_could_be_charged_are_read(path):
    create(path, groups=["all"]).close()
    charge = {"group": "all", "sampling_rate": 0.1, "sensitivity": 1.0, "sampling": "without-replacement"}
    with closing(Journal.open(path)) as journal:
        journal.append("0/0", {"round": 0, "attempt": 0, "sigma": 10.0, "charges": [charge]})
    with Ledger.open(path) as ledger:
        assert ledger.epsilon() == pytest.approx(epsilon({Step(0.1, 0.1): 1}, 1e-5), rel=1e-9)
        assert ledger.entries()[0].slicing is None and ledger.entries()[0].sensitivity == 1.0


def test_a_calibrated_plan_is_spent_to_its_last_round_and_no_further(path):
    """The multiplier that calibration returns pays for exactly the planned rounds, sigma / Delta rounding included."""
    multiplier = noise_multiplier(1.0, 1e-5, sampling_rate=0.1, steps=60)
    with create(path) as ledger:
        for round_ in range(60):
            bound = 0.1 * (1 + round_ % 7)
            ledger.spend(round_, 0, charges(0.1, bound), multiplier * bound)
        assert 0.999 < ledger.epsilon() <= 1.0
        with pytest.raises(BudgetExhausted, match=r"round 60 would bring epsilon to 1\.00.*the budget is 1"):
            ledger.spend(60, 0, charges(), multiplier)


def test_what_is_refused_leaves_no_trace(path):
    with create(path) as ledger:
        ledger.spend(0, 0, charges(), 10.0)
        before, spent, head = ledger.entries(), ledger.epsilon(), ledger.head()
        for attempt in (
            lambda: ledger.spend(1, 0, charges(), 0.01),
            lambda: ledger.spend(1, 0, charges(), 0.0),
            lambda: ledger.spend(0, 0, charges(), 10.0),
            lambda: ledger.spend(1, 0, charges()[:1], 10.0),
            lambda: ledger.spend(1, 0, [*charges(), Charge("A=2", 0.1, 1.0)], 10.0),
            lambda: ledger.spend(1, 0, [charges()[0], charges()[0]], 10.0),
            lambda: ledger.spend(1, 0, charges(1.5), 10.0),
            lambda: ledger.spend(1, 0, charges(math.nan), 10.0),
            lambda: ledger.spend(1, 0, charges(0.1, math.inf), 10.0),
            lambda: ledger.spend(1, 0, charges(0.1, -1.0), 10.0),
            lambda: ledger.spend(1, 0, charges(), math.nan),
            lambda: ledger.spend(1, 0, charges(), -1.0),
            lambda: ledger.spend(1, 0, charges(), math.inf),
            lambda: ledger.spend(-1, 0, charges(), 10.0),
            lambda: ledger.spend(1, -1, charges(), 10.0),
        ):
            with pytest.raises((BudgetExhausted, ValueError)):
                attempt()
            assert (ledger.entries(), ledger.epsilon(), ledger.head()) == (before, spent, head)
        # and the account in memory is that of the disk: the next spend costs what two steps cost
        assert ledger.spend(1, 0, charges(), 10.0) == pytest.approx(epsilon({Step(0.1, 0.1): 2}, 1e-5), rel=1e-9)


def test_an_attempt_is_charged_once_and_every_attempt_is_charged(path):
    with create(path) as ledger:
        ledger.spend(3, 0, charges(), 20.0)
        with pytest.raises(AlreadySpent, match="round 3, attempt 0"):
            ledger.spend(3, 0, charges(), 20.0)
        ledger.spend(3, 1, charges(), 20.0)
        assert ledger.released_rounds() == 1 and len(ledger.entries()) == 4
        assert ledger.epsilon() == pytest.approx(epsilon({Step(0.1, 0.05): 2}, 1e-5), rel=1e-9)
    with Ledger.open(path) as ledger, pytest.raises(AlreadySpent):
        ledger.spend(3, 1, charges(), 20.0)


def test_a_reopened_ledger_goes_on_where_it_stopped(path):
    with create(path, nominal=True) as ledger:
        for round_ in range(5):
            ledger.spend(round_, 0, charges(0.1, 1.0 + round_), 10.0)
        spent, entries, head = ledger.epsilon(), ledger.entries(), ledger.head()
    with Ledger.open(path) as ledger:
        assert (ledger.groups, ledger.delta, ledger.budget, ledger.nominal) == (GROUPS, 1e-5, 1.0, True)
        assert ledger.entries() == entries and ledger.head() == head
        assert ledger.epsilon() == pytest.approx(spent, rel=1e-9)
        assert ledger.replay() == pytest.approx(spent, rel=1e-9)
        assert ledger.spend(5, 0, charges(), 10.0) > spent
    first = entries[0]
    assert (first.sequence, first.round, first.attempt, first.group, first.sampling_rate) == (1, 0, 0, "A=0", 0.1)
    assert (first.sensitivity, first.sigma, first.sampling) == (1.0, 10.0, "without-replacement")


def test_an_interruption_at_any_statement_leaves_memory_and_disk_agreed(path, monkeypatch):
    """Ctrl-C before, inside and after the write: the next use of the same object reads the disk again."""
    from fedsw.privacy.accounting import journal

    with create(path) as ledger:
        ledger.spend(0, 0, charges(), 10.0)
        append = journal.Journal.append

        def before(self, key, row, *, synced):
            raise KeyboardInterrupt

        def after(self, key, row, *, synced):
            head = self.head
            append(self, key, row, synced=synced)
            self.head = head  # as if between COMMIT and the assignment
            raise KeyboardInterrupt

        monkeypatch.setattr(journal.Journal, "append", before)
        with pytest.raises(KeyboardInterrupt):
            ledger.spend(1, 0, charges(), 10.0)
        assert ledger.epsilon() == pytest.approx(epsilon({Step(0.1, 0.1): 1}, 1e-5), rel=1e-9)
        monkeypatch.setattr(journal.Journal, "append", after)
        with pytest.raises(KeyboardInterrupt):
            ledger.spend(1, 0, charges(), 10.0)
        monkeypatch.setattr(journal.Journal, "append", append)
        assert ledger.epsilon() == ledger.replay() == pytest.approx(epsilon({Step(0.1, 0.1): 2}, 1e-5), rel=1e-9)
        with pytest.raises(AlreadySpent):
            ledger.spend(1, 0, charges(), 10.0)
        ledger.spend(1, 1, charges(), 10.0)


def test_a_full_disk_releases_nothing_and_forgets_nothing(path):
    with create(path) as ledger:
        ledger.spend(0, 0, charges(), 10.0)
        pages = ledger._journal._database.execute("PRAGMA page_count").fetchone()[0]
        ledger._journal._database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            for round_ in range(1, 200):
                ledger.spend(round_, 0, charges(1e-6), 10.0)
        kept = ledger.released_rounds()
        ledger._journal._database.execute("PRAGMA max_page_count = 100000")
        ledger.spend(kept, 0, charges(1e-6), 10.0)
        assert ledger.released_rounds() == kept + 1 == len(ledger.entries()) // 2


def test_one_process_writes_and_any_may_look(path):
    with create(path) as ledger:
        ledger.spend(0, 0, charges(), 10.0)
        with pytest.raises(LedgerBusy, match=f"held for writing by process {os.getpid()}"):
            Ledger.open(path)
        with Ledger.open(path, read_only=True) as looking:
            assert looking.epsilon() == ledger.epsilon()
            ledger.spend(1, 0, charges(), 10.0)
            assert looking.epsilon() == ledger.epsilon() and len(looking.entries()) == 4
            with pytest.raises(LedgerBusy, match="reading only"):
                looking.spend(2, 0, charges(), 10.0)
    with pytest.raises(ValueError, match="closed"):
        ledger.spend(2, 0, charges(), 10.0)
    with Ledger.open(path) as ledger:
        ledger.spend(2, 0, charges(), 10.0)


@pytest.mark.parametrize("accountant", ["pld", "gdp-clt-poisson", "laplace"])
@pytest.mark.parametrize("delta", [1e-10, 1e-9, 1e-5])
def test_a_plan_by_a_multiplier_can_be_spent_at_every_delta_and_not_once_more(tmp_path, delta, accountant):
    """Epsilon of 1/m and of a ledger's Delta/sigma differ by round-off, by more than 1e-9 where delta is small."""
    for number, multiplier in enumerate((1.1872142037784645, 0.7, 2.3)):
        planned = epsilon_by(accountant, [(Step(1.0, 1 / multiplier), 1)], delta)
        for bound in (1.0, 0.3, 1.4847):
            path = tmp_path / f"{number}-{bound}.sqlite"
            with create(path, budget=planned, delta=delta, accountant=accountant) as ledger:
                ledger.spend(0, 0, charges(1.0, bound), multiplier * bound)
                with pytest.raises(BudgetExhausted):
                    ledger.spend(1, 0, charges(1.0, 0.01 * bound), multiplier * bound)


@pytest.mark.parametrize("accountant", ["gdp-clt-poisson", "laplace"])
def test_at_the_smallest_delta_a_closed_form_exceeds_its_budget_by_no_more_than_rounding(tmp_path, accountant):
    """What numerical composition is let differ by there, 5e-7, would be given away."""
    cost = epsilon_by(accountant, [(Step(1.0, 0.5), 1)], 1e-10)
    less = create(tmp_path / "less.sqlite", budget=cost * (1 - 1e-8), delta=1e-10, accountant=accountant)
    with less as ledger, pytest.raises(BudgetExhausted):
        ledger.spend(0, 0, charges(1.0, 0.5), 1.0)
    assert [name for name, known in ACCOUNTANTS.items() if known.may_differ(1e-10) > 1e-9] == ["pld"]


def test_a_ledger_reached_by_another_name_is_the_same_ledger(path, tmp_path):
    alias = tmp_path / "alias.sqlite"
    with create(path):
        alias.symlink_to(path)
        with pytest.raises(LedgerBusy):
            Ledger.open(alias)


def test_a_forked_child_may_not_spend(path):
    with create(path) as ledger:
        child = os.fork()
        if child == 0:
            try:
                ledger.spend(0, 0, charges(), 10.0)
            except LedgerBusy:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert ledger.entries() == []


def test_without_noise_epsilon_is_infinite_and_only_an_unlimited_ledger_allows_it(path, tmp_path):
    with create(path) as ledger, pytest.raises(BudgetExhausted, match="∞"):
        ledger.spend(0, 0, charges(), 0.0)
    with create(tmp_path / "free.sqlite", budget=math.inf) as free:
        assert free.spend(0, 0, charges(), 0.0) == math.inf == free.epsilon() == free.replay()
    with Ledger.open(tmp_path / "free.sqlite") as free:
        assert free.budget == math.inf == free.epsilon()


def test_a_release_that_nobody_can_move_is_free(path):
    with create(path) as ledger:
        nothing = [Charge("A=0", 0.0, 1.0), Charge("A=1", 0.1, 0.0)]
        assert ledger.spend(0, 0, nothing, 1.0) == 0.0
        assert len(ledger.entries()) == 2


def test_a_ledger_read_again_tells_everything_and_only_that(path):
    with create(path, nominal=True) as ledger:
        spent = ledger.spend(4, 2, charges(), 10.0)
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.groups == GROUPS and ledger.delta == 1e-5 and ledger.budget == 1.0
        assert ledger.nominal is True and ledger.guarantee is True and ledger.accountant == "pld"
        assert ledger.head().sequence == 1 and ledger.epsilon() == spent
        entries = [asdict(entry) for entry in ledger.entries()]
    later = {name: entries[1].pop(name) for name in columns.ADDED}
    assert later["lost"] is False
    assert entries[1] == {
        "sequence": 1,
        "round": 4,
        "attempt": 2,
        "group": "A=1",
        "sampling_rate": 0.05,
        "sensitivity": 1.0,
        "sampling": "without-replacement",
        "sigma": 10.0,
        "slicing": None,
    }
    steps = [(Step(e["sampling_rate"], e["sensitivity"] / e["sigma"]), 1) for e in entries[:1]]
    assert epsilon(steps, 1e-5) == pytest.approx(spent, rel=1e-9)


@pytest.mark.parametrize("accountant", ["gdp-clt-uniform", "gdp-clt-poisson", "rdp-wor"])
def test_a_comparison_accountant_decides_and_is_labelled(path, accountant):
    pytest.importorskip("dp_accounting")
    with create(path, accountant=accountant, budget=5.0) as ledger:
        for round_ in range(3):
            spent = ledger.spend(round_, 0, charges(), 2.0)
        assert spent == pytest.approx(epsilon_by(accountant, {Step(0.1, 0.5): 3}, 1e-5), rel=1e-9)
        assert ledger.guarantee is (accountant == "rdp-wor")
    with Ledger.open(path) as ledger:
        assert ledger.accountant == accountant and ledger.replay() == pytest.approx(spent, rel=1e-9)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"budget": 0.0}, "epsilon is 0.0"),
        ({"budget": -3.0}, "epsilon is -3.0"),
        ({"budget": math.nan}, "epsilon is nan"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"groups": ()}, "groups are"),
        ({"groups": ("a", "a")}, "groups are"),
        ({"accountant": "moments"}, "'moments'"),
    ],
)
def test_a_ledger_without_a_meaning_is_refused_and_no_file_is_made(path, change, named):
    with pytest.raises(ValueError, match=named):
        create(path, **change)
    assert not path.exists()


def test_an_existing_ledger_is_never_overwritten_and_a_missing_one_never_invented(path):
    create(path).close()
    with pytest.raises(FileExistsError, match="exists"):
        create(path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        Ledger.open(path.with_name("other.sqlite"))
    path.with_name("text.sqlite").write_text("not a database, but some text that is long enough" * 40)
    with pytest.raises(LedgerDamaged, match="not a ledger"):
        Ledger.open(path.with_name("text.sqlite"))
    sqlite3.connect(path.with_name("empty.sqlite")).close()
    path.with_name("empty.sqlite").touch()
    with pytest.raises(LedgerDamaged, match="not a ledger"):
        Ledger.open(path.with_name("empty.sqlite"))


def test_mixed_relations_are_refused(path):
    with create(path) as ledger:
        ledger.spend(0, 0, charges(), 10.0)
        with pytest.raises(ValueError, match="are without-replacement: .*nothing was charged"):
            ledger.spend(1, 0, [Charge(group, 0.1, 1.0, "poisson") for group in GROUPS], 10.0)


def test_a_thousand_rounds_are_charged_in_a_few_seconds(path):
    with create(path, budget=50.0) as ledger:
        seconds = []
        for round_ in range(300):
            began = perf_counter()
            ledger.spend(round_, 0, charges(0.1, 1.0, other=0.99), 4.0)
            seconds.append(perf_counter() - began)
        assert median(seconds[150:]) < 0.02  # about 2 ms on an idle core


def test_a_column_that_this_version_does_not_know_is_refused_and_one_that_a_row_lacks_has_its_meaning(
    tmp_path, monkeypatch
):
    """An older ledger opens; a newer one might cost something that is not seen here."""
    path = tmp_path / "own.ledger"
    with Ledger.create(path, groups=["a"], delta=1e-5, epsilon=1.0) as ledger:
        ledger.spend(0, 0, [Charge("a", 0.1, 1.0)], 5.0)
    monkeypatch.setitem(columns.ADDED, "by", "an older version")
    as_row = columns.as_row
    monkeypatch.setattr(ledgers, "as_row", lambda *given: {**as_row(*given), "by": "this version"})
    with Ledger.open(path) as ledger:
        before = ledger.epsilon()
        assert ledger.spend(1, 0, [Charge("a", 0.1, 1.0)], 5.0) > before
    monkeypatch.delitem(columns.ADDED, "by")
    with pytest.raises(LedgerDamaged, match="has the column 'by', which fedsw .* does not know"):
        Ledger.open(path)
