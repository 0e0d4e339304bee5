"""Somebody else's package, imported in parts: some of its modules, without all that its `__init__` imports."""

from __future__ import annotations

import importlib
import importlib.util
import sys


def in_parts(name: str) -> None:
    """Let modules of the package `name` be imported without its `__init__`, which runs when it is first missed.

    A name that the package does not have yet is its module of that name, or else what `__init__` defines: whoever uses
    the package later in this process finds all of it. Nothing happens if it is imported already, or not installed.
    For a command's own process: what looks at the package while another thread runs its `__init__` may see half of it.
    """
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    loader, package = spec.loader, importlib.util.module_from_spec(spec)

    def missed(wanted: str) -> object:
        if importlib.util.find_spec(f"{name}.{wanted}") is not None:
            return importlib.import_module(f"{name}.{wanted}")
        if package.__dict__.pop("__getattr__", None) is None:
            raise AttributeError(f"module {name!r} has no attribute {wanted!r}")
        loader.exec_module(package)
        return getattr(package, wanted)

    package.__dict__["__getattr__"] = missed
    sys.modules[name] = package
