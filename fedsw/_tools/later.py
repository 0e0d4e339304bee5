"""Modules that are imported when they are first used: reading settings, files or a ledger's rows does not wait.

A module that uses torch in its functions alone has it from here, and names its types for a checker only. What derives
from torch's classes imports torch itself. A package has the names of its modules from `named`, and a file that uses
many modules, each in one function, has them from `imported_later`.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, cast


@contextmanager
def loading() -> Iterator[None]:
    """Turn garbage collection off for the imports inside, and leave what they made out of every later one.

    Modules stay until the process ends, and to look through a million of their objects takes a tenth of a second. What
    else there is by then is left out, too; where all modules were loaded before, nothing is.
    """
    looking, known = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > known:
            gc.freeze()
        if looking:
            gc.enable()


_once = cache(import_module)
"""Once a process: thousands of steps ask for thousands of names."""


class Later:
    """Stands for a module: to ask it for a name, or to set one, imports the module by `load` and does that there."""

    def __init__(self, name: str, load: Callable[[str], ModuleType] = _once) -> None:
        object.__setattr__(self, "_module", partial(load, name))

    def __getattr__(self, name: str) -> object:
        return getattr(object.__getattribute__(self, "_module")(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(object.__getattribute__(self, "_module")(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(object.__getattribute__(self, "_module")(), name)


if TYPE_CHECKING:
    import torch as torch
else:
    torch = Later("torch")


def imported_later(spec: ModuleSpec) -> dict[str, Later]:
    """Modules that a file imports for the type checker, `from package import module as name`, each when first used.

    The checker's imports are the list, so that each module is named once.
    """
    source = cast(InspectLoader, spec.loader).get_source(spec.name) or ""
    imports = re.findall(r"^    from (\S+) import (\w+) as (\w+)$", source, re.MULTILINE)
    return {name: Later(f"{package}.{module}", _loaded) for package, module, name in imports}


def _loaded(name: str) -> ModuleType:
    if (module := sys.modules.get(name)) is not None:
        return module
    with loading():
        return import_module(name)


def named(package: str, homes: Mapping[str, Collection[str]]) -> Callable[[str], object]:
    """Return a package's `__getattr__`: names by the module, below the package, that defines them.

    Raises: AttributeError, of a name that no module has.
    """
    modules = {name: module for module, names in homes.items() for name in names}

    def first_used(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return first_used
