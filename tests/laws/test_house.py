"""The house: eleven rooms, each of which says what it is for and what others may use; an underscore says: inside."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import fedsw
from tests.site.pages import committed
from tests.syntax import nodes

ROOT = Path(__file__).parents[2]
ROOMS = {
    "cli", "desk", "audit", "federation", "runs", "learning", "experiment", "data", "privacy", "mathematics", "_tools",
}  # fmt: skip
STARTED = {
    "fedsw.cli.app": "the entry point of the command",
    "fedsw.federation.client": "the ClientApp of the bundle, which its clients/app.py names",
    "fedsw.federation.server.app": "the ServerApp of the bundle, which its server/app.py names",
    "fedsw.federation.deploy.executor": "run by its path, as the process of a node",
    "fedsw.federation.deploy.superlink": "run by its path, as the process of the SuperLink",
}
"""Modules that somebody else starts, by whom: they have no underscore, whoever imports them."""

MOST_TWICE = 8
BY_NAME = re.compile(r"fedsw(?:\.\w+)+")


def modules(package: Path) -> dict[str, Path]:
    """The files of a package by the names of their modules."""
    paths = sorted(package.rglob("*.py"))
    names = [".".join(("fedsw", *path.relative_to(package).with_suffix("").parts)) for path in paths]
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


def room(module: str) -> str:
    """The room that a module stands in; of `fedsw` itself, none."""
    return module.split(".")[1] if "." in module else ""


def users(files: Mapping[str, Path], tests: Path) -> dict[str, set[str]]:
    """The rooms from which each module is imported, or named in a text as a module to be imported; tests are one."""
    used: dict[str, set[str]] = defaultdict(set)
    tested = ((f"fedsw.tests.{path.stem}", path) for path in tests.rglob("*.py"))
    for module, path in [*files.items(), *tested]:
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedsw"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted = [name if name in files else str(node.module) for name in names]
            elif isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and BY_NAME.fullmatch(node.value):
                wanted = [node.value]
            else:
                continue
            for name in wanted:
                used[name].add(room(module))
    return used


def faults(package: Path, tests: Path) -> Iterator[str]:
    """What is not as the house has it: rooms, underscores, names of files."""
    files = modules(package)
    rooms = {room(name) for name, path in files.items() if path.parent != package}
    if rooms != ROOMS:
        yield f"rooms: {sorted(rooms ^ ROOMS)} are too many or missing"
    used = users(files, tests)
    for name, path in files.items():
        if path.name == "__init__.py" or path.parent == package or name in STARTED:
            continue
        outside, inside = used[name] - {room(name)}, path.name.startswith("_")
        if inside and outside:
            yield f"{name} is used in {', '.join(sorted(outside)) or 'fedsw'}: it has no underscore"
        if not inside and not outside:
            yield f"{name} is used in its own room alone, and not in tests: it begins with an underscore"
    twice = Counter(path.name for path in files.values() if path.name != "__init__.py")
    often = sorted(name for name, count in twice.items() if count > 2)
    if often:
        yield f"names of files that stand more than twice: {often}"
    if sum(count == 2 for count in twice.values()) > MOST_TWICE:
        yield f"more than {MOST_TWICE} names of files stand twice: {sorted(n for n in twice if twice[n] > 1)}"


PACKAGE = Path(fedsw.__file__).parent


def test_rooms_are_those_eleven_and_modules_inside_them_say_so() -> None:
    assert list(faults(PACKAGE, PACKAGE.parent / "tests")) == []


def test_who_is_started_by_others_is_there_and_has_no_other_user() -> None:
    files = modules(PACKAGE)
    assert [name for name in STARTED if name not in files] == []


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_a_room_says_what_it_is_for_and_what_others_may_use(name: str) -> None:
    package = importlib.import_module(f"fedsw.{name}")
    folder = PACKAGE / name
    children = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    public = {child for child in children if not child.startswith("_")}
    assert package.__doc__ and len(package.__doc__.split()) >= 20, "it says in a few lines what it is for"
    assert len(package.__doc__.splitlines()) <= 10
    listed = set(package.__all__)
    assert len(package.__all__) == len(listed)
    assert public <= listed, f"{sorted(public - listed)}: list in __all__ of fedsw.{name} what others may use"
    for other in listed - public:
        assert not other.startswith("_") and getattr(package, other) is not None
    for child in public:
        assert importlib.util.find_spec(f"fedsw.{name}.{child}") is not None


def test_a_name_that_a_room_does_not_have_is_an_attribute_error() -> None:
    for name in ("data", "privacy"):
        with pytest.raises(AttributeError, match="no_such_name"):
            _ = importlib.import_module(f"fedsw.{name}").no_such_name


def written(place: Path, **files: str) -> Path:
    """A package of eleven rooms with these files, by `room__module`."""
    package = place / "fedsw"
    for name in ROOMS:
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").write_text('"""A room."""\n')
    for name, text in files.items():
        (package / f"{name.replace('__', '/', 1)}.py").write_text(text)
    return package


def test_a_house_in_order_has_no_fault(tmp_path: Path) -> None:
    package = written(tmp_path, data__cells="", desk___look="from fedsw.data import cells\n", desk__rows="")
    assert not list(faults(package, written(tmp_path / "tests", desk__test_rows="from fedsw.desk.rows import read\n")))


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"data__cells": "", "data___read": "from fedsw.data.cells import x\n"}, "fedsw.data.cells is used in its own"),
        ({"data___cells": "", "desk___look": "from fedsw.data import _cells\n"}, "fedsw.data._cells is used in desk"),
        ({"data___cells": "", "desk___look": "from fedsw.data._cells import x\n"}, "fedsw.data._cells is used in desk"),
        ({"data___cells": "", "desk___look": "import fedsw.data._cells\n"}, "fedsw.data._cells is used in desk"),
        ({"data___cells": "", "desk___look": "NAME = 'fedsw.data._cells'\n"}, "fedsw.data._cells is used in desk"),
        ({f"{name}___same": "" for name in ("data", "desk", "runs")}, "more than twice: ['_same.py']"),
        (
            {f"{name}___f{i}": "" for name in ("data", "desk") for i in range(MOST_TWICE + 1)},
            f"more than {MOST_TWICE} names of files stand twice",
        ),
    ],
)
def test_a_breach_is_a_fault(tmp_path: Path, files: dict[str, str], fault: str) -> None:
    (found,) = faults(written(tmp_path, **files), tmp_path / "tests")
    assert fault in found


def test_a_test_that_looks_inside_is_a_fault(tmp_path: Path) -> None:
    tests = written(tmp_path / "tests", data__test_cells="from fedsw.data._cells import read\n")
    fault = "fedsw.data._cells is used in tests: it has no underscore"
    assert list(faults(written(tmp_path, data___cells=""), tests)) == [fault]


def test_a_room_more_or_less_is_a_fault(tmp_path: Path) -> None:
    package = written(tmp_path)
    (package / "attic").mkdir()
    (package / "attic" / "__init__.py").touch()
    (package / "runs" / "__init__.py").unlink()
    assert list(faults(package, tmp_path / "tests")) == ["rooms: ['attic', 'runs'] are too many or missing"]


# Tests


def beside(tests: Path, package: Path) -> list[str]:
    """The test files in a room's folder that are named for no module of it.

    `test_cells.py` is named for the module `cells` or `_cells` of its room, or the folder of that name; so is
    `test_cells_aspect.py`, which is about one side of it. Laws of several rooms are in `tests/laws/`.
    """
    names = defaultdict(set)
    for name in modules(package):
        names[room(name)].add(name.rpartition(".")[2].lstrip("_"))
    paths = [path for one in sorted(ROOMS) for path in sorted((tests / one).rglob("test_*.py"))]
    return [
        str(path.relative_to(tests))
        for path in paths
        if not any(f"{path.stem}_".startswith(f"test_{name}_") for name in names[path.relative_to(tests).parts[0]])
    ]


def test_test_files_are_named_for_modules_of_their_room() -> None:
    others = beside(ROOT / "tests", PACKAGE)
    assert others == [], "name it for its module, or put it into tests/laws"


def test_a_test_file_of_no_module_is_seen(tmp_path: Path) -> None:
    package = written(tmp_path, data___cells="", desk__rows="")
    (tmp_path / "tests" / "data").mkdir(parents=True)
    for name in ("cells", "cells_of_tables", "cellsof", "of_cells", "rows", "data"):
        (tmp_path / "tests" / "data" / f"test_{name}.py").touch()
    others = ["data/test_cellsof.py", "data/test_of_cells.py", "data/test_rows.py"]
    assert beside(tmp_path / "tests", package) == others


# What is documented

DIRECTIVE = re.compile(r"^\.\. (auto\w+):: (fedsw[\w.]*)\n((?:   :.*\n)*)", flags=re.MULTILINE)
DOCUMENTED = [
    (path.name, *match.groups())
    for path in sorted((ROOT / "docs" / "api").glob("*.md"))
    for match in DIRECTIVE.finditer(path.read_text(encoding="utf-8"))
]


def test_the_reference_documents_public_names_by_name() -> None:
    """What `fedsw` exports, all that a package lists in `__all__`, or names of a public module that the page lists."""
    documented, files = set(), modules(PACKAGE)
    for page, directive, name, options in DOCUMENTED:
        assert not any(part.startswith("_") for part in name.split(".")), f"{page}: {name} is inside"
        if directive == "automodule":
            listed = re.search(r":members: (\w.*)\n", options)
            assert listed or hasattr(importlib.import_module(name), "__all__"), f"{page}: {name} as a whole"
            assert ":undoc-members:" not in options and ":ignore-module-all:" not in options
        elif name.removeprefix("fedsw.") in fedsw.__all__:
            documented.add(name.removeprefix("fedsw."))
        else:
            module = next(name[:end] for end in _dots(name) if name[:end] in files)
            assert module != "fedsw", f"{page}: {name} is not exported"
    assert documented == set(fedsw.__all__)


def _dots(name: str) -> Iterator[int]:
    return (place for place in range(len(name), 0, -1) if name[place : place + 1] == ".")


SHOWN = sorted({*committed(), *(ROOT / "docs" / "examples").rglob("*.py"), ROOT / "README.md"})


def test_no_page_and_no_example_imports_what_is_inside() -> None:
    inside = re.compile(r"(?:from|import) (fedsw(?:\.\w+)*\._\w+|fedsw\._\w+)|(fedsw[\w.]*) import _", re.MULTILINE)
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in SHOWN
        for match in inside.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
