"""The documents: those that are committed, and those that are built with the site (`.ci/reference.py`)."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


def _reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / ".ci" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = _reference()
BUILT = frozenset(REFERENCE.PAGES)
"""Names of built pages, from the root of the repository; a copy of one may lie there or not."""


@cache
def built(name: str) -> str:
    """The text of a built page, made anew."""
    text: str = REFERENCE.PAGES[name]()
    return text


def committed(*folders: str) -> list[Path]:
    """The pages below docs/, or below some folders of the repository, that no build makes."""
    paths = [path for folder in folders or ("docs",) for path in (ROOT / folder).rglob("*.md")]
    return sorted(path for path in paths if path.relative_to(ROOT).as_posix() not in BUILT)
