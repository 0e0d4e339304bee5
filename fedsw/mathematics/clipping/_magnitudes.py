"""Made-up records of many magnitudes: the same at every door where code is tried for mixing records."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_TOGETHER = (1.0, 10.0, 1e3, 1e6, -10.0, -1e6)
"""Sizes of records in one batch, so that whatever is computed of a batch differs from what is computed of each."""
_APART = (10.0, 100.0, 1e3, 1e6, -10.0, -1e3)
"""Sizes of batches in which all records have the same one."""
_RECORDS = 3


def magnitudes(inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """Batches of made-up records like the given ones, with numbers far beyond them.

    Normal ones; the same, filled up with zeros (what has no fractions with ones, too) at either end, as sequences of
    several lengths are, of which a batch reaches as far as the longest; one batch of many sizes, with outliers of
    either sign and a record of equal numbers; and a batch of each size. What has no fractions is taken from the given
    ones in turn: where nothing else is given, there are no sizes.
    """
    generator = torch.Generator().manual_seed(0)
    normal = [_normal(value, generator) for value in inputs]
    yield normal
    for mark, left in ((0, False), (1, False), (0, True)):
        yield [_filled_up(value, mark, left) for value in normal]
    if not any(isinstance(value, Tensor) and value.is_floating_point() for value in inputs):
        return
    for sizes in (_TOGETHER, *([size] * _RECORDS for size in _APART)):
        yield [_sized(value, sizes, generator, equal=len(sizes) > _RECORDS) for value in inputs]


def _normal(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return _in_turn(value, _RECORDS)
    drawn = torch.randn((_RECORDS, *value.shape[1:]), generator=generator, dtype=torch.float64)
    return drawn.to(value.device, value.dtype)


def _filled_up(value: Any, mark: int, left: bool) -> Any:
    """The records with zeros for all numbers but the first: of the first record all stay, of the next a half, ...

    Where an input has no fractions, 0 or 1 may stand for *nothing more*: ``mark`` says which. ``left``: but the last.
    """
    if not isinstance(value, Tensor) or value.numel() == 0:
        return value
    flat = value.reshape(len(value), -1)
    lengths = [-(-flat.shape[1] // part) for part in range(1, len(flat) + 1)]
    real = torch.arange(flat.shape[1]) < torch.tensor(lengths).unsqueeze(1)
    real = real.flip(1) if left else real
    return flat.masked_fill(~real.to(value.device), 0 if value.is_floating_point() else mark).reshape(value.shape)


def _sized(value: Any, sizes: Sequence[float], generator: torch.Generator, *, equal: bool) -> Any:
    """Numbers uniform up to each record's size; where asked, with a last record of equal ones."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return _in_turn(value, len(sizes) + equal)
    rest = value.shape[1:]
    drawn = torch.rand((len(sizes), *rest), generator=generator, dtype=torch.float64)
    scale = torch.tensor(sizes, dtype=torch.float64).reshape(-1, *(1,) * len(rest))
    made = torch.cat([drawn * scale, torch.full((1, *rest), 5.0, dtype=torch.float64)]) if equal else drawn * scale
    return made.to(value.device, value.dtype)


def _in_turn(value: Any, count: int) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value[torch.tensor(list(itertools.islice(itertools.cycle(range(len(value))), count)))]
