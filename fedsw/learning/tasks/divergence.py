"""A model that has diverged: why it learns no more, from its weights and made-up inputs, which are public."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fedsw.mathematics.clipping import OutputForm

_LARGE, _LARGEST = 100.0, 1e18
"""Up to the one no network that trains overflows, and what it answers is looked at beyond; up to the other squares of
weights are finite in float32."""


class Diverged(RuntimeError):
    """The model has diverged; nothing more was charged, and the message says what is left."""


def divergence(weights: Iterable[Tensor], answer: Callable[[], Any] | None = None) -> str | None:
    """Say why a model learns no more, in words; None while it may.

    Contributions of records that are not finite count as 0: its rounds would go on, and pay for noise only. Weights
    follow from what was released, so this looks at nothing private and may end a training.

    ``weights``, of any shapes, are in the model's precision; ``answer`` gives what it returns for made-up inputs, and
    is called where a weight is large. None if a model takes no inputs.
    """
    sizes = [weight.detach().abs().max() for weight in weights if weight.numel()]
    largest = float(torch.stack(sizes).max()) if sizes else 0.0  # NaN where one is
    if not largest <= _LARGEST:  # NaN, too
        return f"a weight is {largest:.3g}"
    if answer is None or largest <= _LARGE:
        return None
    with torch.no_grad():
        returned = answer()
        parts = OutputForm.of(returned).parts(returned)
    if all(bool(part.isfinite().all()) for part in parts):
        return None
    return f"what it returns for made-up inputs is not finite, with weights of up to {largest:.3g}"


def stopped_diverged(why: str, *, round_: int, planned: int, spent: str, promised: str) -> str:
    """Describe the end of a training with a diverged model: what is spent, and what is left."""
    left = planned - round_
    return (
        f"stopped after round {round_}: the model has diverged ({why}). {left} of {planned} rounds are left and cost "
        f"nothing; epsilon {spent} of {promised} is spent. Train anew with smaller steps (a lower learning rate, less "
        "momentum or weight decay); on the same records what is spent adds up"
    )


def lost_direction(theta: Tensor) -> Tensor:
    """The direction (r,) of a round with infinite or NaN generated points: NaN, so that the model is, too.

    Points follow from what was released. The round ends as any other, and the run says that the model has diverged.
    """
    return torch.full_like(theta, torch.nan)
