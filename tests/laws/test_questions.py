"""Whoever asks changes nothing: no function whose name or first line asks a question writes, nor what it calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest

import fedsw
from tests.syntax import tree

PACKAGE = Path(fedsw.__file__).parent
ASKS = re.compile(
    r"_?(is|has|have|holds|stops|may|can|needs|was|agreed|accepted|read|found|find|known|kept|stored|load|loaded|next|"
    r"begun|state|status)(_|$)"
)
SAYS = ("Say whether", "True if", "Whether", "Tell whether")
WRITES = {
    *("unlink", "write_text", "write_bytes", "mkdir", "rmdir", "touch", "chmod", "symlink_to", "hardlink_to", "rmtree"),
    *("truncate", "fchmod", "ftruncate", "pwrite", "makedirs", "mkdtemp"),
}
"""Methods and functions that change files, whatever they are of; `replace`, `remove` and the like are those of `os`."""
OF_OS = {"replace", "remove", "rename", "write"}
SQL = ("INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER")
OPENED_TO_READ = {
    "fedsw.privacy.accounting.lifetime.dataset_account.DatasetAccount.state": "Journal.open with read_only",
    "fedsw.federation.deploy.client_check._holds_ledgers": "tries with a file of its own, which is gone again",
}
"""What calls something that writes, and lets it write nothing."""


@dataclass
class Function:
    """A function or method of the source: its tree, its module, and the class it is of."""

    node: ast.FunctionDef
    module: str
    owner: str | None


@dataclass
class Source:
    """Every function of a package, and what the modules' names stand for."""

    root: Path
    functions: dict[str, Function] = field(default_factory=dict)
    imports: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in sorted(self.root.rglob("*.py")):
            module = ".".join(path.relative_to(self.root.parent).with_suffix("").parts).removesuffix(".__init__")
            self.imports[module] = dict(imported(tree(path)))
            self._collect(tree(path).body, module, module, None)
        self.methods: dict[str, list[str]] = {}
        for name, function in self.functions.items():
            if function.owner is not None:
                self.methods.setdefault(function.node.name, []).append(name)
        self._known: dict[str, str | None] = {}

    def _collect(self, body: list[ast.stmt], prefix: str, module: str, owner: str | None) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef):
                self.functions[f"{prefix}.{node.name}"] = Function(node, module, owner)
            elif isinstance(node, ast.ClassDef):
                self._collect(node.body, f"{prefix}.{node.name}", module, f"{prefix}.{node.name}")

    def written(self, name: str, within: tuple[str, ...] = ()) -> str | None:
        """How a function comes to write, from the call that does backwards; None if it never does."""
        if name in within or name in OPENED_TO_READ:
            return None
        if name not in self._known:
            self._known[name] = self._way(name, (*within, name))
        return self._known[name]

    def _way(self, name: str, within: tuple[str, ...]) -> str | None:
        function = self.functions[name]
        for call in ast.walk(function.node):
            if not isinstance(call, ast.Call):
                continue
            if primitive := self._primitive(call, self.imports[function.module]):
                return primitive
            called = self._called(call, function)
            ways = [self.written(each, within) for each in called]
            if called and all(ways):
                return f"{ways[0]}, by {called[0]}"
        return None

    @staticmethod
    def _primitive(call: ast.Call, imports: dict[str, str]) -> str | None:
        asked = call.func
        name = asked.id if isinstance(asked, ast.Name) else asked.attr if isinstance(asked, ast.Attribute) else ""
        of_os = (
            isinstance(asked, ast.Attribute)
            and isinstance(asked.value, ast.Name)
            and imports.get(asked.value.id) == "os"
        )
        texts = [
            node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        if (isinstance(asked, ast.Attribute) and name in WRITES) or (of_os and name in OF_OS):
            return name
        if name.startswith("execute") and any(text.lstrip().upper().startswith(SQL) for text in texts):
            return "a statement that changes a table"
        if name == "open" and of_os:
            return "os.open" if any(flag in ast.unparse(call) for flag in ("O_CREAT", "O_TRUNC")) else None
        modes = [text for text in texts if text and set(text) <= set("rwaxbt+")]
        return f"open {modes}" if name == "open" and any(set(mode) & set("wax+") for mode in modes) else None

    def _called(self, call: ast.Call, function: Function) -> list[str]:
        """What may be called: one function where the name says which, else methods of classes that the module knows."""
        asked, imports = call.func, self.imports[function.module]
        if isinstance(asked, ast.Name):
            return self._one(f"{function.module}.{asked.id}") or self._one(imports.get(asked.id, ""))
        if not isinstance(asked, ast.Attribute):
            return []
        if isinstance(asked.value, ast.Name):
            if asked.value.id in ("self", "cls") and (own := self._one(f"{function.owner}.{asked.attr}")):
                return own
            if base := imports.get(asked.value.id):
                return self._one(f"{base}.{asked.attr}")
        here = function.module
        own = {name.rpartition(".")[2] for name in self.imports[here].values()}
        owners = {name: str(self.functions[name].owner) for name in self.methods.get(asked.attr, [])}
        known = any(owner.startswith(here) or owner.rpartition(".")[2] in own for owner in owners.values())
        return list(owners) if known else []

    def _one(self, name: str) -> list[str]:
        return [each for each in (name, f"{name}.__init__") if each in self.functions][:1]

    @cached_property
    def questions(self) -> list[str]:
        """Functions whose name or first line asks."""
        return [
            name
            for name, function in self.functions.items()
            if ASKS.match(function.node.name) or (ast.get_docstring(function.node) or "").startswith(SAYS)
        ]


def imported(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Names that a module's imports make, and what they stand for."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (
                (each.asname or each.name, each.name) for each in node.names if each.asname or "." not in each.name
            )


def test_no_function_that_asks_a_question_writes():
    source = Source(PACKAGE)
    assert len(source.questions) > 150
    assert {name: way for name in source.questions if (way := source.written(name))} == {}


ASKED = """
import os
from fedsw._tools import files

class Folder:
    def forget(self): self.path.unlink()

def _helper(path): path.touch()

def is_there(path, connection=None): {body}

def is_read(path): return open(path, 'rb').read().replace(b'a', b'b')
"""


@pytest.mark.parametrize(
    "body",
    [
        "(path / 'marker').unlink()",
        "files.replace(path, b'')",
        "open(path, 'a').write('one more')",
        "Folder(path).forget()",
        "_helper(path)",
        "os.open(path, os.O_RDWR | os.O_CREAT)",
        "connection.execute('delete from rows')",
    ],
)
def test_the_law_sees_whatever_way_a_question_writes(tmp_path, body):
    package = tmp_path / "fedsw"
    (package / "_tools").mkdir(parents=True)
    (package / "_tools" / "files.py").write_text("import os\ndef replace(path, content): os.replace(path, path)\n")
    (package / "asked.py").write_text(ASKED.format(body=body))
    source = Source(package)
    assert [bool(source.written(f"fedsw.asked.{name}")) for name in ("is_there", "is_read")] == [True, False]
