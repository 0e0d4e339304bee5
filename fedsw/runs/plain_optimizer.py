"""SGD and Adam of one vector: torch's own functions and states without its classes, which load a compiler for seconds.

Public in this file: `PlainOptimizer`.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class PlainOptimizer:
    """`torch.optim.SGD` with momentum, or `torch.optim.Adam` with betas, of one float64 parameter (r,) on the host.

    ``arguments`` are those that torch's class takes; all others have its defaults. States are written and read as its.
    """

    def __init__(self, kind: type[torch.optim.Optimizer], parameter: torch.nn.Parameter, **arguments: Any) -> None:
        if kind not in (torch.optim.SGD, torch.optim.Adam):
            raise ValueError(f"{kind.__name__} is not plain; SGD and Adam are")
        options = inspect.signature(kind).parameters
        defaults = {name: option.default for name, option in options.items() if name != "params"}
        self.param_groups: list[dict[str, Any]] = [{**defaults, **arguments, "params": [0]}]
        self._kind, self._parameter = kind, parameter
        self._state: dict[str, Any] = {}

    @torch.no_grad()
    def step(self) -> None:
        """One step along the parameter's gradient."""
        gradient, values = self._parameter.grad, self._parameter.detach()
        assert gradient is not None
        if self._kind is torch.optim.SGD:
            self._descend(gradient, values)
        else:
            self._adam(gradient, values)

    def state_dict(self) -> dict[str, Any]:
        """State of torch's own class after the same steps."""
        return {"state": {0: self._state} if self._state else {}, "param_groups": [dict(self.param_groups[0])]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state, of this class or of torch's."""
        self.param_groups = [dict(state["param_groups"][0])]
        self._state = copy.deepcopy(state["state"].get(0, {}))

    def _descend(self, gradient: torch.Tensor, values: torch.Tensor) -> None:
        group = self.param_groups[0]
        buffers = [self._state.get("momentum_buffer")]
        names = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
        sgd([values], [gradient], buffers, foreach=False, fused=False, **{name: group[name] for name in names})
        if group["momentum"]:
            self._state["momentum_buffer"] = buffers[0]

    def _adam(self, gradient: torch.Tensor, values: torch.Tensor) -> None:
        group, state = self.param_groups[0], self._state
        if not state:
            of_scalars = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
            state["step"] = torch.tensor(0.0, dtype=of_scalars)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(values), torch.zeros_like(values)
        first, second = group["betas"]
        averages, squares = [state["exp_avg"]], [state["exp_avg_sq"]]
        names = ("amsgrad", "lr", "weight_decay", "eps", "maximize")
        options = {"beta1": first, "beta2": second, **{name: group[name] for name in names}}
        adam([values], [gradient], averages, squares, [], [state["step"]], foreach=False, fused=False, **options)
