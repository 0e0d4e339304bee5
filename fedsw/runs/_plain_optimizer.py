"""SGD and Adam of one vector: torch's own steps and states bit for bit, without its compiler, which takes seconds."""

from __future__ import annotations

import copy
import inspect
from typing import Any

from fedsw._tools.later import torch


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

    def step(self) -> None:
        """One step along the parameter's gradient."""
        gradient, values = self._parameter.grad, self._parameter.detach()
        assert gradient is not None
        if self._kind is torch.optim.SGD:
            values.add_(self._with_momentum(gradient), alpha=-self.param_groups[0]["lr"])
        else:
            self._adam(gradient, values)

    def state_dict(self) -> dict[str, Any]:
        """What torch's class makes of the same steps."""
        return {"state": {0: self._state} if self._state else {}, "param_groups": [dict(self.param_groups[0])]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state, of this class or of torch's."""
        self.param_groups = [dict(state["param_groups"][0])]
        self._state = copy.deepcopy(state["state"].get(0, {}))

    def _with_momentum(self, gradient: torch.Tensor) -> torch.Tensor:
        momentum = self.param_groups[0]["momentum"]
        if not momentum:
            return gradient
        if self._state.get("momentum_buffer") is None:
            self._state["momentum_buffer"] = gradient.detach().clone()
        else:
            self._state["momentum_buffer"].mul_(momentum).add_(gradient, alpha=1)
        buffer: torch.Tensor = self._state["momentum_buffer"]
        return buffer

    def _adam(self, gradient: torch.Tensor, values: torch.Tensor) -> None:
        group, state = self.param_groups[0], self._state
        if not state:
            of_scalars = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
            state["step"] = torch.tensor(0.0, dtype=of_scalars)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(values), torch.zeros_like(values)
        state["step"] += 1
        first, second = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        steps = state["step"].item()
        size, root = group["lr"] / (1 - first**steps), (1 - second**steps) ** 0.5
        below = (state["exp_avg_sq"].sqrt() / root).add_(group["eps"])
        values.addcdiv_(state["exp_avg"], below, value=-size)
