"""What the engine needs to know about one kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsw.clipping.rules.products import total_squares


@dataclass(frozen=True)
class Factored:
    """The products of a layer's per-sample Jacobian J_i that are taken from its factors, without forming it.

    All see exactly the same factors, the input of the layer and the backprops at its output, so what is
    released is built from what was measured. Frozen parameters are left out of all.

    Attributes:
        gram: (layer, input, d backprops) to the Gram matrices (n, d, d) of the layer's parameters, float64.
        gradient: (layer, input, backprop, factors) to the sum over records, each times its factor (n,), by parameter
            name; all of it finite and in float64.
        reach: (layer, input, backprop) to squared bounds (n,), float64, on the norms of all products that a record's
            part is a sum of, which may cancel; None where there is nothing to cancel.
    """

    gram: Callable[[Any, Tensor, Sequence[Tensor]], Tensor]
    gradient: Callable[[Any, Tensor, Tensor, Tensor], dict[str, Tensor]]
    reach: Callable[[Any, Tensor, Tensor], Tensor | None]


@dataclass(frozen=True)
class Formed:
    """The rows of a layer's per-sample Jacobians, formed for some records at a time.

    Attributes:
        rows: (layer, input, d backprops) to d rows (n, numbers of the parameter) by parameter name, in the factors'
            own precision. Frozen parameters are left out.
        floats: (layer, input, backprop, d) to the numbers that forming d rows of one record takes meanwhile.
        cheaper: (layer, input, backprop, d) to whether this takes less time than the factors.
    """

    rows: Callable[[Any, Tensor, Sequence[Tensor]], dict[str, list[Tensor]]]
    floats: Callable[[Any, Tensor, Tensor, int], int]
    cheaper: Callable[[Any, Tensor, Tensor, int], bool]


@dataclass(frozen=True)
class Rule:
    """How the per-sample Jacobians of a kind of layer are measured and added: by their factors, formed, or either.

    Attributes:
        least_dims: the number of input dimensions below which the layer would read across records.
        factored, formed: the two ways; at least one.
        refusal: why this instance is not supported, with the remedy, or None.
    """

    least_dims: Callable[[Any], int]
    factored: Factored | None = None
    formed: Formed | None = None
    refusal: Callable[[Any], str | None] = lambda layer: None


def trains(layer: Any, name: str) -> bool:
    """Whether the layer has a parameter of this name that receives gradient."""
    parameter = getattr(layer, name, None)
    return parameter is not None and bool(parameter.requires_grad)


def reach_of_sites(layer: Any, inputs: Tensor, delta: Tensor, *, sites: int) -> Tensor:
    """A `Factored.reach` where every input meets backprops at many sites: by Cauchy and Schwarz over the sites.

    Args:
        inputs: squared norms (n,) of what the weight's backprops are multiplied with; overwritten.
        sites: over which the bias sums.
    """
    reach = inputs if trains(layer, "weight") else torch.zeros_like(inputs)
    return reach.add_(sites if trains(layer, "bias") else 0).mul_(total_squares(delta))


def times(factors: Tensor, values: Tensor) -> Tensor:
    """Values (n, ...) of every record times its factor (n,)."""
    return values * factors.reshape(-1, *[1] * (values.dim() - 1))
