"""Columns of the outputs' Jacobians for a block of records: measured, weighed and made parts of a sum, call by call."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedsw.mathematics.clipping.gram import Block, Call, Numbers, Products, RecordTerm, in_range
from fedsw.mathematics.clipping.rules.rule import Factored, inner_products, tiles

Way = Literal["cheapest", "formed", "factored"]

# Numbers that the formed rows of a block may hold, unless its activations hold more: 64 MB in float32.
_FORMED_FLOATS = 2**24


@dataclass(frozen=True)
class OutputColumns:
    """D columns of a block's outputs, pulled back to the calls that at least one of them reaches."""

    records: int
    count: int
    calls: Sequence[_Formed | _Factored]
    device: torch.device

    def gram(self, columns: slice) -> Tensor:
        """Gram matrices (n, d, d), float64, of some of the columns: sums over the calls."""
        wanted = range(self.count)[columns]
        parts = [call.gram(wanted) for call in self.calls if any(column in call.reached for column in wanted)]
        if not parts:
            return torch.zeros((self.records, len(wanted), len(wanted)), dtype=torch.float64, device=self.device)
        return functools.reduce(Tensor.add_, parts)

    def parts(self, weights: Tensor) -> list[RecordTerm]:
        """Contributions of every call to J^T weights, record by record: weights (n, D), float64."""
        return [call.part(weights) for call in self.calls]


def columns(block: Block, rows: Sequence[Sequence[Tensor | None]], way: Way = "cheapest") -> OutputColumns:
    """Measure what D rows of cotangents of a block's outputs, each of its output's shape, send to its calls.

    A call with a rule for both factors and rows goes the cheaper way within the memory of the activations, unless
    ``way`` says which, or inputs are ragged.
    """
    # Of ragged inputs the longest record decides which way is cheaper, and would change the rounding of all others.
    way = "factored" if block.ragged or any(call.rule.ragged for call in block.calls) else way
    pulled = [block.backprops(row) for row in rows]
    # Memory is counted down call by call, by shapes only: the same for all records, whatever they hold.
    room = max(_FORMED_FLOATS, block.floats)
    calls: list[_Formed | _Factored] = []
    for number, call in enumerate(block.calls):
        reached = [column for column, deltas in enumerate(pulled) if deltas[number] is not None]
        deltas = [delta for column in reached if (delta := pulled[column][number]) is not None]
        for column in reached:
            pulled[column][number] = None  # freed as soon as its call has used it
        if not reached:
            continue
        # Numbers that formed rows hold until they are added, and those of the part made of them.
        floats = deltas[0].shape[0] * call.entries * (len(deltas) + 2)
        if _forms(call, deltas, way, room=room - floats):
            room -= floats if call.rule.factored is not None else 0
            calls.append(_Formed.of(call, reached, deltas))
        else:
            calls.append(_Factored.of(call, reached, deltas))
    return OutputColumns(block.records, len(rows), calls, block.outputs[0].device)


@dataclass(frozen=True)
class _Factored:
    """A call measured by the factors of its columns; its input, and those of a `single` column, are converted once."""

    call: Call
    rule: Factored
    reached: Sequence[int]
    deltas: Sequence[Tensor]
    input: Tensor
    shared: Tensor | None
    single: Products | None = None

    @staticmethod
    def of(call: Call, reached: Sequence[int], deltas: Sequence[Tensor]) -> _Factored:
        rule = call.rule.factored
        assert rule is not None
        inputs = in_range(call.input)
        shared = rule.shared(call.layer, inputs)
        unweighed = torch.ones(len(deltas[0]), dtype=torch.float64, device=deltas[0].device)
        single = Products.of(call, rule, inputs, shared, deltas[0], unweighed) if len(deltas) == 1 else None
        return _Factored(call, rule, reached, deltas, inputs, shared, single)

    def gram(self, wanted: Sequence[int]) -> Tensor:
        if self.single is not None and list(wanted) == list(self.reached):
            return self.single.gram.clone()
        deltas = _those_of(wanted, self.reached, self.deltas)
        return self.rule.measured(self.call.layer, self.input, deltas, self.shared)

    def part(self, weights: Tensor) -> RecordTerm:
        if self.single is not None:
            return replace(self.single, scale=in_range(weights[:, self.reached[0]]))
        units, scale = _units(_taken(weights, self.reached))
        # In the precision of the backprops: the part is measured after this rounding, and cut all the same.
        units = units.to(self.deltas[0].dtype)
        shape = (-1, *[1] * (self.deltas[0].dim() - 1))
        delta = self.deltas[0] * units[:, 0].reshape(shape)
        for number, other in enumerate(self.deltas[1:], 1):
            delta.addcmul_(other, units[:, number].reshape(shape))
        return Products.of(self.call, self.rule, self.input, self.shared, delta, scale)


@dataclass(frozen=True)
class _Formed:
    """A call with formed columns: (D', n, entries) by name; one is kept in float64, as it will be added."""

    call: Call
    reached: Sequence[int]
    values: Mapping[str, Tensor]

    @staticmethod
    def of(call: Call, reached: Sequence[int], deltas: Sequence[Tensor]) -> _Formed:
        formed = call.rule.formed
        assert formed is not None
        a, d = call.input, len(deltas)
        floats = formed.floats(call.layer, a, deltas[0], d)
        values: dict[str, Tensor] = {}
        for part in tiles(a.shape[0], floats, a.device):
            rows = formed.rows(call.layer, a[part], [delta[part] for delta in deltas])
            for name, entries in rows.items():
                if name not in values:
                    dtype = torch.float64 if d == 1 else entries[0].dtype
                    values[name] = torch.empty((d, a.shape[0], entries[0].shape[1]), dtype=dtype, device=a.device)
                for row, store in zip(entries, values[name], strict=True):
                    store[part] = row
        return _Formed(call, reached, values)

    def gram(self, wanted: Sequence[int]) -> Tensor:
        grams = [inner_products(_those_of(wanted, self.reached, list(entries))) for entries in self.values.values()]
        return functools.reduce(Tensor.add_, grams)

    def part(self, weights: Tensor) -> RecordTerm:
        if len(self.reached) == 1:
            scale = in_range(weights[:, self.reached[0]])
            return Numbers(self.call, {name: _stored(entries[0]) for name, entries in self.values.items()}, scale)
        units, scale = _units(_taken(weights, self.reached))
        return Numbers(
            self.call,
            {name: _stored(_combined(entries, units)) for name, entries in self.values.items()},
            in_range(scale),
        )


def _those_of(wanted: Sequence[int], reached: Sequence[int], values: Sequence[Tensor]) -> list[Tensor]:
    """The wanted columns, of the values of those that were reached; zeros for the others."""
    known = dict(zip(reached, values, strict=True))
    return [known[column] if column in known else torch.zeros_like(values[0]) for column in wanted]


def _forms(call: Call, deltas: Sequence[Tensor], way: Way, *, room: int) -> bool:
    formed = call.rule.formed
    if formed is None or call.rule.factored is None:
        return formed is not None
    if way != "cheapest":
        return way == "formed"
    return room >= 0 and formed.cheaper(call.layer, call.input, deltas[0], len(deltas))


def _taken(weights: Tensor, reached: Sequence[int]) -> Tensor:
    if len(reached) == weights.shape[1]:
        return weights
    return torch.stack([weights[:, column] for column in reached], dim=1)  # a list of numbers would be sent to a device


def _units(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (n, D) as numbers in [-1, 1] and their scale (n,): in no precision do they overflow or underflow."""
    scale = weights.abs().amax(dim=1)
    return weights / torch.where(scale > 0, scale, 1.0)[:, None], scale


def _combined(values: Tensor, units: Tensor) -> Tensor:
    """Sum over the columns of (D, n, entries), weighed by (n, D)."""
    return torch.bmm(units.to(values.dtype).unsqueeze(1), values.transpose(0, 1)).squeeze(1)


def _stored(values: Tensor) -> Tensor:
    """The numbers that are measured and added: converted to float64 once, so that no later reading can flush any."""
    if values.dtype == torch.float64:
        return in_range(values)
    return values.to(torch.float64)
