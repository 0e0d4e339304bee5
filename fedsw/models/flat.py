"""A model as one vector: the form in which it travels, is averaged, noised and stored."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def count_parameters(module: nn.Module) -> int:
    """r, the number of trainable numbers of a module."""
    return sum(parameter.numel() for parameter in _trainable(module).values())


def flatten(module: nn.Module) -> Tensor:
    """The trainable parameters as one new vector (r,), in the order of `module.parameters()`, detached.

    Raises:
        ValueError: if the module has none.
    """
    parameters = _trainable(module)
    if not parameters:
        raise ValueError(f"{type(module).__name__} has no trainable parameter: there is nothing to learn")
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters.values()])


def load_flat(module: nn.Module, vector: Tensor) -> None:
    """Overwrite the trainable parameters with a vector (r,) in the order of `flatten`, cast to their types.

    Raises:
        ValueError: if the vector has another shape; the module is then unchanged.
    """
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    sizes = [parameter.numel() for parameter in parameters]
    if tuple(vector.shape) != (sum(sizes),):
        names = ", ".join(f"{name} {tuple(parameter.shape)}" for name, parameter in _trainable(module).items())
        raise ValueError(
            f"a vector of shape {tuple(vector.shape)} does not fit {type(module).__name__} with "
            f"{sum(sizes)} trainable numbers ({names}); flatten() of the same model gives one that does"
        )
    with torch.no_grad():
        for parameter, part in zip(parameters, torch.split(vector.detach(), sizes), strict=True):
            parameter.copy_(part.reshape(parameter.shape))


def _trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
