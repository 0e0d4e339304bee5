"""Engines, which carry messages between server and clients: in process, on Ray, or real processes; parallel work."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Literal

Engine = Literal["inprocess", "ray", "flwr", "deployed"]


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Turn garbage collection off for the imports inside: they leave no garbage, and looking for it takes time."""
    looking = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looking:
            gc.enable()
