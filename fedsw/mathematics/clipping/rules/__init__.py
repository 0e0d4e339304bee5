"""The layers with measurable per-sample Jacobians, and the rule of each; open to custom layers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedsw._tools.registry import Registry
from fedsw.mathematics.clipping.rules._convolution import CONVOLUTION
from fedsw.mathematics.clipping.rules._dense import (
    BAGS,
    EMBEDDING,
    GROUP_NORM,
    INSTANCE_NORM,
    INSTANCE_NORMS,
    LAYER_NORM,
    LINEAR,
    RMS_NORM,
)
from fedsw.mathematics.clipping.rules._opacus import register_imported
from fedsw.mathematics.clipping.rules._recurrent import RECURRENCE
from fedsw.mathematics.clipping.rules.attention import ATTENTION, OUTPUT
from fedsw.mathematics.clipping.rules.hats import HATS, HatLinear
from fedsw.mathematics.clipping.rules.rule import Formed, Rule, Worst, trains

RULES: Registry[Rule] = Registry("a layer with a rule", Rule)
"""The rule of each class of layer; a subclass is another class."""

_SHIPPED: tuple[tuple[Rule, tuple[type[nn.Module], ...]], ...] = (
    (LINEAR, (nn.Linear, OUTPUT)),
    (HATS, (HatLinear,)),
    (CONVOLUTION, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)),
    (EMBEDDING, (nn.Embedding,)),
    (LAYER_NORM, (nn.LayerNorm,)),
    (RMS_NORM, (nn.RMSNorm,)),
    (GROUP_NORM, (nn.GroupNorm,)),
    (INSTANCE_NORM, INSTANCE_NORMS),
    (BAGS, (nn.EmbeddingBag,)),
    (ATTENTION, (nn.MultiheadAttention,)),
    (RECURRENCE, (nn.RNN, nn.GRU, nn.LSTM)),
)
for _shared, _kinds in _SHIPPED:
    for _kind in _kinds:
        RULES.register(_kind, _shared)

Gradients = Callable[[Any, Tensor, Tensor], Mapping[str, Tensor]]
"""(layer, input (n, ...), backprop (n, ...) of its output) to each record's gradient (n, *shape), by parameter."""

_EXACT = 1e-6  # of 1 and the largest entry


def layer_rule(
    kind: type[nn.Module],
    *,
    parameters: Sequence[str] = ("weight", "bias"),
    least_dims: int = 2,
    worst: Callable[[Any], Sequence[Worst]] | None = None,
) -> Callable[[Gradients], Gradients]:
    """Give a kind of layer its rule: `@layer_rule(MyLayer)` over a function that forms each record's gradient.

    The layer takes one tensor, records first, and returns another. What the function forms
    is measured, and the same numbers are added: a function that reads each record alone lets nothing of it above the
    clip, whatever it forms. `record` compares the sizes of some gradients with autograd's and refuses what differs;
    `require_exact` compares every entry. The memory is one gradient a record, some records at a time.

    The class must have no rule yet; a subclass needs one of its own, since it may compute anything. ``parameters`` are
    those that the function forms gradients of; below ``least_dims`` input dimensions it would read across records.
    ``worst`` makes of a layer the records that `fedsw audit --canary` attacks it with; without, an audit refuses it.
    """

    def registered(gradients: Gradients) -> Gradients:
        if kind in RULES:
            raise ValueError(f"{kind.__name__} has a rule already; a layer of your own is a subclass, or another class")

        def rows(layer: Any, a: Tensor, deltas: Sequence[Tensor]) -> dict[str, list[Tensor]]:
            columns = [gradients(layer, a, delta) for delta in deltas]
            return {name: [column[name].flatten(1) for column in columns] for name in parameters if trains(layer, name)}

        def floats(layer: Any, a: Tensor, delta: Tensor, d: int) -> int:
            entries = sum(int(getattr(layer, name).numel()) for name in parameters if trains(layer, name))
            return d * entries + 4 * (a[:1].numel() + delta[:1].numel())

        formed = Formed(rows=rows, floats=floats, cheaper=lambda layer, a, delta, d: True)
        RULES.register(kind, Rule(lambda layer: least_dims, formed=formed, parameters=tuple(parameters), worst=worst))
        return gradients

    return registered


def require_exact(layer: nn.Module, inputs: Tensor) -> None:
    """Compare a layer's rule with autograd, record by record; nothing private should be among the inputs (n, ...).

    `Unknown` if the class has no rule, listing those that have one; ValueError if its rule forms nothing, or a gradient
    differs, naming the parameter and by how much.
    """
    rule = RULES.get(type(layer))
    if rule.formed is None:
        raise ValueError(
            f"{type(layer).__name__} has no rule of formed gradients to compare; give the layer that a `layer_rule` is "
            "for, not a network around it"
        )
    output = layer(inputs)
    delta = torch.linspace(-1.0, 1.0, output.numel(), dtype=output.dtype).reshape(output.shape).cos()
    measured = rule.formed.rows(layer, inputs.detach(), [delta])
    for name, (rows,) in measured.items():
        for index in range(len(inputs)):
            alone = layer(inputs[index : index + 1])
            (true,) = torch.autograd.grad(alone, [getattr(layer, name)], delta[index : index + 1])
            off = float((rows[index] - true.flatten()).abs().max())
            if not off <= _EXACT * (1.0 + float(true.abs().max())):
                raise ValueError(f"the rule of {type(layer).__name__} is off by {off:.3g} in {name} of a record")


def worst_of(module: nn.Module) -> list[Worst]:
    """The worst neighbours of every kind of layer that trains in a module: of the smallest layer of each, a copy.

    ValueError for a layer without a rule, or with a rule that has none; the error names it.
    """
    register_imported(RULES)
    smallest: dict[type[nn.Module], tuple[int, nn.Module]] = {}
    contained: set[nn.Module] = set()
    for layer in module.modules():
        if layer in contained:
            continue
        if type(layer) in RULES and RULES.get(type(layer)).contains:
            contained.update(layer.modules())
        size = sum(parameter.numel() for parameter in layer.parameters(recurse=False) if parameter.requires_grad)
        if size and size < smallest.get(type(layer), (size + 1, layer))[0]:
            smallest[type(layer)] = size, layer
    cases: list[Worst] = []
    for kind, (_, layer) in smallest.items():
        make = RULES.get(kind).worst if kind in RULES else None
        if make is None:
            raise ValueError(
                f"a layer of type {kind.__name__} trains, and its rule has no worst neighbours: give them, as in "
                f"layer_rule({kind.__name__}, worst=...)"
            )
        cases += [replace(case, why=f"{kind.__name__}, {case.why}") for case in make(copy.deepcopy(layer))]
    return cases


__all__ = ["RULES", "HatLinear", "Rule", "Worst", "layer_rule", "register_imported", "require_exact", "worst_of"]
