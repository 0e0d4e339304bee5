"""No code but a trust model's own folder compares anything with a name of one: what differs is asked of its object."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedsw
from fedsw.experiment.trust import trust_models
from fedsw.federation.trust import FOLDERS
from tests.syntax import tree

PACKAGE = Path(fedsw.__file__).parent
NAMES = tuple(trust_models())
OWN = {PACKAGE / "federation" / "trust" / folder for folder in FOLDERS}
WORDS = {"none", "central", "sketch"}
"""Names that are words for other things, too: of a clip, a noise, a section. They count where trust is spoken of."""


def compared(source: ast.Module) -> Iterator[int]:
    """Lines in which a name of a trust model decides something."""
    return within(source, None)


def within(node: ast.AST, statement: ast.stmt | None) -> Iterator[int]:
    """The same of a part of a program, which stands in a statement."""
    statement = node if isinstance(node, ast.stmt) else statement
    for name in names_in(node):
        if name not in WORDS or (statement is not None and "trust" in own_text(statement)):
            yield getattr(node, "lineno", 0)
    for each in ast.iter_child_nodes(node):
        yield from within(each, statement)


def own_text(statement: ast.stmt) -> str:
    """A statement without those that stand in it, in small letters."""
    own = (each for each in ast.iter_child_nodes(statement) if not isinstance(each, ast.stmt | ast.match_case))
    return " ".join(ast.unparse(each) for each in own if not isinstance(each, ast.excepthandler)).lower()


def names_in(node: ast.AST) -> Iterator[str]:
    """Names that a node compares with, chooses by, or lists."""
    match node:
        case ast.Compare():
            parts: list[ast.AST | None] = [node.left, *node.comparators]
        case ast.match_case():
            parts = [each for each in ast.walk(node.pattern) if isinstance(each, ast.MatchValue | ast.MatchSingleton)]
        case ast.Dict():
            parts = list(node.keys)
        case ast.Tuple() | ast.List() | ast.Set():
            parts = [node] if len(node.elts) > 1 else []
        case ast.Subscript():
            parts = [node.slice]
        case ast.Call(func=ast.Attribute(attr="get" | "startswith" | "endswith" | "removeprefix" | "index" | "count")):
            parts = list(node.args)
        case _:
            parts = []
    texts = [text for part in parts if part is not None for text in texts_of(part)]
    yield from (
        text for text in texts if text in NAMES or text.rstrip("-") in {"local", "sketch"} and text.endswith("-")
    )


def texts_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.MatchValue):
        yield from texts_of(node.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for each in node.elts:
            yield from texts_of(each)


def test_nothing_outside_a_trust_models_folder_compares_with_its_name():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not OWN & set(path.parents) and path != PACKAGE / "federation" / "trust" / "__init__.py"
        for line in compared(tree(path))
    ]
    assert found == []


@pytest.mark.parametrize("name", list(trust_models()))
@pytest.mark.parametrize(
    "line",
    [
        "privacy.trust == {0!r}",
        "{0!r} != experiment.privacy.trust",
        "trust in ({0!r}, 'mine')",
        "trust not in [{0!r}]",
        "_TRUSTED = ({0!r}, 'local-mine')",
        "TRUST = {{{0!r}: 1}}[trust]",
        "by_trust[{0!r}]",
        "by_trust.get({0!r})",
        "trust.startswith({0!r})",
        "match trust:\n    case {0!r}: pass",
        "match trust:\n    case 'mine' | {0!r}: pass",
        "where_trust: Literal[{0!r}, 'mine']",
    ],
)
def test_a_comparison_with_a_name_is_seen_however_it_is_written(line, name):
    assert list(compared(ast.parse(line.format(name))))


def test_what_is_no_name_of_a_trust_model_is_left_alone():
    text = "clip.mode == 'none'\nread(section in ('sketch', 'model'))\nfound = 'local-gradient'"
    assert not list(compared(ast.parse(text)))
