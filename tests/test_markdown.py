"""Laws of the tables in Markdown: what a cell reads is what is shown, and one template writes all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedsw import markdown

ROOT = Path(__file__).parents[1]


def test_a_table_is_its_headings_a_line_and_its_rows():
    assert markdown.table(("a", "b"), [(1, "x"), ("<y>", 0.5)]) == "| a | b |\n|---|---|\n| 1 | x |\n| <y> | 0.5 |"
    assert markdown.table(("a",), []) == "| a |\n|---|"


def test_bars_and_ends_of_lines_in_a_cell_make_no_other_cell():
    cells = ("p || q", "one\ntwo", "`a|b`")
    line = markdown.table(("x", "y", "z"), [cells]).splitlines()[-1]
    assert [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] == [
        r"p \|\| q",
        "one<br>two",
        r"`a\|b`",
    ]


def test_a_row_of_another_length_is_refused_by_name():
    with pytest.raises(ValueError, match=r"2 columns has a row of 3: \[1, 2, 3\]"):
        markdown.table(("a", "b"), [(1, 2), (1, 2, 3)])


def test_no_other_file_puts_a_table_together():
    own = ROOT / "fedsw" / "markdown.py"
    for folder in ("fedsw", "benchmarks", "clients", "server", "docs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found = re.search(r'---\||"\| |\| "\.join|\{.* \| .*\} \|"', path.read_text(encoding="utf-8"))
            assert found is None or path == own, f"{path}: {found[0]!r}; fedsw.markdown.table writes tables"
