"""Seconds and bytes of masks: `python -m benchmarks.masks [--table]` writes benchmarks/results/masks.json.

With --table what was measured before is printed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from benchmarks.machine import describe
from fedsw._tools.randomness import Stream
from fedsw._tools.text import table
from fedsw.privacy.masks import MaskKey, Share, digest_of, shared_step
from fedsw.privacy.release import Bounded, Paid, Part, release_share
from fedsw.privacy.sensitivity import Sensitivity

PLACE = Path(__file__).parent / "results" / "masks.json"
SITES, NUMBERS = (3, 10, 30, 100), (10**3, 10**4, 10**5, 10**6, 10**7)
SLOW, FAST = 1.25e6, 1.25e8
"""Bytes a second of lines of 10 Mbit/s and 1 Gbit/s."""


def measure(sites: int, numbers: int) -> dict[str, float]:
    """Seconds of one core for a site's part of a masked sum: agreeing on keys (once a run), masks, noise."""
    own, others = MaskKey.fresh(), [MaskKey.fresh().public for _ in range(sites - 1)]
    began = time.process_time()
    for other in others:
        own.shared(other)
    agreed = time.process_time()
    mask = own.mask(others, digest_of({"round": 1}), numbers)
    masked = time.process_time()
    part = Part("sum", 1.0, 1.0)
    paid = [Paid(1, 0, 0.0, {part.name: part})]  # of no records: nothing is charged
    share = Share(1, sites, shared_step(1.0, sites, [1] * sites), 10.0)
    bounded = Bounded(torch.zeros(numbers, dtype=torch.float64), Sensitivity(1.0, "any"))
    started = time.process_time()
    release_share(bounded, paid, "sum", share, mask, Stream.secure())
    return {
        "keys": agreed - began,
        "masks": masked - agreed,
        "noise": time.process_time() - started,
        "bytes": 8.0 * numbers,
    }


def rows(runs: dict[str, dict[str, float]]) -> str:
    """A row for each size of vector."""
    lines = []
    for numbers in NUMBERS:
        own = [runs[f"{sites}/{numbers}"] for sites in SITES]
        binds = [
            "line" if own[-1]["bytes"] / speed > own[-1]["masks"] + own[-1]["noise"] else "masks"
            for speed in (SLOW, FAST)
        ]
        noise = min(run["noise"] for run in own)
        masks = [f"{run['masks']:.2g}" for run in own]
        up = own[-1]["bytes"]
        lines.append((f"{numbers:,}", f"{up / 1e6:.3g}", f"{noise:.2g}", *masks, f"{up / SLOW:.2g}", *binds))
    heads = (
        "numbers", "MB up", "noise, s", *(f"masks, s: {sites} sites" for sites in SITES), "10 Mbit/s, s",
        "binds at 10 Mbit/s, 100 sites", "binds at 1 Gbit/s",
    )  # fmt: skip
    keys = max(runs[f"{SITES[-1]}/{numbers}"]["keys"] for numbers in NUMBERS)
    return f"{table(heads, lines)}\n\nKeys with {SITES[-1] - 1} others: at most {1e3 * keys:.2g} ms, once a run."


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    if "--table" not in sys.argv[1:]:
        runs = {f"{sites}/{numbers}": measure(sites, numbers) for numbers in NUMBERS for sites in SITES}
        PLACE.write_text(json.dumps({"machine": describe(), "runs": runs}, indent=1) + "\n", encoding="utf-8")
    print(content())


def content() -> str:
    """The table of what is stored."""
    return rows(json.loads(PLACE.read_text(encoding="utf-8"))["runs"])


if __name__ == "__main__":
    main()
