"""Nobody outside `fedsw.learning.objectives` asks which class an objective or a penalty is of: the object is asked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedsw
from tests.syntax import tree

PACKAGE = Path(fedsw.__file__).parent
ROOM = "fedsw.learning.objectives"
PUBLIC = {"Parity", "EqualizedOdds", "ToSample", "Stated", "Penalty"}
"""Names that `fedsw` itself has of the room."""


def classes(tree: ast.AST) -> set[str]:
    """Names by which a file knows what the room, or `fedsw`, gives it of penalties."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedsw"):
            inside = (node.module or "").startswith(ROOM)
            names |= {one.asname or one.name for one in node.names if inside or one.name in PUBLIC}
    return names


def asking(tree: ast.AST) -> Iterator[int]:
    """Lines that ask for the class of something by one of these names, however it is written."""
    known = classes(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kinds]) if names(kinds) & known:
                yield node.lineno
            case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=[kind]) if names(kind) & known:
                yield node.lineno
            case ast.match_case(pattern=pattern):
                found = [one for one in ast.walk(pattern) if isinstance(one, ast.MatchClass)]
                yield from (one.lineno for one in found if names(one.cls) & known)


def names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} | {
        one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)
    }


def test_no_file_outside_the_room_asks_for_the_class_of_an_objective_or_a_penalty():
    room = PACKAGE / "learning" / "objectives"
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if room not in path.parents]
    assert len(files) > 300
    trees = ((path, tree(path)) for path in files)
    assert [f"{path.relative_to(PACKAGE)}:{line}" for path, tree in trees for line in asking(tree)] == []


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(part, Matching)",
        "isinstance(part, int | Matching)",
        "issubclass(kind, (int, Goal))",
        "type(part) is Matching",
        "match part:\n    case Matching(radius=1): pass",
    ],
)
def test_a_question_is_seen_however_it_is_written(line):
    head = f"from {ROOM}._matching import Matching\nfrom {ROOM} import Objective as Goal\n"
    assert list(asking(ast.parse(head + line)))
    assert not list(asking(ast.parse(f"from fedsw.runs.single.objective import Matching, Goal\n{line}")))
