"""Laws of the hand-written pages: they are short, and each begins by saying for whom it is."""

from __future__ import annotations

import importlib.util
import itertools
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from benchmarks.tables import TABLES, filled
from tests.site.pages import BUILT, built, committed

ROOT = Path(__file__).resolve().parents[2]
FOR_NOBODY_NEW = {"docs/changelog.md", "docs/contributing.md", "docs/security-policy.md"}
"""Pages that the site fills with a document at the root."""

MOST_WORDS, MOST_WORDS_OF_A_PAGE = 55_000, 2_000


def listed() -> dict[str, str]:
    """The text of every hand-written page by its name."""
    paths = [*committed(), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}


PAGES = listed()


def words(text: str) -> int:
    """Words of a page: what has a letter or a digit, outside front matter and code."""
    prose = re.sub(r"\A---\n.*?\n---\n|^(`{3,}).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    return sum(bool(re.search(r"\w", word)) for word in prose.split())


def first_paragraph(text: str) -> str:
    """What stands below the heading, up to an empty line."""
    found = re.search(r"^# .*\n\n((?:.+\n)+)", text, flags=re.MULTILINE)
    return found[1] if found else ""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_short(name):
    assert words(PAGES[name]) < MOST_WORDS_OF_A_PAGE


@pytest.mark.parametrize("name", sorted({name for name in PAGES if name.startswith("docs/")} - FOR_NOBODY_NEW))
def test_a_page_begins_by_saying_for_whom_it_is(name):
    assert re.search(r"\bFor (?!who)\w+", first_paragraph(PAGES[name])), name


def emphasised(text: str) -> list[str]:
    """What Markdown sets in italics or bold type, with the character before it."""
    plain = re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL)
    lines = [block.children or [] for block in MarkdownIt("commonmark").enable("table").parse(plain)]
    found = []
    for line in lines:
        for start, token in enumerate(line):
            if token.type in ("em_open", "strong_open"):
                close = token.type.replace("open", "close")
                inside = itertools.takewhile(lambda each, close=close: each.type != close, line[start + 1 :])
                before = line[start - 1].content[-1:] if start else ""
                found.append(before + "".join(each.content for each in inside if each.type == "text"))
    return found


def test_a_subscript_before_another_is_read_as_emphasis():
    assert emphasised("n'_{c,j} of N_{c,j}, and *so* `a'_{b}` of c_{d}") == ["'{c,j} of N", " so"]


@pytest.mark.parametrize("name", PAGES)
def test_no_formula_of_a_page_is_read_as_emphasis(name):
    assert [words for words in emphasised(PAGES[name]) if re.search("^['′)]|[{}]", words)] == [], (
        "write \\_ for a subscript"
    )


def test_all_hand_written_pages_together_are_short():
    assert sum(map(words, PAGES.values())) <= MOST_WORDS


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Two words.", 2),
        ("| a | b |\n|---|---|", 2),
        ("One\n```bash\nrm it all\n```\ntwo", 2),
        ("---\na: b\n---\n# One", 1),
    ],
)
def test_words_are_those_outside_front_matter_and_code(text, count):
    assert words(text) == count


def test_every_mark_of_a_page_is_a_table_s_and_every_table_stands_on_one_page():
    marks = [mark for text in PAGES.values() for mark in re.findall(r"<!-- ([\w-]+: .*?) -->", text)]
    assert sorted(marks) == sorted(TABLES)
    for module in {mark.rpartition(" ")[2] for mark in marks}:
        assert importlib.util.find_spec(module) is not None, module


def test_a_mark_is_followed_by_its_table_and_one_of_no_table_is_refused():
    page = "One.\n\n<!-- slowest-tests: python -m tests.slowest -->\n\nTwo."
    assert filled(page).split("-->\n\n")[1].startswith("| file | test | s | guards |\n|---|")
    with pytest.raises(KeyError, match="gone: python -m benchmarks.gone"):
        filled("<!-- gone: python -m benchmarks.gone -->")


@pytest.mark.parametrize("name", sorted(name for name in BUILT if name.startswith("docs/measured/")))
def test_a_page_of_results_is_tables_and_little_else(name):
    assert words("\n".join(line for line in built(name).splitlines() if not line.startswith("|"))) <= 500


def test_every_test_that_a_page_names_is_there():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    defined = set(re.findall(r"\bdef (test_\w+)", "\n".join(sources)))
    named = {name for text in PAGES.values() for name in re.findall(r"`(test_\w+)`", text)}
    assert len(named) > 300 and named - defined - {"test_records"} == set()  # which is a setting
