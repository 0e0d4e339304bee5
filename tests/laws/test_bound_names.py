"""The checker of names and docstrings finds what it counts, and nothing else."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    path = Path(__file__).parents[2] / ".ci" / "names.py"
    spec = importlib.util.spec_from_file_location("checker_of_names", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("found = 1\n", 1),
        ("for each in rows:\n    pass\n", 1),
        ("def f(given, *, kept=None): ...\n", 2),
        ("g = lambda them: them\n", 1),
        ("print(found)\n", 0),
        ("rows.found = 1\nf(given=1)\n", 0),
        ("class A:\n    own: int = 1\n", 1),
    ],
)
def test_a_name_is_counted_where_it_is_bound(checker: ModuleType, text: str, count: int) -> None:
    assert len(list(checker.names(ast.parse(text)))) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('"""What it is."""\n', 1),
        ('def f():\n    """Whether it is."""\n', 1),
        ('class A:\n    """Whatever comes."""\n', 0),
        ('def f():\n    """Say whether it is."""\n', 0),
        ('x = 1\n"""What x is."""\n', 0),
    ],
)
def test_a_docstring_is_counted_by_its_first_word(checker: ModuleType, text: str, count: int) -> None:
    assert len(list(checker.questions(ast.parse(text)))) == count


def test_more_than_there_may_be_is_refused_and_shown(
    checker: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fedsw").mkdir()
    (tmp_path / "fedsw" / "a.py").write_text('"""What."""\nfound = 1\n')
    monkeypatch.setattr(checker, "ROOT", tmp_path)
    assert checker.main([]) == 0
    monkeypatch.setattr(checker, "MOST_NAMES", 0)
    assert checker.main([]) == 1
    assert "fedsw/a.py:2: found" in capsys.readouterr().out
