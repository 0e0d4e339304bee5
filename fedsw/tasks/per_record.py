"""The law that every clip rests on: row i of outputs and losses depends on record i alone. Tried on made-up records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from fedsw.clipping import UnsupportedModule
from fedsw.clipping.outputs import Form
from fedsw.clipping.probe import EXACT, ROUNDED, copied, examine, unmoved_generators
from fedsw.clipping.rehearsal import moved
from fedsw.randomness import Stream
from fedsw.tasks.task import Inputs, Raw

MADE_UP = 3
"""How many records are made up."""

Compared = Callable[[Raw, Inputs], Sequence[Tensor]]
"""From what a model returns for n records, and the records, to outputs (n, d) and losses (n,)."""


def require_per_record(model: nn.Module, given: Inputs, compared: Compared) -> None:
    """Refuse outputs and losses of which row i depends on more than record i: no clip bounds what they move.

    A copy of the model with slightly moved parameters takes the records together and each alone, in float64, or in the
    model's own type where the code takes no float64. Values are compared, and their gradients. No private record is
    looked at, and no random generator moves. What this cannot see: records that are mixed for certain values only, or
    only in batches that are larger than the one given.

    Args:
        model: as it is trained; it stays as it is.
        given: at least two distinct made-up records: features (n, p), targets (n,) or (n, t).
        compared: the user's own code: outputs (n, d) and losses (n,).

    Raises:
        UnsupportedModule: naming what differs.
        ValueError: if the values are not finite. Whatever the user's own code raises on these records.
    """
    with unmoved_generators([given.features]):
        try:
            _examined(model, given, compared, double=True)
        except UnsupportedModule as fault:
            raise _refused(fault) from None
        except Exception:  # code of the user's own that takes no float64, or is at fault in every type
            try:
                _examined(model, given, compared, double=False)
            except UnsupportedModule as fault:
                raise _refused(fault) from None


def made_up_features(seed: int, width: int) -> Tensor:
    """Distinct made-up records (3, width) float32, uniform in the unit cube."""
    drawn = Stream.seeded(seed, "made-up records").uniforms(MADE_UP * width)
    return torch.from_numpy(drawn.reshape(MADE_UP, width).astype(np.float32))


def made_up_targets(classes: int, targets: int) -> Tensor:
    """Targets for them: classes (3,) int64, or numbers (3, targets) float64 in (0, 1)."""
    if targets:
        drawn = Stream.seeded(0, "made-up targets").uniforms(MADE_UP * targets)
        return torch.from_numpy(drawn.reshape(MADE_UP, targets))
    return torch.arange(MADE_UP) % max(1, classes)


class _WithTargets(nn.Module):
    """A model that hands its inputs through, so that what is probed is a function of what it returns."""

    def __init__(self, model: nn.Module, given: Inputs, compared: Compared, form: Form) -> None:
        super().__init__()
        self.model = model
        self._given, self._compared, self._form = given, compared, form

    def forward(self, features: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        return (*self._form.parts(self.model(features)), features, target)

    def heads(self, raw: tuple[Tensor, ...]) -> Sequence[Tensor]:
        """Outputs and losses of what `forward` returned."""
        *parts, features, target = raw
        return self._compared(self._form.arranged(parts), replace(self._given, features=features, target=target))


def _examined(model: nn.Module, given: Inputs, compared: Compared, *, double: bool) -> None:
    # A last layer that starts at 0 would hide what is mixed.
    tried = moved(copied(model, double=double), torch.Generator().manual_seed(0))
    values = [
        value.double() if double and value.is_floating_point() else value for value in (given.features, given.target)
    ]
    with torch.no_grad():
        form = Form.of(tried(values[0]))
    probed = _WithTargets(tried, given, compared, form)
    examine(probed, values, probed.heads, EXACT if double else ROUNDED)


def _refused(fault: UnsupportedModule) -> UnsupportedModule:
    return UnsupportedModule(f"outputs and losses are clipped by record, so row i may depend on record i only; {fault}")
