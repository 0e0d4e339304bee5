"""Who carries messages between server and clients: in process, on Ray, or real processes; and who works in parallel."""

import contextlib
import gc
from collections.abc import Iterator
from typing import Literal

Engine = Literal["inprocess", "ray", "flwr", "deployed"]


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import what is imported inside without looking for garbage in it: there is none, and looking takes time."""
    looking = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if looking:
            gc.enable()
