"""A linear layer's sum over records, in float64 as it is taken, against float32 strips of 64 records added in float64.

Where one record is replaced and all others keep their weights, strips of 64 would move a sum by 5e-4 of a record's part
more, which the factor 1.001 of sensitivities covers. They are not used, because of these rows: a product of 64 records is
too short for the numbers it writes, all of the weight's, which are then added in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from benchmarks.performance.timing import in_turns, repeated, spread

STRIP, RECORDS, INPUTS = 64, 4096, 784


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """See `benchmarks.performance.rows`."""
    for threads in (1, 2):
        for width in (256,) if quick else (256, 512, 2048):
            yield _row(width, threads, records=2 * STRIP if quick else RECORDS, turns=2 if quick else 7)


def _row(width: int, threads: int, *, records: int, turns: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    backprops = torch.randn((records, width), generator=generator)
    inputs = torch.randn((records, INPUTS), generator=generator)
    doubled = backprops.to(torch.float64), inputs.to(torch.float64)
    ways = {"ours": lambda: doubled[0].T @ doubled[1], "strips": lambda: in_strips(backprops, inputs)}
    taken = in_turns({name: repeated(way) for name, way in ways.items()}, turns=turns, threads=threads)
    apart = float((ways["strips"]() - ways["ours"]()).norm() / ways["ours"]().norm())
    ours, strips = taken["ours"].median, taken["strips"].median
    return {
        "what": f"sum over {records} records of a weight of {INPUTS} x {width}, {threads} thread(s)",
        "against": f"float32 in strips of {STRIP} records",
        "ours": ours,
        "other": strips,
        "ratio": strips / ours,
        "goal": "",
        "met": None,
        "spread": spread(**taken),
        "note": f"relative difference {apart:.1e}; conversions, which both take, are left out",
    }


def in_strips(left: Tensor, right: Tensor) -> Tensor:
    """Sum over records of left_i right_i^T, (o, p) float64, for (n, o) and (n, p) in float32."""
    shape = (left.shape[1], right.shape[1])
    total, own = torch.zeros(shape, dtype=torch.float64), torch.empty(shape)
    for here, there in zip(left.split(STRIP), right.split(STRIP), strict=True):
        total.add_(torch.mm(here.T, there, out=own))
    return total
