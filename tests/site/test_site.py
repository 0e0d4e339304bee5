"""Laws of the site: it builds without a warning, fetches nothing, is searched without a server, and axe-core agrees."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedsw
from tests.browser import Opened, opened

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed)\b[^>]*\ssrc=[\"']?(?:https?:)?//"
    r"|<link\b(?![^>]*rel=[\"']?(?:canonical|next|prev|author|license))[^>]*\shref=[\"']?(?:https?:)?//",
    flags=re.IGNORECASE,
)
STYLED = re.compile(r"url\([\"']?(?:https?:)?//|@import\s+[\"'](?:https?:)?//", flags=re.IGNORECASE)
LOOKED_AT = (
    "index",
    "start",
    "choose",
    "glossary",
    "api/audit",
    "guarantees/index",
    "tutorials/own-tables",
    "gallery/index",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: notebooks and gallery are run, and a warning fails it."""
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--doctree-dir", str(place / "doctrees")]
    command += ["--quiet", "--fail-on-warning", "--keep-going", str(ROOT / "docs"), str(place / "html")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return place / "html"


@pytest.fixture(scope="module")
def view() -> Iterator[Opened]:
    with opened() as page:
        yield page


def fetched(text: str) -> bool:
    return bool(FETCHED.search(text) or STYLED.search(text))


def test_no_page_script_or_style_fetches_anything(site):
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(pages) > 60
    assert [page.relative_to(site).as_posix() for page in pages if fetched(page.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ('<script src="https://cdn.example.org/x.js"></script>', True),
        ('<link rel="stylesheet" href="//fonts.example.org/a.css">', True),
        ("@font-face { src: url(https://example.org/a.woff2) }", True),
        ('<a href="https://example.org">there</a>', False),
        ('<link rel="canonical" href="https://example.org/">', False),
        ('<img src="_images/page.png">', False),
    ],
)
def test_what_is_fetched_is_distinguished_from_what_is_linked(text, asks):
    assert fetched(text) is asks


def test_every_public_name_has_its_text(site):
    text = (site / "api" / "index.html").read_text(encoding="utf-8")
    assert [name for name in fedsw.__all__ if f'id="fedsw.{name}"' not in text] == []


def test_every_method_of_the_gallery_has_a_picture(site):
    scripts = [path.stem for path in (ROOT / "docs" / "examples" / "gallery").glob("*.py")]
    assert len(scripts) >= 9
    for script in scripts:
        assert list((site / "_images").glob(f"sphx_glr_{script}_001.png")), script


# The reference has hundreds of names of one form, which axe-core would look at for a minute and a half.
_FEWER_NAMES = "[...document.querySelectorAll('dl.py')].slice(25).forEach(each => each.remove())"


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_page_asks_for_files_alone_and_axe_finds_no_violation(site, view, name):
    view.asked.clear(), view.faults.clear()
    view.goto(site / f"{name}.html")
    assert (view.outside(), view.faults) == ([], [])
    view.page.evaluate(_FEWER_NAMES)
    assert view.violations() == {}


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_page_is_no_wider_than_a_telephone(site, view, name):
    view.page.set_viewport_size({"width": 390, "height": 900})
    view.goto(site / f"{name}.html")
    assert view.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_the_search_finds_a_word_without_a_server(site, view):
    view.asked.clear()
    view.goto(site / "search.html", "?q=cotangents")
    view.page.wait_for_selector('ul.search li a[href*="guarantees/rank-matching"]')
    assert view.outside() == []
