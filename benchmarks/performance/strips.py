"""A linear layer's clipped sum over records, in float64 as it is taken, against float32 strips of 64 records.

Where one record is replaced and all others keep their weights, strips of 64, added in float64, would move a sum by 5e-4 of
a record's part more, which the factor 1.001 of sensitivities covers. They are not used, because of these rows: a product of
64 records is too short for the numbers it writes, all of the weight's, which are then added in float64; and what it saves
goes into bringing both factors into float32's range, where else a subnormal number could be rounded by up to a half.
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
    backprops = torch.randn((records, width), generator=generator).to(torch.float64)
    inputs = torch.randn((records, INPUTS), generator=generator).to(torch.float64)
    cuts = torch.rand(records, generator=generator, dtype=torch.float64)
    ways = {
        "ours": lambda: (backprops * cuts.unsqueeze(1)).T @ inputs,
        "strips": lambda: in_strips(*in_range(backprops, inputs, cuts)),
    }
    taken = in_turns({name: repeated(way) for name, way in ways.items()}, turns=turns, threads=threads)
    apart = float((ways["strips"]() - ways["ours"]()).norm() / ways["ours"]().norm())
    ours, strips = taken["ours"].median, taken["strips"].median
    return {
        "what": f"clipped sum over {records} records of a weight of {INPUTS} x {width}, {threads} thread(s)",
        "against": f"float32 in strips of {STRIP} records",
        "ours": ours,
        "other": strips,
        "ratio": strips / ours,
        "goal": "",
        "met": None,
        "spread": spread(**taken),
        "note": f"relative difference {apart:.1e}; both begin with factors in float64, which are measured",
    }


def in_range(left: Tensor, right: Tensor, cuts: Tensor) -> tuple[Tensor, Tensor]:
    """Both factors (n, ...) in float32: rows of `right` of norm about 1, by powers of two, `left` with their cuts (n,)."""
    norms = torch.linalg.vector_norm(right, dim=1).clamp_(2.0**-100, 2.0**100)
    scale = norms / torch.frexp(norms).mantissa
    cut = (left * (cuts * scale).unsqueeze(1)).clamp_(-(2.0**100), 2.0**100)
    return cut.to(torch.float32), (right / scale.unsqueeze(1)).to(torch.float32)


def in_strips(left: Tensor, right: Tensor) -> Tensor:
    """Sum over records of left_i right_i^T, (o, p) float64, for (n, o) and (n, p) in float32."""
    shape = (left.shape[1], right.shape[1])
    total, own = torch.zeros(shape, dtype=torch.float64), torch.empty(shape)
    for here, there in zip(left.split(STRIP), right.split(STRIP), strict=True):
        total.add_(torch.mm(here.T, there, out=own))
    return total
