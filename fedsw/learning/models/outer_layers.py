"""First and last linear layers of a model: an affine map of its inputs, or of its outputs, is folded into them."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsw._tools.randomness import Stream

_TRIED = 16


def rescalable(model: nn.Module, features: int) -> bool:
    """True if an affine map of outputs can be folded into the model's last layer, by a trial on made-up inputs."""
    double = copy.deepcopy(model).double()
    last = last_layer(double, features)
    if last is None:
        return False
    shift = [0.5 + 0.25 * number for number in range(last.out_features)]
    inputs = made_up_inputs(features, double)
    with torch.no_grad():
        wanted, returned = (
            double(inputs) * 0.75 + torch.tensor(shift).to(inputs),
            rescaled(double, features, 0.75, shift)(inputs),
        )
    return same_outputs(wanted, returned)


def rescaled(model: nn.Module, features: int, scale: float, shift: Sequence[float]) -> nn.Module:
    """A copy of a `rescalable` model with outputs multiplied by `scale`, and `shift` (d,) added."""
    model = copy.deepcopy(model)
    last = last_layer(model, features)
    if last is None:
        raise ValueError(
            f"{type(model).__name__} has no last linear layer with a bias, which outputs could be scaled in"
        )
    with torch.no_grad():
        last.weight.copy_(last.weight.double() * scale)
        last.bias.copy_(last.bias.double() * scale + torch.tensor(shift, dtype=torch.float64, device=last.bias.device))
    return model


def first_layer(model: nn.Module, features: int) -> nn.Linear | None:
    """The linear layer with a bias that alone takes the inputs as they come; None if there is none."""
    inputs = made_up_inputs(features, model)
    calls, _ = _calls(model, inputs)
    taken = [
        layer
        for layer, taken_in, _ in calls
        if taken_in
        and isinstance(taken_in[0], Tensor)
        and taken_in[0].shape == inputs.shape
        and torch.equal(taken_in[0], inputs)
    ]
    layers = [layer for layer in taken if isinstance(layer, nn.Linear)]
    return layers[0] if len(taken) == len(layers) == 1 and layers[0].bias is not None else None


def _calls(
    model: nn.Module, inputs: Tensor
) -> tuple[list[tuple[nn.Module, tuple[object, ...], object]], object | None]:
    """Record inputs and outputs of every layer, and the model's output; nothing if it refuses the inputs."""
    seen: list[tuple[nn.Module, tuple[object, ...], object]] = []
    leaves = [module for module in model.modules() if not list(module.children())]
    hooks = [module.register_forward_hook(lambda *call: seen.append(call)) for module in leaves]
    try:
        with torch.no_grad():
            return seen, model(inputs)
    except (RuntimeError, ValueError, TypeError):
        return [], None
    finally:
        for hook in hooks:
            hook.remove()


def last_layer(model: nn.Module, features: int) -> nn.Linear | None:
    """The linear layer with a trained bias that the outputs are those of, as they come; None if there is none."""
    calls, returned = _calls(model, made_up_inputs(features, model))
    for module, _, output in calls:
        if isinstance(module, nn.Linear) and output is returned and module.bias is not None:
            return module if module.bias.requires_grad and module.weight.requires_grad else None
    return None


def made_up_inputs(features: int, model: nn.Module) -> Tensor:
    """Made-up normal inputs (16, p) in the model's precision, on its device."""
    kind = next(model.parameters(), torch.empty(0))
    drawn = Stream.seeded(0, "made-up inputs").normals(_TRIED * features).reshape(_TRIED, features)
    return torch.from_numpy(drawn).to(kind.device, kind.dtype)


def same_outputs(wanted: object, returned: object) -> bool:
    """True if a model's return values are equal, but for round-off."""
    if isinstance(wanted, Tensor) and isinstance(returned, Tensor):
        return wanted.shape == returned.shape and bool(torch.allclose(wanted, returned, rtol=1e-8, atol=1e-8))
    if isinstance(wanted, tuple) and isinstance(returned, tuple):
        return len(wanted) == len(returned) and all(map(same_outputs, wanted, returned))
    if isinstance(wanted, dict) and isinstance(returned, dict):
        return wanted.keys() == returned.keys() and all(same_outputs(wanted[name], returned[name]) for name in wanted)
    return False
