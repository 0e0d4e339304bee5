"""Laws of the hand-written pages: they are short, and each begins by saying for whom it is."""

from __future__ import annotations

import importlib.util
import itertools
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.site.pages import committed

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {
    "docs/own-data-results.md": "benchmarks.own_data",
    "docs/performance.md": "make bench",
    "docs/plan-results.md": "benchmarks.forecast",
    **dict.fromkeys(("docs/results.md", "docs/results-generators.md", "docs/results-running.md"), "benchmarks.report"),
    **dict.fromkeys(
        (f"docs/papers/{name}.md" for name in ("rco", "rll", "rr", "sketches", "spf")), "simulations.papers"
    ),
}
"""Pages that a command writes, and the command."""

FOR_NOBODY_NEW = {"docs/changelog.md", "docs/contributing.md", "docs/security-policy.md"}
"""Pages that the site fills with a document at the root."""

MOST_WORDS, MOST_WORDS_OF_A_PAGE = 52_000, 2_000

WRITTEN_BY_A_COMMAND = re.compile(r"<!-- ([\w-]+): python -m ([\w.]+) -->\n.*?<!-- end of \1 -->", re.DOTALL)
"""What stands between the marks of a command: the name of the part, and the module that writes it."""


def listed() -> dict[str, str]:
    """The text of every hand-written page by its name."""
    paths = [*committed(), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}
    return {name: text for name, text in texts.items() if name not in GENERATED}


PAGES = listed()


def words(text: str) -> int:
    """Words of a page: what has a letter or a digit, outside front matter, code and what a command writes."""
    own = WRITTEN_BY_A_COMMAND.sub("", text)
    prose = re.sub(r"\A---\n.*?\n---\n|^(`{3,}).*?^\1", "", own, flags=re.DOTALL | re.MULTILINE)
    return sum(bool(re.search(r"\w", word)) for word in prose.split())


def first_paragraph(text: str) -> str:
    """What stands below the heading, up to an empty line."""
    found = re.search(r"^# .*\n\n((?:.+\n)+)", text, flags=re.MULTILINE)
    return found[1] if found else ""


def test_what_is_said_to_be_generated_is_there():
    assert [name for name in GENERATED if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_short(name):
    assert words(PAGES[name]) < MOST_WORDS_OF_A_PAGE


@pytest.mark.parametrize("name", sorted({name for name in PAGES if name.startswith("docs/")} - FOR_NOBODY_NEW))
def test_a_page_begins_by_saying_for_whom_it_is(name):
    assert re.search(r"\bFor (?:a|an|the|who|whoever|looking|anyone)\b", first_paragraph(PAGES[name])), name


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
        ("One\n<!-- a: python -m b.c -->\n\n| x |\n\n<!-- end of a -->\ntwo", 2),
        ("<!-- a: python -m b -->\nx\n<!-- end of a -->\none\n<!-- d: python -m b -->\ny\n<!-- end of d -->", 1),
        ("<!-- a -->\none\n<!-- end of a -->", 5),
        ("<!-- a: begin -->\none\n<!-- end of a -->", 6),
        ("<!-- a: python -m b -->\none\n<!-- end of d -->", 8),
        ("<!-- a: python -m b -->\none", 5),
    ],
)
def test_words_are_those_outside_code_and_outside_the_marks_of_a_named_command(text, count):
    assert words(text) == count


def test_what_stands_between_marks_is_written_by_a_command_that_is_there_and_knows_the_mark():
    marked = [match for text in PAGES.values() for match in WRITTEN_BY_A_COMMAND.findall(text)]
    assert {name for name, _ in marked} >= {"table", "bytes", "masks", "masked"}
    for name, module in marked:
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None, module
        files = [Path(spec.origin)] if not spec.submodule_search_locations else Path(spec.origin).parent.glob("*.py")
        sources = " ".join(path.read_text(encoding="utf-8") for path in files)
        assert f"<!-- {name}: python -m {module} -->" in sources or "<!-- {name}: " in sources, (name, module)


@pytest.mark.parametrize("name", [name for name in GENERATED if name.startswith(("docs/results", "docs/performance"))])
def test_a_page_of_results_is_tables_and_little_else(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert words("\n".join(line for line in text.splitlines() if not line.startswith("|"))) <= 500


def test_every_test_that_a_page_names_is_there():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    defined = set(re.findall(r"\bdef (test_\w+)", "\n".join(sources)))
    named = {name for text in PAGES.values() for name in re.findall(r"`(test_\w+)`", text)}
    assert len(named) > 300 and named - defined - {"test_records"} == set()  # which is a setting
