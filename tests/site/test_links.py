"""Laws of references: every page, file and heading that source, tests and pages name is there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.site.pages import BUILT, built
from tests.site.test_words import FOR_NOBODY_NEW

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".ci", ".github", "benchmarks", "clients", "docs", "fedsw", "server", "simulations", "tests")
KINDS = {".md", ".py", ".toml", ".yml", ".rst", ".tex", ".ipynb"}
WRITTEN = ("docs/_build", "docs/gallery", "docs/api/generated")
"""Folders of pages that are written with the site; the references are, too, and are made for this test."""


@cache
def texts() -> dict[str, str]:
    """Every text that may name a page, by its name: read and built once, when a test asks."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS]
    names = {path.relative_to(ROOT).as_posix(): path for path in [*paths, *ROOT.glob("*.md"), ROOT / "pyproject.toml"]}
    there = {name: path for name, path in names.items() if name not in BUILT and not name.startswith(WRITTEN)}
    written = {name: path.read_text(encoding="utf-8") for name, path in there.items()}
    return written | {name: built(name) for name in BUILT}


def is_page(name: str) -> bool:
    return name in texts() and name.endswith(".md")


@cache
def anchors(name: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", texts()[name], flags=re.M | re.S), flags=re.M):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()).replace(
            " ", "-"
        )
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return {
        *found,
        *re.findall(r'(?:id|name)="([\w-]+)"', texts()[name]),
        *re.findall(r"^\(([\w-]+)\)=$", texts()[name], re.M),
    }


def faults(name: str, text: str) -> list[str]:
    """References of a text that lead nowhere: links, if it is a page, and paths that begin with docs/."""
    named = re.findall(r"(?<![\w./-])docs/([\w./-]+\.(?:md|py|png|svg|diff|toml))(#[\w-]+)?(?![\w*])", text)
    targets = [(f"docs/{path}", anchor) for path, anchor in named]
    if is_page(name):
        prose = re.sub(r"^(`{3,}).*?^\1|`[^`\n]*`", "", text, flags=re.M | re.S)
        for path, anchor in re.findall(r"\]\(<?((?!\w+:)[^)#\s>]*)(#[^)\s>]+)?>?\)", prose):
            target = (ROOT / name).parent / path if path else ROOT / name
            targets.append((_relative(target), anchor))
    return sorted({f"{path}{anchor}" for path, anchor in targets if not _leads_somewhere(path, anchor)})


def _relative(path: Path) -> str:
    try:
        return path.resolve().relative_to(ROOT).as_posix()
    except ValueError:
        return path.as_posix()


def _leads_somewhere(path: str, anchor: str) -> bool:
    if path in FOR_NOBODY_NEW or path.startswith(WRITTEN):
        return True
    there = path in BUILT or (ROOT / path).exists()
    return there and (not anchor or not is_page(path) or anchor[1:] in anchors(path))


def test_a_reference_that_leads_nowhere_is_a_fault():
    page, anchor = "docs/guarantees/no-such-page" + ".md", "#no-such-heading"
    assert faults("fedsw/one.py", f"Source: {page}, and docs/guarantees/index.md.") == [page]
    links = f"[one](docs/data.md{anchor}) [two](docs/data.md) `[three](nowhere.md)` [four]({anchor})"
    assert faults("README.md", links) == [f"README.md{anchor}", f"docs/data.md{anchor}"]


def test_every_reference_leads_somewhere():
    assert {name: wrong for name, text in texts().items() if (wrong := faults(name, text))} == {}


def test_nothing_is_installed_by_a_name_that_nobody_has_published():
    """Whoever takes the name in a package index would run code at every hospital that follows the page."""
    command = re.compile(r"pip3? (?:install|download)[^\n|`;#]*")
    by_name = re.compile(r"[\s'\"]fedsw(?:\[|['\"](?!s\b)|\s|$)")
    found = [
        f"{name}: {match[0]}"
        for name, text in texts().items()
        if not name.startswith("tests/")
        for match in command.finditer(text)
        if by_name.search(match[0])
    ]
    assert found == []


# Files and modules of the package

_PATH = re.compile(r"`((?:fedsw|tests|simulations|benchmarks|clients|server(?!/nodes))/[\w./-]+)(?:::\w+)?`")
_MODULE = re.compile(r"`fedsw((?:\.\w+)+)`")
_IN_A_ROOM = re.compile(r"`((?:cli|desk|federation|learning|experiment|runs|privacy|mathematics|_tools)/[\w./-]+\.py)`")


@cache
def sources() -> dict[str, str]:
    """Texts of the package by their names."""
    return {name: text for name, text in texts().items() if name.startswith("fedsw/")}


def nowhere(text: str) -> list[str]:
    """Paths and dotted names of the package, in backticks, that a text names and that are nowhere."""
    named = [*_PATH.findall(text), *(f"fedsw/{path}" for path in _IN_A_ROOM.findall(text))]
    paths = [path for path in named if not (ROOT / path).exists()]
    return sorted({*paths, *(f"fedsw{name}" for name in _MODULE.findall(text) if not _is_somewhere(f"fedsw{name}"))})


@cache
def _is_somewhere(name: str) -> bool:
    """Say whether a dotted name is a module, a name that stands in one, or a group of entry points."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        stem = "/".join(parts[:end])
        text = sources().get(f"{stem}.py", sources().get(f"{stem}/__init__.py"))
        if text is not None:
            first, others = parts[end : end + 1], parts[end + 1 :]  # others may stand where the first is defined
            return (
                all(re.search(rf"\b{part}\b", text) for part in first)
                and all(map(_is_written, others))
                or (any(f'"{name}"' in source for source in sources().values()))
            )
    return False


@cache
def _is_written(word: str) -> bool:
    return any(re.search(rf"\b{word}\b", text) for text in sources().values())


def test_a_file_or_a_name_that_is_nowhere_is_found():
    known = "`fedsw/privacy/release.py`, `tests/laws/`, `fedsw.privacy.release.Bounded`, `fedsw.trust`, `fedsw.run`"
    assert nowhere(known) == []
    assert nowhere(
        "`fedsw/noise.py` and `fedsw.noise`, `runs/none.py`, `tests/gone/`, `fedsw.privacy.release.Bound`"
    ) == [
        "fedsw.noise",
        "fedsw.privacy.release.Bound",
        "fedsw/noise.py",
        "fedsw/runs/none.py",
        "tests/gone/",
    ]


def test_every_file_and_name_of_the_package_that_a_page_or_a_source_names_is_there():
    named = {name: nowhere(text) for name, text in texts().items() if is_page(name) or name in sources()}
    assert {name: found for name, found in named.items() if found} == {}
