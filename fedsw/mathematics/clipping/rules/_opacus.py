"""Rules of the layers that Opacus brings, once something has imported them; nothing here imports Opacus."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedsw._tools.registry import Registry
from fedsw.mathematics.clipping.rules._recurrent import RecurrentCell, recurrence
from fedsw.mathematics.clipping.rules.attention import Projection
from fedsw.mathematics.clipping.rules.rule import BARE, Bare, Rule, Take, Worst

_MODES = {"DPLSTMCell": "LSTM", "DPGRUCell": "GRU"}


def register_imported(rules: Registry[Rule]) -> None:
    """Give the layers of Opacus their rules if this process has imported them."""
    layers = sys.modules.get("opacus.layers")
    if layers is None or layers.DPLSTM in rules:
        return
    for kind in (layers.DPRNN, layers.DPGRU, layers.DPLSTM):
        rules.register(kind, _RECURRENCE)
    rules.register(sys.modules["opacus.layers.dp_multihead_attention"].SequenceBias, _SEQUENCE_BIAS)


def _cells(layer: Any) -> list[RecurrentCell]:
    made = []
    for cell in layer.cells:
        mode = _MODES.get(type(cell).__name__) or f"RNN_{cell.nonlinearity.upper()}"
        inputs, states = (Projection.of(part.weight, part.bias) for part in (cell.ih, cell.hh))
        made.append(RecurrentCell(mode, inputs, states))
    return made


def _refusal(layer: Any) -> str | None:
    if not layer.batch_first:
        return "takes the second dimension for the batch and mixes along the first; set batch_first=True"
    if layer.training and layer.dropout > 0:
        return "drops values at random in training mode; set dropout=0.0 or call .eval() on it"
    parts = [part for part in layer.modules() if part is not layer]
    if any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in parts):
        return "has hooks, and parts of it are not called one by one when it is recorded; remove them"
    return _recurrence.refusal(layer)


_recurrence = recurrence(_cells, lambda layer: tuple(layer.new_to_old))
_RECURRENCE = replace(_recurrence, refusal=_refusal, contains=True)


def _appended(layer: Any, take: Take) -> Callable[..., Tensor]:
    """A learned site behind every sequence: (n, T, E) to (n, T + 1, E), or records second in both."""
    part, along = Bare.of(layer.bias), 1 if layer.batch_first else 0

    def append(x: Tensor) -> Tensor:
        first = x.transpose(0, 1 - along)
        site = layer.bias.expand(len(first), 1, -1)
        take(part, BARE, first, site)
        return torch.cat([x, site.transpose(0, 1 - along)], along)

    return append


class _Sequence(nn.Module):
    """A sequence with its learned site, records first."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """The longer sequences (n, T + 1, E)."""
        turned = not self.layer.batch_first
        longer: Tensor = self.layer(x.transpose(0, 1) if turned else x)
        return longer.transpose(0, 1) if turned else longer


def _worst(layer: Any) -> list[Worst]:
    return [Worst(_Sequence(layer), torch.ones(1, 2, len(layer.bias)), "a learned site")]


_SEQUENCE_BIAS = Rule(least_dims=lambda layer: 3, parameters=("bias",), worst=_worst, calls=_appended)
