"""What a row of a benchmark holds: the interface between the modules of this package and the page that shows them.

A module `benchmarks/performance/NAME.py` has one public function,

    def measure(quick: bool) -> Iterable[dict[str, object]]

which measures and gives rows one after the other; a generator is best, because every row is on disk before the next one
is measured. `quick` asks for the smallest sizes that go through all of its code. Both sides of a row are measured in the
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

KEYS = ("what", "against", "ours", "other", "ratio", "goal", "met", "spread", "note")
_TEXTS = ("what", "against", "goal", "note")
_NUMBERS = ("ours", "other", "ratio")


def checked(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row, if the page can show it.

    Raises:
        ValueError: naming the key that is missing or of another type, and what is expected.
    """
    missing = [key for key in KEYS if key not in row]
    if missing:
        raise ValueError(f"row {row.get('what', row)!r} lacks {', '.join(missing)}; a row has {', '.join(KEYS)}")
    for key in _TEXTS:
        if not isinstance(row[key], str):
            raise ValueError(f"row {row['what']!r}: {key} is {row[key]!r}; it is text, empty where there is none")
    for key in _NUMBERS:
        if not (row[key] is None or _is_number(row[key])):
            raise ValueError(f"row {row['what']!r}: {key} is {row[key]!r}; it is a finite number, or None")
    if row["met"] not in (True, False, None):
        raise ValueError(f"row {row['what']!r}: met is {row['met']!r}; it is True, False, or None where not measured")
    if row["met"] is False and not row["note"]:
        raise ValueError(f"row {row['what']!r} misses its goal without a note; the note names the bottleneck")
    if "curve" in row:
        _check_curve(row)
    json.dumps(row, allow_nan=False)
    return dict(row)


def _check_curve(row: Mapping[str, Any]) -> None:
    curve = row["curve"]
    sizes, seconds = curve.get("sizes", []), curve.get("seconds", [])
    if len(sizes) != len(seconds) or len(sizes) < 2 or not all(each > 0 for each in (*sizes, *seconds)):
        raise ValueError(
            f"row {row['what']!r}: a curve has two or more sizes and as many seconds, all above 0; it has "
            f"{len(sizes)} sizes and {len(seconds)} seconds"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
