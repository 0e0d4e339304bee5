"""Laws of numbers for people: an epsilon or a delta that is claimed is never below the true one, wherever it stands."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsw._tools import text
from fedsw._tools.text import downward, upward
from tests.syntax import tree as tree_of

SOURCES = [path for folder in ("fedsw", "benchmarks", "simulations") for path in sorted(Path(folder).rglob("*.py"))]
FORMS = re.compile(r"^[#0 ,+-]*\d*,?(\.\d+)?[gef%]$")
NAMED = re.compile(
    r"epsilon|delta(?!_times)|spent|budget(?!_left)|\bclaim(ed)?\b(?!\.)|all_shown|\bsingle\b", re.IGNORECASE
)
ANNOUNCED = re.compile(r"((ε|δ|epsilon|delta|μ)( spent)?( ?(=|of|at|is|≥|≤|to|up to))?|\bat most \() ?$")
BY_ANOTHER_NAME = re.compile(r"\w+ ?= ?$")
DRAWN = {"annotate", "text", "bar_label", "set_xticks", "set_yticks"}
"""Methods of a figure that write numbers into it."""
NOT_PRINTED = {
    "simulations/papers/computed/noise.py",  # names of measured values, by the epsilons that a study asks for
    "simulations/papers/computed/postprocessing.py",
    "simulations/papers/computed/stored.py",
    "simulations/papers/drawn/errors.py",  # ticks of an axis
    "fedsw/audit/canary_pairs.py",
}


@pytest.mark.parametrize("cell", ["=1+1", "+a", "-cmd|' /C calc'!A0", "@SUM(A1)", "\t=1"])
def test_what_a_spreadsheet_would_run_gets_an_apostrophe_and_is_warned_of(cell):
    assert text.for_spreadsheets(cell) == f"'{cell}"
    warning = text.warning_of_formulas(["a", cell, cell, "=2"])
    assert warning is not None and "and 1 more" in warning and "--spreadsheet" in warning


@pytest.mark.parametrize("cell", ["a=1", "", "-3.5", "+1e5", -3, 2.5, None, "a@b"])
def test_numbers_and_other_texts_stay_as_they_are(cell):
    assert text.for_spreadsheets(cell) is cell and text.warning_of_formulas([cell]) is None


@given(st.floats(1e-300, 1e300), st.integers(2, 8))
def test_a_number_is_rounded_to_the_side_that_is_asked_for_and_by_one_unit_at_most(value, digits):
    up, down = float(upward(value, digits)), float(downward(value, digits))
    assert down <= value <= up
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    assert up - value <= unit * (1 + 1e-9) and value - down <= unit * (1 + 1e-9)


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (1.0, "1", "1"),
        (0.1 / 300, "0.000334", "0.000333"),
        (1e-5, "1e-05", "1e-05"),
        (1.0000001, "1.01", "1"),
        (9.999, "10", "9.99"),
        (0.0, "0", "0"),
        (-0.1234, "-0.123", "-0.124"),
        ("inf", "∞", "∞"),
        (math.nan, "–", "–"),
        (None, "–", "–"),
    ],
)
def test_what_is_written_of_a_number(value, up, down):
    assert (upward(value), downward(value)) == (up, down)


def rounded_to_the_nearest(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a number that is named like an epsilon or a delta, or announced as one, is written to the nearest digit."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            if isinstance(node, ast.Call) and named(node, "number") and NAMED.search(ast.unparse(node.args[0])):
                yield node.lineno, ast.unparse(node)
            continue
        before = ""
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                form = "" if part.format_spec is None else ast.unparse(part.format_spec).strip("f'\"")
                written = bool(FORMS.match(form)) or (isinstance(part.value, ast.Call) and named(part.value, "number"))
                claimed = ANNOUNCED.search(before) or NAMED.search(ast.unparse(part.value))
                if written and claimed and not before.endswith("-epsilon-"):  # the name of a run
                    yield part.lineno, ast.unparse(part.value)
            before = part.value if isinstance(part, ast.Constant) else ""


def drawn_to_the_nearest(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where a function whose words have an epsilon or a delta in them writes a number to the nearest digit in a figure.

    The number may have any name there, unless other words come before it.
    """
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        words = [each.value for each in ast.walk(function) if isinstance(each, ast.Constant)]
        if not any(isinstance(each, str) and re.search("[εδ]", each) for each in words):
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in DRAWN:
                for text in (each for each in ast.walk(call) if isinstance(each, ast.JoinedStr)):
                    yield from _numbers_without_a_name(text)


def _numbers_without_a_name(text: ast.JoinedStr) -> Iterator[tuple[int, str]]:
    before = ""
    for part in text.values:
        if isinstance(part, ast.FormattedValue):
            form = "" if part.format_spec is None else ast.unparse(part.format_spec).strip("f'\"")
            written = (
                "." in form and FORMS.match(form) or isinstance(part.value, ast.Call) and named(part.value, "number")
            )
            if written and not BY_ANOTHER_NAME.search(before):
                yield part.lineno, ast.unparse(part.value)
        before = part.value if isinstance(part, ast.Constant) else ""


def named(call: ast.Call, name: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == name and bool(call.args)


def test_no_epsilon_and_no_delta_is_written_to_the_nearest_digit():
    found = [
        f"{path}:{line}: {text}"
        for path in SOURCES
        if str(path) not in NOT_PRINTED
        for tree in [tree_of(path.resolve())]
        for search in (rounded_to_the_nearest, drawn_to_the_nearest)
        for line, text in search(tree)
    ]
    assert SOURCES and not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        *("f'ε = {x:.3g}'", "f'{epsilon:.4g}'", "number(found.delta)", "f'at δ = {number(x)}'", "f'{budget:g}'"),
        *("f'μ of {x:.4g}'", "f'at most ({x:.4g}, {y:.3g})'"),
    ],
)
def test_the_search_finds_what_it_looks_for(code):
    assert list(rounded_to_the_nearest(ast.parse(code)))


@pytest.mark.parametrize("text", ["f'{height:.3g}'", "f'{number(height)}'", "f'{height:.1%}'"])
def test_the_search_finds_numbers_in_figures_of_epsilon_whatever_they_are_called(text):
    code = f"def bars(axes):\n    axes.annotate({text}, (0, 1))\n    axes.set(ylabel='ε')"
    assert list(drawn_to_the_nearest(ast.parse(code)))
    assert not list(drawn_to_the_nearest(ast.parse(code.replace("ylabel='ε'", "ylabel='score'"))))
    assert not list(drawn_to_the_nearest(ast.parse(code.replace("f'", "f'σ = "))))


ROOT = Path(__file__).parents[2]


def test_a_table_is_its_headings_a_line_and_its_rows():
    assert text.table(("a", "b"), [(1, "x"), ("<y>", 0.5)]) == "| a | b |\n|---|---|\n| 1 | x |\n| <y> | 0.5 |"
    assert text.table(("a",), []) == "| a |\n|---|"


def test_bars_and_ends_of_lines_in_a_cell_make_no_other_cell():
    cells = ("p || q", "one\ntwo", "`a|b`")
    line = text.table(("x", "y", "z"), [cells]).splitlines()[-1]
    assert [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] == [
        r"p \|\| q",
        "one<br>two",
        r"`a\|b`",
    ]


def test_a_row_of_another_length_is_refused_by_name():
    with pytest.raises(ValueError, match=r"2 columns has a row of 3: \[1, 2, 3\]"):
        text.table(("a", "b"), [(1, 2), (1, 2, 3)])


def test_no_other_file_puts_a_table_together():
    own = ROOT / "fedsw" / "_tools/text.py"
    for folder in ("fedsw", "benchmarks", "clients", "server", "docs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found = re.search(r'---\||"\| |\| "\.join|\{.* \| .*\} \|"', path.read_text(encoding="utf-8"))
            assert found is None or path == own, f"{path}: {found[0]!r}; fedsw._tools.text.table writes tables"
