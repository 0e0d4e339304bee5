"""What the engine needs to know about one kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Rule:
    """The two products of a layer's per-sample Jacobian J_i that are taken without forming it.

    Both see exactly the same factors, the input of the layer and the backprops at its output, so what is
    released is built from what was measured. Frozen parameters are left out of both.

    Attributes:
        gram: (layer, input, d backprops) to the Gram matrices (n, d, d) of the layer's parameters, float64.
        gradient: (layer, input, backprop) to the sum over records, by parameter name.
        least_dims: the number of input dimensions below which the layer would read across records.
        refusal: why this instance is not supported, with the remedy, or None.
    """

    gram: Callable[[Any, Tensor, Sequence[Tensor]], Tensor]
    gradient: Callable[[Any, Tensor, Tensor], dict[str, Tensor]]
    least_dims: Callable[[Any], int]
    refusal: Callable[[Any], str | None] = lambda layer: None


def trains(layer: Any, name: str) -> bool:
    """Whether the layer has a parameter of this name that receives gradient."""
    parameter = getattr(layer, name)
    return parameter is not None and bool(parameter.requires_grad)
