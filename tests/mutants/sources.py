"""The definitions of a tree by their names, and changes to one: neither its file nor its layout needs to be known."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("fedsw", "clients", "server")
"""The packages in which definitions are looked for."""

_MAYBE_DEFINED = re.compile(r"(?:def|class)\s+(\w+)|(\w+)\s*[:=]")
"""Names that a text may define: a file is parsed only for one of its own."""

Span = tuple[int, int]
"""Where a piece of a file begins and ends, in bytes."""


class NoPlace(LookupError):
    """A name or a text that says no place, or more than one."""


@dataclass(frozen=True)
class Definition:
    """A function, a class, or a name that a module or a class assigns.

    Attributes:
        path: its file, relative to the tree.
        name: with the definitions around it: `Account.charge`, `outer.inner`.
        node: its statement.
        text: the text of the file.
        tree: that of the file.
    """

    path: Path
    name: str
    node: ast.stmt
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """The dotted path of its module."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def called(self, name: str) -> bool:
        """Whether a name says it: its own, with the end of its module's path before a colon or without."""
        module, _, own = name.rpartition(":")
        return own == self.name and f".{self.module}".endswith(f".{module}" if module else "")


class Sources:
    """The modules of a tree, as they are when this is made.

    Args:
        root: the folder that holds the packages.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        paths = sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))
        self._texts = {path.relative_to(root): path.read_text(encoding="utf-8") for path in paths}
        self._parsed: dict[Path, list[Definition]] = {}
        self._mentioning: dict[str, list[Path]] = {}
        for path, text in self._texts.items():
            for name in {match[match.lastindex or 0] for match in _MAYBE_DEFINED.finditer(text)}:
                self._mentioning.setdefault(name, []).append(path)

    def find(self, name: str) -> Definition:
        """The definition that a name says.

        Args:
            name: as `Account.charge`, or `ledger:Account.charge` where several modules define that.

        Raises:
            NoPlace: if there is none, or more than one.
        """
        own = name.rpartition(":")[2]
        paths = self._mentioning.get(own.rpartition(".")[2], [])
        named = [definition for path in paths for definition in self._in(path) if definition.called(name)]
        if not named:
            raise NoPlace(f"{name} is defined 0 times in {', '.join(PACKAGES)}: give the name that it has now")
        if len(named) > 1:
            modules = ", ".join(definition.module for definition in named)
            raise NoPlace(
                f"{name} is defined {len(named)} times ({modules}): put the end of its module's path before it, as in "
                f"{named[0].module}:{own}, or name what is around it"
            )
        return named[0]

    def _in(self, path: Path) -> list[Definition]:
        if path not in self._parsed:
            tree = ast.parse(text := self._texts[path])
            self._parsed[path] = [Definition(path, name, node, text, tree) for name, node in _named(tree, "")]
        return self._parsed[path]


def changed(definition: Definition, old: str, new: str) -> str:
    """The text of a definition's file with one change inside the definition.

    An expression or whole statements are found by their syntax tree, so that layout, quotes and parentheses of the
    file don't matter; what is neither (a keyword argument, the head of a block) is found as text.

    Raises:
        NoPlace: unless `old` is found exactly once, and `new` in its place gives another tree.
    """
    source = definition.text.encode()
    spans, put = _by_tree(definition, old, new)
    if not spans:
        spans, put = _by_text(definition, old), new
    if len(spans) != 1:
        remedy = "give more of what is around it" if spans else "give what stands there now"
        raise NoPlace(f"in {definition.name} this is found {len(spans)} times, once is needed ({remedy}):\n{old}")
    start, end = spans[0]
    around, (first, last) = _whole(definition)
    try:
        piece = ast.parse(source[first:start] + put.encode() + source[end:last])
    except SyntaxError as fault:
        words = f"in {definition.name} the change is no Python ({fault}), mend what is put there"
        raise NoPlace(f"{words}:\n{new}") from None
    if _same(piece.body, [around]):
        raise NoPlace(f"in {definition.name} the change changes nothing, put something else there:\n{new}")
    return (source[:start] + put.encode() + source[end:]).decode()


def _named(around: ast.AST, prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    """Definitions in a node with their names; names that a function assigns are its own affair."""
    for node in ast.iter_child_nodes(around):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + node.name, node
            yield from _named(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(around, ast.Module | ast.ClassDef):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((prefix + name.id, node) for name in targets if isinstance(name, ast.Name))
        elif not isinstance(node, ast.expr):
            yield from _named(node, prefix)


def _whole(definition: Definition) -> tuple[ast.stmt, Span]:
    """The statement of the module that a definition is in, and its lines: all that a change has to be read again in."""
    line = definition.node.lineno
    around = next(each for each in definition.tree.body if each.lineno <= line <= each.end_lineno)
    start, end = _place(definition.text, around, around)
    source = definition.text.encode()
    return around, (source.rfind(b"\n", 0, start) + 1, source.find(b"\n", end) + 1 or len(source))


def _by_tree(definition: Definition, old: str, new: str) -> tuple[list[Span], str]:
    """Where an expression or statements stand, and what to put there; nowhere, if `old` is neither."""
    text, node = definition.text, definition.node
    if (value := _expression(old)) and _expression(new):
        return [_place(text, piece, piece) for piece in _pieces(node) if _same(piece, value)], f"({new})"
    if not (wanted := _statements(old)):
        return [], new
    runs = [
        _place(text, run[0], run[-1])
        for block in _blocks(node)
        for run in (block[i : i + len(wanted)] for i in range(len(block) - len(wanted) + 1))
        if all(map(_same, run, wanted))
    ]
    if len(runs) != 1:
        return runs, new
    line = text.encode()[: runs[0][0]].rpartition(b"\n")[2].decode()
    return runs, _aligned(new).replace("\n", "\n" + line) if not line.strip() else new.strip()


def _by_text(definition: Definition, old: str) -> list[Span]:
    """Where a text stands between the first line of a definition and its last, both whole."""
    start, end = _place(definition.text, definition.node, definition.node)
    source, sought = definition.text.encode(), old.encode()
    start = source.rfind(b"\n", 0, start) + 1
    end = source.find(b"\n", end) + 1 or len(source)
    spans = []
    while sought and (start := source.find(sought, start, end)) >= 0:
        spans.append((start, start + len(sought)))
        start += len(sought)
    return spans


def _expression(text: str) -> ast.expr | None:
    if not text.strip():
        return None
    try:
        return ast.parse(f"({text}\n)", mode="eval").body
    except SyntaxError:
        return None


def _statements(text: str) -> list[ast.stmt] | None:
    try:
        return ast.parse(_aligned(text)).body
    except SyntaxError:
        return None


def _aligned(text: str) -> str:
    """Statements from the first column on, also if their first line was cut out of the middle of one."""
    lines = textwrap.dedent(text.strip("\n")).rstrip()
    try:
        ast.parse(lines)
        return lines
    except SyntaxError:
        first, _, rest = lines.partition("\n")
        return f"{first.strip()}\n{textwrap.dedent(rest)}".strip()


def _pieces(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all in it, but nothing in an f-string: older Pythons don't say where that stands."""
    yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _pieces(child)


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """Every run of statements that follow each other in a definition, and the definition itself."""
    yield [node]
    for inner in ast.walk(node):
        for value in (block for _, block in ast.iter_fields(inner)):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def _same(one: object, other: object) -> bool:
    """Whether two pieces read alike; that one is assigned to and the other is read is no difference."""
    if isinstance(one, ast.expr_context):
        return isinstance(other, ast.expr_context)
    if type(one) is not type(other):
        return False
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, ast.AST):
        return all(_same(getattr(one, name, None), getattr(other, name, None)) for name in one._fields)
    return one == other


def _place(text: str, first: ast.AST, last: ast.AST) -> Span:
    """From the start of one node, decorators included, to the end of another."""
    lines = text.encode().splitlines(keepends=True)
    decorators = getattr(first, "decorator_list", [])
    before = min([first.lineno, *(node.lineno for node in decorators)])
    start = sum(map(len, lines[: before - 1])) + first.col_offset
    return start, sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
