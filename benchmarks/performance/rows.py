"""What a row of a benchmark holds: the interface between the modules of this package and the page that shows them.

A module `benchmarks/performance/NAME.py` has one public function,

    def measure(quick: bool) -> Iterable[dict[str, object]]

which measures and gives rows one after the other; a generator is best, because every row is on disk before the next one
is measured. `quick` asks for the smallest sizes that go through all of its code. A module may have `missing() -> str`
besides: why nothing can be measured on this machine, or nothing. Both sides of a row are measured in the
same run, in turns (`benchmarks.performance.timing`). The first line of the module's docstring says what it measures.

Keys of every row (`KEYS`):

- `what`: what is measured, with its sizes;  `against`: the alternative, or the limit;
- `ours`, `other`: seconds, or the figure that `unit` names; a number, or None where there is none;
- `ratio`: as the goal counts it; a number or None;
- `goal`: the goal in words, or "" where a row only reports;  `met`: whether it is met; None where it was not measured;
- `spread`: how far the turns lie apart, in words or as a number;
- `note`: the bottleneck where the goal is missed, the reason where nothing was measured, or what the two sides differ in.

Keys that a row may have besides:

- `unit`: of `ours` and `other` where they are not seconds;
- `curve`: {"over": what grows, "sizes": [...], "seconds": [...]}: such a row is a cost curve, whose exponent is fitted;
- anything else that JSON holds: kept for whoever reads the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

KEYS = ("what", "against", "ours", "other", "ratio", "goal", "met", "spread", "note")
_TEXTS = ("what", "against", "goal", "note")
_NUMBERS = ("ours", "other", "ratio")


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The row, if the page can show it, with Python's own numbers; None where a number is not finite.

    Raises:
        ValueError: naming the key that is missing or of another type, and what is expected.
    """
    row = {key: _plain(value) for key, value in given.items()}
    missing = [key for key in KEYS if key not in row]
    if missing:
        raise ValueError(f"row {row.get('what', row)!r} lacks {', '.join(missing)}; a row has {', '.join(KEYS)}")
    for key in _TEXTS:
        if not isinstance(row[key], str):
            raise ValueError(f"row {row['what']!r}: {key} is {row[key]!r}; it is text, empty where there is none")
    for key in _NUMBERS:
        if not (row[key] is None or _is_number(row[key])):
            raise ValueError(f"row {row['what']!r}: {key} is {row[key]!r}; it is a number, or None")
    if row["met"] not in (True, False, None):
        raise ValueError(f"row {row['what']!r}: met is {row['met']!r}; it is True, False, or None where not measured")
    if "curve" in row:
        _check_curve(row)
    json.dumps(row, allow_nan=False)
    return row


def explained(row: Mapping[str, Any]) -> bool:
    """Whether a row that misses its goal, or could not be measured, says why."""
    return row["met"] is True or not row["goal"] or bool(row["note"])


def _check_curve(row: Mapping[str, Any]) -> None:
    curve = row["curve"]
    sizes, seconds = curve.get("sizes", []), curve.get("seconds", [])
    if len(sizes) != len(seconds) or len(sizes) < 2 or not all(each > 0 for each in (*sizes, *seconds)):
        raise ValueError(
            f"row {row['what']!r}: a curve has two or more sizes and as many seconds, all above 0; it has "
            f"{len(sizes)} sizes and {len(seconds)} seconds"
        )


def _plain(value: Any) -> Any:
    """numpy's scalars as Python's; None for a float that is not finite, which JSON does not hold."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
