"""Python objects that were handed to a run, by the names that its experiment knows them by: models, tasks, records."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

OBJECT = "object"
"""What such a name has before its colon, where others have a module."""

_held: dict[str, object] = {}


def is_held(text: str) -> bool:
    """Whether `text` is the name of an object that a process holds, not of something in a module."""
    return text.startswith(f"{OBJECT}:")


def fresh_name() -> str:
    """A name for an object of this process that nobody can guess; it is written as `module:name` is."""
    return f"{OBJECT}:x{secrets.token_hex(16)}"


@contextmanager
def held(thing: object, name: str | None = None) -> Iterator[str]:
    """Let this process find an object by its name until the block ends; then the name is what it was before.

    Args:
        thing: the object.
        name: the name it had before, to go on with a run, or the `module:name` that it was loaded by; by default a
            fresh one.
    """
    known = name or fresh_name()
    before = {known: _held[known]} if known in _held else {}
    _held[known] = thing
    try:
        yield known
    finally:
        del _held[known]
        _held.update(before)


def in_this_process(name: str) -> object | None:
    """The object that is held under a name; None if there is none."""
    return _held.get(name)
