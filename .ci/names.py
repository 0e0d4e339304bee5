"""Counts names that tell nothing and docstrings that begin with a question, and refuses more than there may be.

    .venv/bin/python .ci/names.py [--all]

A variable is named for the thing it holds (`answers`, `rows`, `penalty`), a docstring's first sentence is an imperative
or a noun phrase. `make lint` runs this; with --all it says where each of them stands.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = frozenset({"found", "place", "asked", "each", "own", "there", "given", "kept", "them"})
MOST_NAMES, MOST_QUESTIONS = 80, 40
QUESTION = re.compile(r"(?:What|Whether)\b")


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines on which such a name is bound, as a variable or a parameter, and the name."""
    for node in ast.walk(tree):
        name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""
        name = node.arg if isinstance(node, ast.arg) else name
        if name in NAMES:
            yield node.lineno, name


def questions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Lines of what has a docstring that begins with a question, and the words that it begins with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node) or ""
            if QUESTION.match(text):
                yield getattr(node, "lineno", 1), " ".join(text.split()[:6])


def main(arguments: Sequence[str]) -> int:
    """Print both counts, and where they stand if that is asked for or there are too many; 1 if there are."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "fedsw").rglob("*.py"))}
    too_many = 0
    for what, search, most in (("names", names, MOST_NAMES), ("questions", questions, MOST_QUESTIONS)):
        lines = [
            f"{path.relative_to(ROOT)}:{line}: {word}" for path, tree in trees.items() for line, word in search(tree)
        ]
        if "--all" in arguments or len(lines) > most:
            print("\n".join(lines))
        print(f"{len(lines)} {what}, at most {most}")
        too_many += len(lines) > most
    return int(too_many > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
