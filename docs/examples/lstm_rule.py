"""A layer of one's own, clipped exactly: an LSTM that returns its states alone, as a subclass may.

    python docs/examples/lstm_rule.py

A rule forms each record's gradient of the layer's parameters from its input and the backprop of its output. Here the
gates are walked through once more, for all records together, and their backprops meet inputs and states over time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedsw.mathematics.clipping import Term, Worst, clipped_sum, layer_rule, record, require_exact

NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


class Recurrent(nn.LSTM):
    """An LSTM of one layer that returns the state at every time: (n, T, features) to (n, T, hidden)."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__(features, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """The states alone: a layer with a rule returns one tensor."""
        states: Tensor = super().forward(x)[0]
        return states


def worst(layer: Recurrent) -> list[Worst]:
    """The records that an audit attacks the rule with: gates that saturate, and measurements that nearly cancel."""
    signs = torch.tensor([1.0, -1.001, 1.0]).reshape(1, 3, 1).expand(1, 3, layer.input_size)
    return [Worst(layer, 10 * torch.ones_like(signs), "saturated gates"), Worst(layer, signs, "signs that alternate")]


@layer_rule(Recurrent, parameters=NAMES, least_dims=3, worst=worst)
def gradients(layer: Recurrent, a: Tensor, delta: Tensor) -> dict[str, Tensor]:
    """Each record's gradients, (n, 4h, features), (n, 4h, h), (n, 4h) and (n, 4h)."""
    into, across, own, other = (getattr(layer, name).detach() for name in NAMES)
    with torch.inference_mode(False), torch.enable_grad():
        x = a.detach().clone()
        hidden = cell = x.new_zeros(len(x), layer.hidden_size)
        gates, before, states = [], [], []
        for time in range(x.shape[1]):
            gate = (x[:, time] @ into.T + own + hidden @ across.T + other).requires_grad_()
            gates.append(gate)
            before.append(hidden.detach())
            enter, forget, new, leave = gate.chunk(4, dim=1)
            cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            states.append(hidden)
        pulled = torch.stack(torch.autograd.grad(torch.stack(states, 1), gates, delta.clone()), 1)
    bias = pulled.sum(1)
    return {
        "weight_ih_l0": pulled.mT @ x,
        "weight_hh_l0": pulled.mT @ torch.stack(before, 1),
        "bias_ih_l0": bias,
        "bias_hh_l0": bias,
    }


class Diagnosis(nn.Module):
    """A sequence of measurements to one number."""

    def __init__(self, features: int = 3, hidden: int = 5) -> None:
        super().__init__()
        self.recurrent = Recurrent(features, hidden)
        self.last = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The last state's score, (n, 1)."""
        score: Tensor = self.last(self.recurrent(x)[:, -1])
        return score


def main() -> float:
    """The norm of a sum of gradients of 40 patients, each clipped to 0.1."""
    torch.manual_seed(0)
    model = Diagnosis().double()
    require_exact(model.recurrent, torch.randn(4, 7, 3, dtype=torch.float64))
    tape = record(model, torch.randn(40, 7, 3, dtype=torch.float64))
    total = clipped_sum(tape, [Term(tape.raw, torch.ones(40, 1, dtype=torch.float64), 0.1)])
    norm = float(total.norm())
    print(f"{total.numel()} parameters; the sum of 40 clipped gradients has norm {norm:.3f}, at most 4")
    return norm


if __name__ == "__main__":
    main()
