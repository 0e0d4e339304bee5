"""Bytes of a round, by the table of messages that both apps encode by (`fedsw.federation.messages`).

A message's arrays are counted as `fedsw.federation.exchange.exchange.Traffic` counts them: numbers, and the key of the
stream that each array is mixed with. Its settings and Flower's envelope, some hundred bytes, are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fedsw.federation import messages, wire
from fedsw.federation.messages import Exchange
from fedsw.federation.messages.codec import WITH_MOMENTS, ArrayField, Message, fields_of
from fedsw.federation.trust.round_plan import most_drawn

_WIDTHS = {"run": 4, "float64": 8, "int64": 8}
"""Bytes of a number; "run" is training.precision, float32 unless it is set."""
KEY_BYTES = len(wire.encode(torch.zeros(0))[3])
"""Of the stream that an array is mixed with; they travel before it."""


@dataclass(frozen=True)
class Shape:
    """What the bytes of a round follow from.

    Attributes:
        parameters: r of the model; dimension: d of the outputs; directions: k; cells: c; bins: B of a noised table.
    """

    parameters: int
    dimension: int = 1
    directions: int = 1
    cells: int = 2
    bins: int = 32


@dataclass(frozen=True)
class Round:
    """Bytes of one round at the server, all sites together."""

    down: float
    up: float

    @property
    def total(self) -> float:
        """Both ways."""
        return self.down + self.up


def message_bytes(kind: type[Message], lengths: Mapping[str, int]) -> int:
    """Bytes of the arrays of one message of a run without moments, with the lengths of the table's symbols."""
    total = 0
    for field in fields_of(kind).values():
        if field.when is WITH_MOMENTS:
            continue
        if isinstance(field, ArrayField) and not field.by_cell:
            numbers = math.prod(lengths[symbol] for symbol in field.shape.split())
            total += numbers * _WIDTHS[field.precision] + KEY_BYTES
    return total


def exchange_bytes(exchange: Exchange[Message, Message], lengths: Mapping[str, int]) -> Round:
    """Of one site."""
    return Round(message_bytes(exchange.down, lengths), message_bytes(exchange.up, lengths))


def rows_of_a_site(batch: int, *, sites: int, held: int, cells: int) -> int:
    """P: the rows that a site's arrays are filled up to, where sites hold equal numbers of records of equal cells.

    Args:
        batch: records of a round, all sites and cells together.
        held: records of one site, all cells together.
    """
    own = max(1, held // cells)
    return cells * most_drawn(max(1, batch // cells), own, sites * own)


def central_round(shape: Shape, *, batch: int, clients: int, sites: int, records: int) -> Round:
    """A round under `central`: two exchanges with every site, each with the rows of all its clients.

    Args:
        batch, clients, records: of all sites together.
    """
    rows = rows_of_a_site(batch, sites=sites, held=records // sites, cells=shape.cells)
    lengths = _lengths(shape, P=rows, S=clients // sites, L=0)
    found = [exchange_bytes(each, lengths) for each in (messages.OUTPUTS, messages.GRADIENTS)]
    return Round(sites * sum(each.down for each in found), sites * sum(each.up for each in found))


def histogram_round(shape: Shape, *, clients: int) -> Round:
    """A round under `local-gradient`: a noised table and a noised contribution of every client, whatever its batch."""
    lengths = _lengths(shape)
    found = [exchange_bytes(each, lengths) for each in (messages.TABLES, messages.LOCAL_GRADIENTS)]
    return Round(clients * sum(each.down for each in found), clients * sum(each.up for each in found))


def rows_that_weigh_as_much_as_tables(shape: Shape) -> float:
    """Records of a site and round above which tables of histograms, both ways, are smaller than outputs and cotangents."""
    tables = histogram_round(shape, clients=1).total - histogram_round(_without_tables(shape), clients=1).total
    a_row = shape.dimension * (_WIDTHS["run"] + _WIDTHS["float64"])
    return tables / a_row


def _without_tables(shape: Shape) -> Shape:
    return Shape(shape.parameters, shape.dimension, 0, shape.cells, shape.bins)


def _lengths(shape: Shape, **more: int) -> dict[str, int]:
    known = {"r": shape.parameters, "d": shape.dimension, "k": shape.directions, "c": shape.cells, "B": shape.bins}
    return {**known, **more}
