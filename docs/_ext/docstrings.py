"""Docstrings as they are written here, in plain text with `code` in backticks, made what Sphinx reads."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx

import fedsw

HOME = "api/index"
PUBLIC = [getattr(fedsw, name) for name in fedsw.__all__]
_CODE = re.compile(r"(`{1,2})(.+?)\1")
_SPECIAL = re.compile(r"([*|\\`]|(?<=\w)_(?!\w))")


def plain(line: str) -> str:
    """A line whose code is literal, whose public names are links, and where nothing else has a meaning."""
    parts, end = [], 0
    for match in _CODE.finditer(line):
        parts += [_SPECIAL.sub(r"\\\1", line[end : match.start()]), _code(match[2])]
        end = match.end()
    return "".join([*parts, _SPECIAL.sub(r"\\\1", line[end:])])


def _code(text: str) -> str:
    name = text.removeprefix("fedsw.")
    return f":py:obj:`~{text}`" if text != name and name in fedsw.__all__ else f"``{text}``"


def process(app: Sphinx, what: str, name: str, it: object, options: Any, lines: list[str]) -> None:
    """Rewrite a docstring's lines where they are; a property's words before a colon are no type."""
    if what == "function" and isinstance(it, ModuleType):  # a package that is called: `fedsw.audit`
        lines[:] = (inspect.getdoc(type(it).__call__) or "").splitlines()
    lines[:] = [plain(line) for line in lines]
    if what in ("attribute", "data", "property"):
        lines.insert(0, "")


def skip(app: Sphinx, what: str, name: str, it: object, skipped: bool, options: Any) -> bool | None:
    """Leave out of the subpackages' pages what `fedsw` itself has, which is on the first page."""
    return True if app.env.docname != HOME and any(it is each for each in PUBLIC) else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Before the sections of a docstring (Args, Raises) are read."""
    app.connect("autodoc-process-docstring", process, priority=400)
    app.connect("autodoc-skip-member", skip)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
