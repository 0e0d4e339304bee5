"""The law of modules that are named for the type checker and loaded when used: every name there is loaded."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import fedsw
from fedsw._tools.later import imported_later

PACKAGE = Path(fedsw.__file__).parent
FILES = [path for path in PACKAGE.rglob("*.py") if "imported_later(__spec__)" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_every_module_that_has_a_name_for_the_checker_is_loaded_by_it(path):
    blocks = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for block in blocks for node in ast.walk(block) if isinstance(node, ast.ImportFrom)]
    named = {each.asname for node in imports for each in node.names if each.asname}
    spec = find_spec(re.sub(r"\.__init__$", "", ".".join(("fedsw", *path.relative_to(PACKAGE).with_suffix("").parts))))
    assert named and named == imported_later(spec).keys()
