"""The quick stage runs some cases of the tests that take longest, the slow stage all others: none is lost."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.slowest import SLOWEST, table
from tests.stages import FEW, set_aside

TESTS = Path(__file__).parent


class Case(SimpleNamespace):
    """What the rule reads and marks of a test's case."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        super().__init__(nodeid=nodeid, marks=list(marks))

    def get_closest_marker(self, name: str) -> str | None:
        return name if name in self.marks else None

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks.append(mark.name)


def quick(cases: list[Case]) -> list[int]:
    """The places of the cases that are quick after the rule."""
    set_aside(cast(Any, cases))
    return [place for place, case in enumerate(cases) if "slow" not in case.marks]


@pytest.mark.parametrize(("few", "count"), [(0, 1), (1, 2), (2, 5), (3, 8), (5, 15), (7, 3)])
def test_so_many_cases_are_quick_as_the_table_says_and_they_are_spread_evenly(
    few: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FEW, "rooms/test_doors", {"a_door": few})
    chosen = quick([Case(f"tests/rooms/test_doors.py::test_a_door[{place}]") for place in range(count)])
    assert len(chosen) == min(few, count)
    steps = [after - before for before, after in zip(chosen, chosen[1:], strict=False)]
    assert not steps or max(steps) - min(steps) <= 1
    assert quick([Case("tests/rooms/test_doors.py::test_a_window[0]")]) == [0], "what the table does not name is quick"


def test_a_case_that_is_slow_by_itself_takes_no_quick_ones_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEW, "rooms/test_doors", {"a_door": 2})
    names = [f"tests/rooms/test_doors.py::test_a_door[{place}]" for place in range(6)]
    assert len(quick([*(Case(name, "slow") for name in names[:4]), *map(Case, names[4:])])) == 2


def test_every_quick_test_has_one_case_that_is_there_for_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FEW, "rooms/test_doors", {"a_door": 2, "a_gate": 0})
    cases = [
        Case(f"tests/rooms/test_doors.py::test_a_{name}[{place}]") for name in ("door", "gate") for place in "0123"
    ]
    set_aside(cast(Any, cases))
    assert [case.marks for case in cases] == [[], ["slow"], ["again"], ["slow"], *[["slow"]] * 4]


@pytest.mark.parametrize("path", FEW)
def test_every_test_of_the_table_is_there(path: str) -> None:
    text = (TESTS / f"{path}.py").read_text(encoding="utf-8")
    assert {f"test_{name}" for name in FEW[path]} <= set(re.findall(r"^def (\w+)\(", text, re.M))


def test_twenty_slow_tests_are_named_that_are_there_and_what_each_guards() -> None:
    assert len(SLOWEST) == 20 == len(table().splitlines()) - 2
    seconds = [row[2] for row in SLOWEST]
    assert seconds == sorted(seconds, reverse=True)
    for file, name, _, guards in SLOWEST:
        assert guards and f"def test_{name}(" in (TESTS / f"{file}.py").read_text(encoding="utf-8"), name
