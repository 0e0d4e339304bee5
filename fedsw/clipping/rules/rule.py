"""What the engine needs to know about one kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsw.clipping.rules.products import total_squares


@dataclass(frozen=True)
class Rule:
    """The two products of a layer's per-sample Jacobian J_i that are taken without forming it.

    Both see exactly the same factors, the input of the layer and the backprops at its output, so what is
    released is built from what was measured. Frozen parameters are left out of both.

    Attributes:
        gram: (layer, input, d backprops) to the Gram matrices (n, d, d) of the layer's parameters, float64.
        gradient: (layer, input, backprop, factors) to the sum over records, each times its factor (n,), by parameter
            name; all of it finite and in float64.
        least_dims: the number of input dimensions below which the layer would read across records.
        reach: (layer, input, backprop) to squared bounds (n,), float64, on the norms of all products that a record's
            part is a sum of, which may cancel; None where there is nothing to cancel.
        refusal: why this instance is not supported, with the remedy, or None.
    """

    gram: Callable[[Any, Tensor, Sequence[Tensor]], Tensor]
    gradient: Callable[[Any, Tensor, Tensor, Tensor], dict[str, Tensor]]
    least_dims: Callable[[Any], int]
    reach: Callable[[Any, Tensor, Tensor], Tensor | None]
    refusal: Callable[[Any], str | None] = lambda layer: None


def trains(layer: Any, name: str) -> bool:
    """Whether the layer has a parameter of this name that receives gradient."""
    parameter = getattr(layer, name, None)
    return parameter is not None and bool(parameter.requires_grad)


def reach_of_sites(layer: Any, inputs: Tensor, delta: Tensor, *, sites: int) -> Tensor:
    """A `Rule.reach` where every input meets backprops at many sites: by Cauchy and Schwarz over the sites.

    Args:
        inputs: squared norms (n,) of what the weight's backprops are multiplied with; overwritten.
        sites: over which the bias sums.
    """
    reach = inputs if trains(layer, "weight") else torch.zeros_like(inputs)
    return reach.add_(sites if trains(layer, "bias") else 0).mul_(total_squares(delta))


def times(factors: Tensor, values: Tensor) -> Tensor:
    """Values (n, ...) of every record times its factor (n,)."""
    return values * factors.reshape(-1, *[1] * (values.dim() - 1))
