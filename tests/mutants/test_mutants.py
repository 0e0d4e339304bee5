"""Laws of the table of mutants, and of the run that says which of them tests notice."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT
from tests.mutants.table import BadMutant, Mutant, checked, read, sample
from tests.mutants.trial import Nursery, copies, mutated

SUBJECTS = {
    "accounting", "clipping", "deploy", "device", "held_out", "ledger", "lifetime", "local", "messages", "noise",
    "ranks", "records", "sampling", "sensitivity", "sketched_runs", "sketches", "tasks", "units",
}  # fmt: skip


def test_every_mutant_applies_exactly_once_and_its_tests_are_there():
    assert checked(read(), ROOT) == []


def test_the_table_breaks_everything_that_a_guarantee_rests_on():
    mutants = read()
    assert {mutant.subject for mutant in mutants} == SUBJECTS
    assert len(mutants) >= 40
    assert all(mutant.breaks.endswith(".") and 20 < len(mutant.breaks) < 130 for mutant in mutants)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in mutants}) == len(mutants)


def test_a_mutant_whose_text_or_test_is_gone_is_an_error_and_no_skip(tmp_path):
    (tmp_path / "product.py").write_text("a = 1\nb = 1\n")
    (tmp_path / "test_it.py").write_text("def test_it(): ...\n")
    good = {"name": "m", "subject": "s", "breaks": "b", "file": "product.py", "old": "a = 1", "new": "a = 2"}
    wrong = [
        ({"old": "c = 1"}, "0 times"),
        ({"old": "= 1"}, "2 times"),
        ({"new": "a = 1"}, "once is needed"),
        ({"file": "gone.py"}, "gone.py is gone"),
        ({"tests": ("test_gone.py",)}, "test_gone.py are gone"),
        ({"tests": ("test_it.py::test_other",)}, "no test test_other"),
        ({"tests": ()}, "no test should notice"),
    ]
    Mutant(**good, tests=("test_it.py::test_it",)).check(tmp_path)
    for change, words in wrong:
        with pytest.raises(BadMutant, match=words):
            Mutant(**{**good, "tests": ("test_it.py",), **change}).check(tmp_path)


def test_samples_take_turns_until_every_mutant_was_in_one_and_always_hold_the_named():
    mutants = read()
    today = datetime.date(2026, 1, 1).toordinal()
    named = {mutant.name for mutant in mutants if mutant.always}
    assert len(named) >= 7
    met = set()
    for day in range(today, today + -(-(len(mutants) - len(named)) // 20)):
        names = [mutant.name for mutant in sample(mutants, 20, day)]
        assert named <= set(names) and len(names) == len(named) + 20
        met |= set(names)
    assert met == {mutant.name for mutant in mutants}


TREE = {
    "pyproject.toml": "[tool.pytest.ini_options]\n",
    "product.py": "def double(x):\n    return 2 * x\n\n\nUNUSED = 1\n",
    "test_it.py": """
import pytest
from product import double

def test_two_is_doubled(): assert double(2) == 4
def test_zero_stays(): assert double(0) == 0

@pytest.mark.skip
def test_skipped(): ...
""",
}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    root: Path = tmp_path_factory.mktemp("tree")
    for name, text in TREE.items():
        (root / name).write_text(text)
    with copies(root, 1) as places, Nursery(places[0], packages=("hypothesis",)) as found:
        yield found


def _mutant(old: str, new: str, *tests: str) -> Mutant:
    return Mutant("m", "s", "b", "product.py", old, new, tests or ("test_it.py",))


def test_a_mutant_that_no_test_notices_survives_and_one_that_is_noticed_is_killed_by_that_test(nursery):
    unnoticed = _mutant("UNUSED = 1", "UNUSED = 2")
    noticed = _mutant("2 * x", "x + 3", "test_it.py::test_two_is_doubled")
    zero = _mutant("2 * x", "x + 2")
    assert nursery.tried(unnoticed).verdict == "survived"
    found = nursery.tried(noticed)
    assert (found.verdict, found.by) == ("killed", "test_it.py::test_two_is_doubled")
    assert nursery.tried(zero).by == "test_it.py::test_zero_stays"
    assert nursery.ran(["test_it.py"]).verdict == "survived", "the copy is as it was"


@pytest.mark.parametrize(
    ("old", "new", "tests", "words"),
    [
        ("def double", "def other", (), "pytest ended with"),
        ("return 2 * x", "return y", (), "broke more than a law"),
        ("UNUSED = 1", "raise SystemExit", (), "pytest ended with"),
        ("UNUSED = 1", "import time; time.sleep(0)", ("test_it.py::test_skipped",), "every test was skipped"),
        ("is not there", "at all", (), "0 times"),
    ],
)
def test_a_mutant_that_breaks_more_than_a_law_or_meets_no_test_is_an_error(nursery, old, new, tests, words):
    outcome = nursery.tried(_mutant(old, new, *tests))
    assert outcome.verdict == "error" and words in outcome.by


def test_tests_that_never_end_are_an_error(nursery):
    with_a_hang = _mutant("return 2 * x", "while True: pass")
    with mutated(nursery.copy, with_a_hang):
        outcome = nursery.ran(["test_it.py"], patience=3.0)
    assert outcome.verdict == "error" and "not done after 3 s" in outcome.by


def test_code_from_elsewhere_is_an_error(nursery, tmp_path):
    """As an editable installation would be, that is found before the copy."""
    (tmp_path / "product.py").write_text("double = lambda x: 2 * x\n")
    (nursery.copy / "test_elsewhere.py").write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "import product\n\ndef test_it(): assert product.double(1) == 2\n"
    )
    outcome = nursery.ran(["test_elsewhere.py"])
    assert outcome.verdict == "error" and "code from elsewhere" in outcome.by
