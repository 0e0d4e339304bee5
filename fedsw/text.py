"""Numbers and names as text: JSON without NaN or Infinity literals, short forms and hints for people."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """JSON of a nested value; infinities become "inf" or "-inf" and NaN becomes null."""
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def to_float(value: Any) -> float | None:
    """The number behind a JSON value written by `json_text`: "inf" is infinite, anything else None."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def number(value: Any, digits: int = 3) -> str:
    """A short form for people: 1.23, 3.3e-06, ∞; an en dash when there is no number."""
    known = to_float(value)
    if known is None or math.isnan(known):
        return "–"
    if math.isinf(known):
        return "∞" if known > 0 else "-∞"
    return f"{known:.{digits}g}"


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint for a message, "nearest: 'x'; ": the known name that is most like another; empty if none is."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"nearest: {close[0]!r}; " if close else ""


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if hasattr(value, "item"):
        return _plain(value.item())
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    return str(value)
