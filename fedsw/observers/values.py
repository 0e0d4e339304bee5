"""What observers are handed over, as flat numbers and words for a tracking service."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fedsw.text import to_float

_FOREIGN = re.compile(r"[^\w\-./ ]")
_UNSAFE = "training_loss"
_NO_NUMBERS = ("round", "seed")


def numbers_of(content: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a round or a summary by name, inner ones as `held_out/accuracy`; words and gaps are left out.

    An un-noised loss, which a run records only where `unsafe_metrics` made its reader's epsilon infinite, is
    `unsafe/training_loss`.
    """
    found = {}
    for name, value in flat(content):
        number = to_float(value)
        if number is not None and name not in _NO_NUMBERS:
            found[f"unsafe/{name}" if name == _UNSAFE else name] = number
    return found


def words_of(content: Mapping[str, Any]) -> dict[str, str]:
    """Everything of a plan or a summary that is a word or a list of words, by name."""
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        for name, value in flat(content)
        if to_float(value) is None and value is not None
    }


def flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Name and value of everything that is not a mapping, names joined by '/', in signs that every service takes."""
    for name, value in content.items():
        path = prefix + _FOREIGN.sub("_", str(name))
        if isinstance(value, Mapping):
            yield from flat(value, f"{path}/")
        else:
            yield path, value
