"""Laws of the view of a run: it is read once, and what is made of it reads no file and asks no screen."""

from __future__ import annotations

import ast
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import fedsw
from fedsw.runs.report import facts
from fedsw.runs.report.run_documents import page, summary_screen
from fedsw.runs.view import read_run, read_whole_run
from tests.syntax import nodes

RUNS = Path(fedsw.__file__).parent / "runs"
MADE_OF_VIEWS = sorted((RUNS / "report").glob("*.py"))
WORDS = {"facts", "figures", "metric_names", "plots", "shapes"}
READERS = {
    "fedsw._tools.files", "fedsw.runs.accounts", "fedsw.runs.commands", "fedsw.runs.directory", "fedsw.runs.recovery",
    "fedsw.runs.run_files", "fedsw.runs.status", "safetensors", "safetensors.torch", "json", "os",
}  # fmt: skip
OPENS = {"read_text", "read_bytes", "open", "is_file", "exists", "glob", "iterdir", "stat", "load", "read_run"}
ALLOWED = {
    ("figures", "fedsw._tools.files"),  # which writes a picture, and opens one that it has in memory
    ("figures", "open"),
    ("render", "read_text"),  # a template of the package
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two rounds."""
    settings = {
        "name": "seen",
        "data": {"records": 200, "test_records": 120},
        "training": {"rounds": 2, "batch_fraction": 0.2},
        "federation": {"clients": 2},
        "privacy": {"epsilon": 1.0, "delta": 1e-4},
    }
    return Path(fedsw.run(settings, runs=tmp_path_factory.mktemp("seen")).directory)


def imports_of(path: Path) -> set[str]:
    """Modules that a module of the source imports, wherever in it; those for types alone left out.

    Of imports for types, `imported_later` loads those that have a name (`as`).
    """
    modules: set[str] = set()
    source = path.read_text(encoding="utf-8")

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            if "imported_later(" in source:
                loaded = (each for each in ast.walk(node) if isinstance(each, ast.ImportFrom))
                modules.update(f"{each.module}.{one.name}" for each in loaded for one in each.names if one.asname)
            return
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(source))
    return modules


@pytest.mark.parametrize("path", MADE_OF_VIEWS, ids=lambda path: path.stem)
def test_screens_and_pages_import_no_reader_of_files_and_open_none(path):
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in nodes(path)
        if isinstance(node, ast.Call)
    }
    read = {(path.stem, name) for name in (imports_of(path) & READERS) | (called & OPENS)}
    assert read <= ALLOWED, f"{path.name} reads: let fedsw.runs.view read it"


@pytest.mark.parametrize("path", MADE_OF_VIEWS, ids=lambda path: path.stem)
def test_only_the_renderer_of_a_medium_knows_it(path):
    mediums = {"console": "rich", "render": "jinja2"}
    known = {
        medium for medium, library in mediums.items() if any(name.startswith(library) for name in imports_of(path))
    }
    assert known <= {path.stem}, f"{path.name}: make a document, and let {known} show it"


def test_words_and_figures_ask_no_document_and_no_page():
    for word in WORDS:
        names = {name for name in imports_of(RUNS / "report" / f"{word}.py") if name.startswith("fedsw.runs.report.")}
        assert {name.split(".")[3] for name in names} <= {*WORDS, "_parts"}, word


def test_a_view_is_all_that_is_needed_once_it_is_read(finished, tmp_path):
    directory = tmp_path / "own" / "20260101-000000"
    shutil.copytree(finished, directory)
    view = read_whole_run(directory)
    before = page([view]), facts.plain(view), facts.sizes(view)
    shutil.rmtree(directory)
    assert (page([view]), facts.plain(view), facts.sizes(view)) == before
    summary_screen(view)


def test_what_is_the_operator_s_is_marked_and_left_out(finished):
    view = replace(read_run(finished), seconds=(1.0, 2.0))
    assert view.go_on and str(finished) in view.go_on
    shared = view.shareable()
    assert (shared.go_on, shared.seconds) == ("", ()) and "seconds" not in shared.summary
    assert shared.shareable() == shared


def test_a_page_wants_whole_views(finished):
    with pytest.raises(ValueError, match="read it with `read_whole_run`"):
        page([read_run(finished)])
