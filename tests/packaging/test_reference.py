"""Laws of the reference: it has every setting and every verb as they are now, and pages' links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *(ROOT / "docs").rglob("*.md")])
MOST_LINES = 120


def _reference() -> dict[str, str]:
    found = importlib.util.spec_from_file_location("reference", ROOT / ".ci" / "reference.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module.pages()


def test_the_reference_has_every_setting_and_every_verb_as_they_are():
    for name, text in _reference().items():
        written = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
        assert written == text, f"docs/reference/{name} is older than the code: run `make reference`"


def _anchors(path: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them, and those that the page gives."""
    text = path.read_text(encoding="utf-8")
    heads = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads} | set(
        re.findall(r'<a (?:id|name)="([^"]+)"', text)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = unquote(target).partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page}: {target} leads nowhere"
        if anchor and path.suffix == ".md":
            assert anchor in _anchors(path), f"{page}: {path.name} has no heading {anchor!r}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < MOST_LINES
