"""Libraries that are imported when they are first used: reading settings, files or a ledger's rows does not wait.

A module that uses torch in its functions alone has it from here, and names its types for a checker only. What derives
from torch's classes imports torch itself.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING


@contextmanager
def loading() -> Iterator[None]:
    """Turn garbage collection off for the imports inside, and leave what they made out of every later one.

    Modules stay until the process ends, and to look through a million of their objects takes a tenth of a second. What
    else there is by then is left out, too: so nothing is where the imports found all that they need.
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


class Later:
    """Stands for a module: to ask it for a name, or to set one, imports the module and does that there."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_of", name)

    def __getattr__(self, name: str) -> object:
        return getattr(_module(object.__getattribute__(self, "_of")), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_module(object.__getattribute__(self, "_of")), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_module(object.__getattribute__(self, "_of")), name)


_module = cache(import_module)
"""Once a process: thousands of steps ask for thousands of names."""


if TYPE_CHECKING:
    import torch as torch
else:
    torch = Later("torch")
