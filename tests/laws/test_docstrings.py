"""Every public function that takes or returns arrays says what shapes they have."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "fedsw"
ARRAY = re.compile(r"\b(Tensor|NDArray)\b")
_TERM = r"[⌈⌊]?[\w|]+[⌉⌋]?"
_LENGTH = rf"(?:\.\.\.|…|{_TERM}(?:\s*[+*·/^-]\s*{_TERM})*)"
SHAPE = re.compile(rf"\((?:{_LENGTH},\s*)+(?:{_LENGTH})?\)")
"""Lengths in parentheses: (n, d), (r,), (..., d)."""

WORDS = re.compile(r"\b(shapes?|scalars?|flat|0-dimensional)\b")
NO_SHAPE = re.compile(r"\((?:[\d.e-]+,\s*[\d.e-]+|0, radius|epsilon, delta|ε, δ|float64, \w+|[xy], [xy]|EO_.*|OD_.*)\)")
"""Intervals and pairs of numbers, which look like shapes."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def says_shapes(text: str) -> bool:
    """Whether a docstring states a shape, in parentheses or in words."""
    return bool(WORDS.search(text)) or any(not NO_SHAPE.fullmatch(found[0]) for found in SHAPE.finditer(text))


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package without a leading underscore, by its name."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if not any(part.startswith("_") and part != "__init__" for part in parts):
            name = ".".join(("fedsw", *(part for part in parts if part != "__init__")))
            yield name, ast.parse(path.read_text("utf-8"))


def handles_arrays(function: Function) -> bool:
    """Whether an argument or what is returned is annotated with a Tensor or an array, or with what holds them."""
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    annotations = [function.returns, *(each.annotation for each in given if each is not None)]
    return any(ARRAY.search(ast.unparse(each)) for each in annotations if each is not None)


def public(body: list[ast.stmt], kind: type) -> Iterator[ast.AST]:
    return (each for each in body if isinstance(each, kind) and not each.name.startswith("_"))


TREES = dict(modules())
CLASSES: dict[str, list[ast.ClassDef]] = defaultdict(list)
for _tree in TREES.values():
    for _class in public(_tree.body, ast.ClassDef):
        CLASSES[_class.name].append(_class)


def stated(method: Function) -> str:
    """A method's docstring, with those of the same method in the classes that it says to see."""
    text = ast.get_docstring(method) or ""
    seen = [each for name in re.findall(r"[Ss]ee `(?:\w+\.)*(\w+)`", text) for each in CLASSES[name]]
    found = [each for owner in seen for each in owner.body if isinstance(each, Function) and each.name == method.name]
    return "\n".join([text, *(ast.get_docstring(each) or "" for each in found)])


def functions() -> Iterator[tuple[str, str]]:
    """The name of every public function and method that handles arrays, with what its docstring states."""
    for module, tree in TREES.items():
        for function in public(tree.body, Function):
            if handles_arrays(function):
                yield f"{module}.{function.name}", ast.get_docstring(function) or ""
        for owner in public(tree.body, ast.ClassDef):
            for method in public(owner.body, Function):
                if handles_arrays(method):
                    yield f"{module}.{owner.name}.{method.name}", stated(method)


FUNCTIONS = dict(functions())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_of_arrays_says_their_shapes(name: str) -> None:
    assert says_shapes(FUNCTIONS[name]), f"{name} takes or returns arrays, and its docstring states no shape of them"


def test_what_is_looked_at_is_all_there_is() -> None:
    assert len(FUNCTIONS) > 220
    for name in ("mathematics.transport.sliced.project", "learning.tasks.task.Task.outputs", "privacy.masks.summed"):
        assert f"fedsw.{name}" in FUNCTIONS


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("Outputs (n, d).", True),
        ("One vector (r,).", True),
        ("Values (..., d) in order.", True),
        ("The flat parameters.", True),
        ("Values of any shape.", True),
        ("A scalar.", True),
        ("Drawn from (0, 1).", False),
        ("The (epsilon, delta) of it.", False),
        ("The values (see below).", False),
        ("", False),
    ],
)
def test_shapes_are_distinguished_from_other_words(text: str, stated: bool) -> None:
    assert says_shapes(text) is stated
