"""Tutorials are notebooks as text: `make docs` executes them, and their outputs are in no commit."""

from __future__ import annotations

import ast
import re

import pytest

from tests.site.pages import BUILT, ROOT

FOLDER = ROOT / "docs" / "tutorials"
NAMES = ("audit-a-run", "autoencoder", "own-model", "own-tables", "synthetic-table", "three-hosts")
_CELL = re.compile(r"^```\{code-cell\}\n((?:^:[^\n]*\n)*)(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def text_of(name: str) -> str:
    return (FOLDER / f"{name}.md").read_text(encoding="utf-8")


def test_all_are_there_and_none_with_outputs():
    assert sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index") == sorted(NAMES)
    assert not list(FOLDER.glob("**/*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_a_tutorial_is_short_and_says_where_to_go_next(name):
    text = text_of(name)
    assert text.startswith("---\nfile_format: mystnb\nkernelspec:\n  name: python3\n")
    assert len(_CELL.sub("", text).split()) < 900 and len(_CELL.findall(text)) >= 5
    assert re.search(r"\n## Where next\n\n(- .*\n(  .*\n)*)+\Z", text), "it ends in a list of links"
    assert "guarantee" in text and "\n# " in text


@pytest.mark.parametrize("name", NAMES)
def test_the_links_of_a_tutorial_lead_somewhere(name):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(name))
    places = {link: (FOLDER / link).resolve() for link in links}
    assert places and not [
        link for link, place in places.items() if not (place.is_file() or place.relative_to(ROOT).as_posix() in BUILT)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_can_be_read_by_python_or_is_a_shell_s(name):
    for _, cell in _CELL.findall(text_of(name)):
        if not cell.startswith("%%bash\n"):
            ast.parse(cell)
