"""Names of a package that are imported when they are first used, so that its other modules come without them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module


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
