"""The measure of the project's size counts what it names, and refuses what is above its limit."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def size() -> ModuleType:
    path = Path(__file__).parents[2] / ".ci" / "size.py"
    spec = importlib.util.spec_from_file_location("measure_of_size", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass asks for its module by name
    spec.loader.exec_module(module)
    return module


def counted(size: ModuleType, measure: str, package: str, tests: str = "") -> int:
    nodes = [[("a.py", node) for node in ast.walk(ast.parse(text))] for text in (package, tests)]
    return int(size.values(size.Tree(*nodes))[measure])


@pytest.mark.parametrize(
    ("measure", "text", "count"),
    [
        ("statements", "x = 1\nif x:\n    x = 2\n", 3),
        ("statements", '"""A text."""\nx = (\n    1 +\n    2\n)\n"""Of x."""\n', 1),
        ("functions", "def f(): ...\nclass A:\n    async def g(self): ...\n", 2),
        ("functions", "f = lambda: 1\n", 0),
        ("private functions mentioned once", "def _f(): ...\n_f()\n", 1),
        ("private functions mentioned once", "def _f(): ...\n_f()\nx = _f\n", 0),
        ("private functions mentioned once", "def f(): ...\ndef __f__(): ...\n", 0),
        ("class names that stand twice", "class A: ...\nclass B:\n    class A: ...\n", 1),
        ("imports inside functions", "import a\ndef f():\n    import b\n    from c import d\n", 2),
        ("names that tell nothing", "found = 1\n", 1),
        ("names that tell nothing", "for each in rows:\n    pass\n", 1),
        ("names that tell nothing", "def f(given, *, kept=None): ...\n", 2),
        ("names that tell nothing", "g = lambda them: them\n", 1),
        ("names that tell nothing", "print(found)\nrows.found = 1\nf(given=1)\n", 0),
        ("names that tell nothing", "class A:\n    own: int = 1\n", 1),
        ("docstrings that begin with a question", '"""What it is."""\n', 1),
        ("docstrings that begin with a question", 'def f():\n    """Whether it is."""\n', 1),
        ("docstrings that begin with a question", 'class A:\n    """Whatever comes."""\n', 0),
        ("docstrings that begin with a question", 'x = 1\n"""What x is."""\n', 0),
        ("places of docstrings that are read twice", '"""A row whose cell is no number."""\n', 2),
        ("places of docstrings that are read twice", 'x = 1\n"""None where the key alone, or nobody, has it."""\n', 3),
        ("places of docstrings that are read twice", 'f("Nobody is no number.")\n"""There is no more."""\n', 0),
        ("role words in messages", 'f(f"Nobody has {x}, whose key it is.")\n"""Whoever."""\n', 2),
    ],
)
def test_a_measure_counts_what_it_names(size: ModuleType, measure: str, text: str, count: int) -> None:
    assert counted(size, measure, text) == count


def test_private_names_are_counted_where_tests_import_them(size: ModuleType) -> None:
    private, public = "from fedsw.runs._shape import Shape, Other\n", "from fedsw._tools.text import shown\n"
    assert counted(size, "private names that tests import", "", private + public) == 2


def test_words_and_role_words_of_documents_are_counted_and_a_link_s_anchor_is_none(size: ModuleType) -> None:
    pages = {"a.md": "Whoever has a table whose rows\n[repeat](data.md#whose-rows).\n", "b.md": "Nobody's."}
    counts = size.values(size.Tree([], [], pages))
    assert (counts["words of documents"], counts["role words in documents"]) == (8, 3)


def test_more_than_its_limit_is_refused_and_a_measure_without_one_too(
    size: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = size.Tree([("a.py", node) for node in ast.walk(ast.parse("x = 1\n"))], [])
    limits = tmp_path / "size.toml"
    monkeypatch.setattr(size, "read", lambda _: tree)
    monkeypatch.setattr(size, "LIMITS", limits)
    lines = [f'"{name}" = {value}' for name, value in size.values(tree).items()]
    limits.write_text("\n".join(lines))
    assert size.main([]) == 0
    limits.write_text("\n".join(lines).replace('"statements" = 1', '"statements" = 0'))
    assert size.main([]) == 1
    assert "statements: 1, at most 0" in capsys.readouterr().out
    limits.write_text("\n".join(lines[1:]))
    assert size.main([]) == 1
