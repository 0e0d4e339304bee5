"""Seconds and bytes of masks: `python -m benchmarks.masks` writes benchmarks/results/masks.json and prints a table."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path

import torch

from fedsw.accounting import Charge
from fedsw.markdown import table
from fedsw.privacy.masks import MaskKey, digest_of
from fedsw.privacy.release import Bounded, Part, pay, release_share
from fedsw.privacy.sensitivity import Sensitivity
from fedsw.privacy.shares import Share, shared_step
from fedsw.randomness import Stream

PLACE = Path(__file__).parent / "results" / "masks.json"
SITES, NUMBERS = (3, 10, 30, 100), (10**3, 10**4, 10**5, 10**6, 10**7)
_MOST = 3 * 10**8
"""Masked numbers of a site, sites times numbers, that are measured; beyond it cost goes on in proportion."""


class _Uncharged:
    def spend(self, round: int, attempt: int, charges: object, sigma: float) -> float:
        return 0.0


def measure(sites: int, numbers: int) -> dict[str, float]:
    """Seconds of one site for one masked sum: agreeing on keys (once a run), masks, noise."""
    own, others = MaskKey.fresh(), [MaskKey.fresh().public for _ in range(sites - 1)]
    began = time.perf_counter()
    for other in others:
        own.shared(other)
    agreed = time.perf_counter()
    mask = own.mask(others, digest_of({"round": 1}), numbers)
    masked = time.perf_counter()
    part = Part("sum", 1.0, 1.0)
    paid = [pay(_Uncharged(), 1, 0, [Charge("records", 1.0, 1.0)], 1.0, [part])]
    share = Share(1, sites, shared_step(1.0, sites, [1] * sites), 10.0)
    bounded = Bounded(torch.zeros(numbers, dtype=torch.float64), Sensitivity(1.0, "any"))
    started = time.perf_counter()
    release_share(bounded, paid, "sum", share, mask, Stream.secure())
    return {
        "keys": agreed - began,
        "masks": masked - agreed,
        "noise": time.perf_counter() - started,
        "bytes": 8.0 * numbers,
    }


def main() -> None:
    """Measure and write."""
    torch.set_num_threads(1)
    found = {
        f"{sites}/{numbers}": measure(sites, numbers)
        for numbers in NUMBERS
        for sites in SITES
        if sites * numbers <= _MOST
    }
    PLACE.write_text(json.dumps({"machine": platform.processor(), "runs": found}, indent=1) + "\n", encoding="utf-8")
    rows = [
        (name.split("/")[0], f"{int(name.split('/')[1]):,}", f"{1e3 * run['keys']:.1f}", f"{run['masks']:.3f}",
         f"{run['noise']:.3f}", f"{run['bytes'] / 1e6:.3g}")
        for name, run in found.items()
    ]  # fmt: skip
    print(table(("sites", "numbers", "keys, ms once a run", "masks, s", "noise, s", "MB up"), rows))


if __name__ == "__main__":
    main()
