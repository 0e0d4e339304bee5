"""The package's source as trees, read once for all laws that look through it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


def tree(path: Path) -> ast.Module:
    """A file of the source; whoever asks only looks at it."""
    module = nodes(path)[0]
    assert isinstance(module, ast.Module)
    return module


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file of the source, as `ast.walk` meets them."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
