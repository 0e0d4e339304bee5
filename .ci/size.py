"""Measure how much there is to read, and refuse more of it than `.ci/size.toml` allows.

    .venv/bin/python .ci/size.py [--all] [--list NAME]

`make lint` runs this. What is added is paid for by what goes: whoever must raise a limit says why in the commit's body,
and a limit that is far above its value is lowered with the change that made it so. --all prints every value beside its
limit, --list says where the cases of one measure stand.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = ROOT / ".ci" / "size.toml"

Cases = Iterator[tuple[str, int, str]]
"""Where something stands: a file's path, a line, and what it is."""

VAGUE = frozenset({"found", "place", "asked", "each", "own", "there", "given", "kept", "them"})
QUESTION = re.compile(r"(?:What|Whether)\b")
ROLE = re.compile(r"(?<![#-])\b(?:whose|nobody|whoever)\b", re.IGNORECASE)
TWICE = re.compile(
    r"\b(?:whose|nobody|whoever|somebody|anybody|everybody)\b"
    r"|(?<!there )\b(?:is|are) no (?!more\b|longer\b|larger\b|smaller\b|such\b|other\b)"
    r"|\b(?:None|nan|empty|0|none|\w+Error) where\b|\w alone[.,;:)]",
    re.IGNORECASE,
)
"""What is read twice in a docstring: a role without its name, `no` for `not`, `where` for `if`, `alone` for `only`."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, ast.ClassDef, *_FUNCTIONS)


Nodes = Sequence[tuple[str, ast.AST]]
"""Every node of some files' syntax, with the path of its file."""


@dataclass(frozen=True)
class Tree:
    """What a checkout has: the syntax of the package and of its tests, and the text of its documents by name."""

    package: Nodes
    tests: Nodes
    pages: Mapping[str, str] = field(default_factory=dict)


def statements(tree: Tree) -> Cases:
    """Statements of the package: syntax, so that longer lines change nothing; a text that stands alone is none."""
    return _statements(tree.package)


def statements_of_tests(tree: Tree) -> Cases:
    """Statements of the tests."""
    return _statements(tree.tests)


def _statements(nodes: Nodes) -> Cases:
    for path, node in nodes:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if isinstance(node, ast.stmt) and not text:
            yield path, node.lineno, type(node).__name__


def functions(tree: Tree) -> Cases:
    """Functions and methods of the package."""
    for path, node in tree.package:
        if isinstance(node, _FUNCTIONS):
            yield path, node.lineno, node.name


def once(tree: Tree) -> Cases:
    """Private functions that are mentioned at one place at most: what they do could be written there."""
    mentions: Counter[str] = Counter()
    for _, node in tree.package:
        if isinstance(node, ast.Name | ast.Attribute):
            mentions[node.id if isinstance(node, ast.Name) else node.attr] += 1
    for path, line, name in functions(tree):
        if name.startswith("_") and not name.startswith("__") and mentions[name] <= 1:
            yield path, line, name


def classes_twice(tree: Tree) -> Cases:
    """Names of classes that stand more than once in the package, each at its second place and after."""
    seen: set[str] = set()
    for path, node in tree.package:
        if isinstance(node, ast.ClassDef):
            if node.name in seen:
                yield path, node.lineno, node.name
            seen.add(node.name)


def inner_imports(tree: Tree) -> Cases:
    """Imports inside functions of the package."""
    for path, node in tree.package:
        if isinstance(node, _FUNCTIONS):
            for statement in node.body:
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    yield path, statement.lineno, ast.unparse(statement)


def private_in_tests(tree: Tree) -> Cases:
    """Private names of the package that tests import."""
    for path, node in tree.tests:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedsw"):
            for alias in node.names:
                parts = f"{node.module}.{alias.name}".split(".")
                if any(part.startswith("_") and part != "_tools" for part in parts):
                    yield path, node.lineno, f"{node.module}.{alias.name}"


def vague_names(tree: Tree) -> Cases:
    """Names that tell nothing, where a variable or a parameter is bound to one."""
    for path, node in tree.package:
        name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""
        name = node.arg if isinstance(node, ast.arg) else name
        if name in VAGUE:
            yield path, getattr(node, "lineno", 1), name


def questions(tree: Tree) -> Cases:
    """Docstrings that begin with a question: a first sentence is an imperative or a noun phrase."""
    for path, node in tree.package:
        if isinstance(node, _DOCUMENTED) and QUESTION.match(text := ast.get_docstring(node) or ""):
            yield path, getattr(node, "lineno", 1), " ".join(text.split()[:6])


def read_twice(tree: Tree) -> Cases:
    """Places of docstrings, those of attributes included, that match `TWICE`."""
    for path, line, text in _texts(tree, documents=True):
        for match in TWICE.finditer(text):
            yield path, line + text[: match.start()].count("\n"), match[0]


def role_words_of_messages(tree: Tree) -> Cases:
    """Role words in the package's other texts: messages, helps, screens and pages."""
    for path, line, text in _texts(tree, documents=False):
        for match in ROLE.finditer(text):
            yield path, line, match[0]


def _texts(tree: Tree, *, documents: bool) -> Cases:
    alone = {id(node.value) for _, node in tree.package if isinstance(node, ast.Expr)}
    for path, node in tree.package:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (id(node) in alone) is documents:
            yield path, node.lineno, node.value


def role_words(tree: Tree) -> Cases:
    """Words of documents that stand where a role has a name: whose, nobody, whoever."""
    for name, text in tree.pages.items():
        for number, line in enumerate(text.splitlines(), start=1):
            for match in ROLE.finditer(line):
                yield name, number, match[0]


CASES: Mapping[str, Callable[[Tree], Cases]] = {
    "statements": statements,
    "functions": functions,
    "private functions mentioned once": once,
    "class names that stand twice": classes_twice,
    "imports inside functions": inner_imports,
    "private names that tests import": private_in_tests,
    "names that tell nothing": vague_names,
    "docstrings that begin with a question": questions,
    "statements of tests": statements_of_tests,
    "role words in documents": role_words,
    "role words in messages": role_words_of_messages,
    "places of docstrings that are read twice": read_twice,
}
"""Measures that are counts of cases; `values` has the others."""


def values(tree: Tree) -> dict[str, int]:
    """Return every measure of a tree, by its name in `.ci/size.toml`."""
    counts = {name: sum(1 for _ in cases(tree)) for name, cases in CASES.items()}
    modules = sum(1 for _, node in tree.package if isinstance(node, ast.Module))
    words = sum(len(text.split()) for text in tree.pages.values())
    return {"modules": modules, **counts, "words of documents": words}


def read(root: Path) -> Tree:
    """Read a checkout: all Python files of the package and the tests, and the documents that git does not ignore."""

    def nodes(folder: str) -> Nodes:
        paths = sorted((root / folder).rglob("*.py"))
        parsed = ((str(path.relative_to(root)), ast.parse(path.read_text(encoding="utf-8"))) for path in paths)
        return [(name, node) for name, module in parsed for node in ast.walk(module)]

    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listed, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
    there = [name for name in names if name and (root / name).exists()]
    pages = {name: (root / name).read_text(encoding="utf-8") for name in there}
    return Tree(nodes("fedsw"), nodes("tests"), pages)


def main(arguments: Sequence[str]) -> int:
    """Print what is above its limit, or all that is asked for; 1 if anything is above, or has no limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all", action="store_true", help="print every value beside its limit")
    parser.add_argument("--list", choices=sorted(CASES), help="say where the cases of one measure stand")
    options = parser.parse_args(arguments)
    tree = read(ROOT)
    if options.list:
        for path, line, what in CASES[options.list](tree):
            print(f"{path}:{line}: {what}")
        return 0
    limits, measured = tomllib.loads(LIMITS.read_text(encoding="utf-8")), values(tree)
    if limits.keys() != measured.keys():
        print(f"{LIMITS.name} and the measures differ: {', '.join(sorted(limits.keys() ^ measured.keys()))}")
        return 1
    above = [name for name, value in measured.items() if value > limits[name]]
    for name in measured if options.all else above:
        print(f"{name}: {measured[name]}, at most {limits[name]}")
    if above:
        print("Take away as much as was added, or raise the limit in .ci/size.toml and say why in the commit's body.")
    return int(bool(above))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
