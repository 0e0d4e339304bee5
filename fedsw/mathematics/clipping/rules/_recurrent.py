"""Recurrences: their maps of inputs and of states are measured as linear layers on sequences.

A map that is applied at every time has the gradient sum_t delta_t a_t^T of a linear layer on a sequence, where delta_t
is the backprop at its output at time t. For the map of inputs that is one call, before the first step. Outputs of the
map of states are known only one after the other; so zeros (n, T, gates) are added to them, one a time: their backprop
is delta, and the map itself is applied without its parameters in the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from fedsw.mathematics.clipping.rules.attention import PROJECTION, Projection, applied
from fedsw.mathematics.clipping.rules.rule import Rule, Take, Worst, all_but_cancelling

PACKED = replace(PROJECTION, ragged=True)
"""The rule of a map in packed sequences, of which one record's length decides how many times there are for all."""


@dataclass(frozen=True)
class RecurrentCell:
    """One layer in one direction: the maps of inputs and states to gates, and of an LSTM's states to outputs."""

    mode: str
    inputs: Projection
    states: Projection
    outputs: Projection | None = None


def cells(layer: nn.RNNBase) -> list[RecurrentCell]:
    """The cells of a recurrence of torch, direction after direction and layer after layer."""
    made = []
    for weights in layer.all_weights:  # names differ by layer and direction, the order does not
        into, across, *rest = weights
        biases = rest[:2] if layer.bias else [None, None]
        last = Projection.of(rest[-1], None) if layer.proj_size else None
        made.append(RecurrentCell(layer.mode, Projection.of(into, biases[0]), Projection.of(across, biases[1]), last))
    return made


def recurred(
    layer: Any,
    cells: Sequence[RecurrentCell],
    take: Take,
    input: Tensor | PackedSequence,
    hx: Tensor | tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor | PackedSequence, Any]:
    """The forward pass of `nn.RNN`, `nn.GRU` or `nn.LSTM`, records first, with its maps as calls that are recorded.

    Inputs are (n, T, features) or packed sequences of n records, in which a state stays as it is after its record's
    end; states (layers * directions, n, hidden), zeros by default. Outputs are as torch's.
    """
    x, lengths = pad_packed_sequence(input, batch_first=True) if isinstance(input, PackedSequence) else (input, None)
    directions = 2 if layer.bidirectional else 1
    first = hx if isinstance(hx, tuple) else (hx,)
    last: list[tuple[Tensor, ...]] = []
    for start in range(0, len(cells), directions):
        outputs = []
        for direction, cell in enumerate(cells[start : start + directions]):
            state = tuple(begun[start + direction] for begun in first if begun is not None) or None
            output, ended = _ran(cell, take, x, state, lengths, backwards=direction == 1)
            outputs.append(output)
            last.append(ended)
        x = torch.cat(outputs, 2)
    ends = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
    if isinstance(input, PackedSequence) and lengths is not None:
        order = input.sorted_indices
        if order is not None:
            x, lengths = x.index_select(0, order), lengths[order.cpu()]
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        repacked = PackedSequence(packed.data, packed.batch_sizes, input.sorted_indices, input.unsorted_indices)
        return repacked, ends if len(ends) > 1 else ends[0]
    return x, ends if len(ends) > 1 else ends[0]


def _ran(
    cell: RecurrentCell,
    take: Take,
    x: Tensor,
    state: tuple[Tensor, ...] | None,
    lengths: Tensor | None,
    *,
    backwards: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Outputs (n, T, width) of one cell over x (n, T, features), and its last states."""
    n, times = x.shape[:2]
    width = cell.states.in_features
    if state is None:
        state = (x.new_zeros((n, width)),)
        state += (x.new_zeros((n, cell.states.out_features // 4)),) if cell.mode == "LSTM" else ()
    rule = PROJECTION if lengths is None else PACKED
    arriving = applied(cell.inputs, x, take, rule).unbind(1)
    steps = _Steps(cell.states, n, times, x)
    ends = None if cell.outputs is None else _Steps(cell.outputs, n, times, x)
    outputs: list[Tensor] = [x] * times
    for time in reversed(range(times)) if backwards else range(times):
        moved = _moved(cell.mode, arriving[time], steps.at(time, state[0]), state)
        if ends is not None:
            moved = (ends.at(time, moved[0]), *moved[1:])
        if lengths is not None:
            going = (time < lengths).to(x.device).unsqueeze(1)
            moved = tuple(torch.where(going, new, old) for new, old in zip(moved, state, strict=True))
        state, outputs[time] = moved, moved[0]
    for part in (steps, ends):
        if part is not None:
            part.taken(take, rule)
    return torch.stack(outputs, 1), state


class _Steps:
    """A map that is applied at one time after the other."""

    def __init__(self, part: Projection, n: int, times: int, like: Tensor) -> None:
        self._part, self._inputs = part, [like.new_zeros(())] * times
        # A map without gradient gets none here either, so that it is refused as any other.
        self._zeros = like.new_zeros((n, times, part.out_features), requires_grad=torch.is_grad_enabled())
        self._added = self._zeros.unbind(1)
        self._weight, self._bias = part.weight.detach(), None if part.bias is None else part.bias.detach()

    def at(self, time: int, a: Tensor) -> Tensor:
        """Output (n, width) of an input (n, features) at this time."""
        self._inputs[time] = a
        return nn.functional.linear(a, self._weight, self._bias) + self._added[time]

    def taken(self, take: Take, rule: Rule) -> None:
        """Take note of all steps as one call on the sequence of their inputs (n, T, features)."""
        take(self._part, rule, torch.stack(self._inputs, 1), self._zeros)


def _moved(mode: str, arriving: Tensor, across: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The states after a step, of gates (n, G) from the input and from the state."""
    if mode == "GRU":
        (reset, update, new), (own_reset, own_update, own_new) = arriving.chunk(3, 1), across.chunk(3, 1)
        new = (new + (reset + own_reset).sigmoid() * own_new).tanh()
        keep = (update + own_update).sigmoid()
        return ((1 - keep) * new + keep * state[0],)
    gates = arriving + across
    if mode == "LSTM":
        enter, forget, new, leave = gates.chunk(4, 1)
        held = forget.sigmoid() * state[1] + enter.sigmoid() * new.tanh()
        return leave.sigmoid() * held.tanh(), held
    return (gates.relu() if mode == "RNN_RELU" else gates.tanh(),)


class _States(nn.Module):
    """The states of a recurrence at all times, (n, T, width), without the last ones."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.recurrence = layer

    def forward(self, x: Tensor) -> Tensor:
        """The states of sequences (n, T, features)."""
        states: Tensor = self.recurrence(x)[0]
        return states


def _worst(layer: Any) -> list[Worst]:
    sites = all_but_cancelling(layer.input_size, 2).mT.contiguous()
    return [
        Worst(_States(layer), sites, "two times that nearly cancel"),
        Worst(_States(layer), 30 * sites, "saturated"),
    ]


def _refusal(layer: Any) -> str | None:
    if "forward" in vars(layer):
        return f"has a forward of its own, which may compute anything; use {type(layer).__name__} as it is"
    return None


def recurrence(cells: Callable[[Any], list[RecurrentCell]], held: Callable[[Any], tuple[str, ...]]) -> Rule:
    """The rule of a recurrence, of its cells and the names of the parameters that it holds itself."""

    def calls(layer: Any, take: Take) -> Callable[..., Any]:
        return functools.partial(recurred, layer, cells(layer), take)

    return Rule(least_dims=lambda layer: 3, refusal=_refusal, worst=_worst, calls=calls, held=held)


RECURRENCE = recurrence(cells, lambda layer: tuple(layer._flat_weights_names))
