"""Checks of a module before data is seen: what cannot be clipped record by record is refused, by name."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from fedsw.mathematics.clipping.rules import RULES
from fedsw.mathematics.clipping.rules import _attention as attention

_FREEZE = "or freeze it with requires_grad_(False)"

_INSTEAD: tuple[tuple[type[nn.Module], str], ...] = (
    (
        nn.MultiheadAttention,
        "a subclass may compute anything, so use MultiheadAttention itself, or Linear projections and "
        "torch.nn.functional.scaled_dot_product_attention",
    ),
    (nn.modules.batchnorm._BatchNorm, "use GroupNorm"),
    (nn.RNNBase, "use Conv1d over time, or attention built from Linear layers"),
    (nn.RNNCellBase, "use Conv1d over time, or attention built from Linear layers"),
    (nn.modules.instancenorm._InstanceNorm, "use GroupNorm with num_groups equal to num_channels"),
    (nn.EmbeddingBag, "use Embedding followed by a sum or mean over the sequence"),
    (nn.Bilinear, "use Linear on the outer product of the two inputs"),
    (nn.PReLU, "use LeakyReLU or ELU"),
)


class UnsupportedModule(ValueError):
    """A module whose per-sample Jacobians the clip cannot measure, named, with what to use instead."""


SEQUENTIAL = (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Modules that read an input of two dimensions as one sequence: its rows, which would be records, are then mixed."""

_MIXERS = (
    nn.modules.batchnorm._BatchNorm,
    nn.Softmax2d,
    nn.Softmax,
    nn.LogSoftmax,
    nn.Softmin,
    nn.GLU,
    nn.Flatten,
    nn.Unflatten,
)


def check(module: nn.Module) -> dict[str, nn.Parameter]:
    """Refuse a module that the clip would miss without an error; needs no data, call it when a model is loaded.

    Refused: trainable parameters outside the supported layers (bare, in unknown or subclassed modules, or
    reparametrised), one parameter held by two modules, parameters that are views of one another, modules that mix
    records (BatchNorm unless it is in evaluation mode with statistics of its own, a softmax over the batch, attention
    and recurrence with the batch second) or keep statistics of them, dropout in training mode, backward hooks, hooks
    on a trainable parameter's gradient, and parameters that are neither float32 nor float64. Modules without trainable
    parameters are otherwise free. What only a forward pass can show (a layer called twice, a parameter used behind the
    layer's back, records read as one sequence) is refused by `record`, which also finds what a custom forward hides, by
    a rehearsal.

    The parameters are returned by name, frozen ones too, in the order of `module.parameters()`; UnsupportedModule names
    the module, the reason and the remedy.

    Source: docs/guarantees/clipping.md.
    """
    owners: dict[int, str] = {}
    parameters: dict[str, nn.Parameter] = {}
    for name, child in module.named_modules():
        held = {key: parameter for key, parameter in child._parameters.items() if parameter is not None}
        reason = (
            _mixing(child)
            or _stateful(child)
            or _attention(child)
            or _parameters(child, held)
            or _second_batch(child)
            or _view(child)
        )
        if reason is not None:
            raise UnsupportedModule(f"{describe(name, child)} {reason}.")
        for key, parameter in held.items():
            path = f"{name}.{key}" if name else key
            owner = owners.setdefault(id(parameter), path)
            if owner == path:
                parameters[path] = parameter
            elif parameter.requires_grad:
                raise UnsupportedModule(
                    f"parameters {owner!r} and {path!r} are one tensor: its per-sample "
                    "gradient has cross terms that a layer-by-layer norm misses. Give each layer its own "
                    f"parameter, {_FREEZE}."
                )
    _refuse_shared_memory(parameters)
    return parameters


def describe(name: str, module: nn.Module) -> str:
    """How an error calls a module: its path and its type."""
    return f"module {name!r} ({type(module).__name__})" if name else f"the module ({type(module).__name__})"


def _mixing(module: nn.Module) -> str | None:
    if not isinstance(module, _MIXERS):
        return None
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _mixing_norm(module)
    if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmin) and (
        module.dim is None or module.dim == 0 or module.dim < -1
    ):
        return f"has dim={module.dim}, which can normalise over the batch; set dim=-1, or count from the front"
    if isinstance(module, nn.Softmax2d):
        return "normalises an input of three dimensions over the batch; use Softmax(dim=1)"
    if isinstance(module, nn.GLU) and module.dim == 0:
        return "splits the batch (dim=0); set dim=-1"
    if isinstance(module, nn.Flatten) and module.start_dim == 0:
        return "flattens the batch (start_dim=0); set start_dim=1"
    if isinstance(module, nn.Unflatten) and module.dim == 0:
        return "reshapes the batch (dim=0); set dim=1 or later"
    return None


def _mixing_norm(module: nn.modules.batchnorm._BatchNorm) -> str | None:
    over = "normalises over the batch, so that each record's output depends on the others"
    if module.training:
        return f"{over}; use GroupNorm, or freeze it with requires_grad_(False) and call .eval() on it"
    if module.running_mean is None or module.running_var is None:
        return f"{over}, in evaluation mode too, since it keeps no statistics; use GroupNorm"
    return None


def _second_batch(module: nn.Module) -> str | None:
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and not module.batch_first:
        return "takes the second dimension for the batch and mixes along the first; set batch_first=True"
    return None


def _stateful(module: nn.Module) -> str | None:
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        return "keeps running statistics of private records, without noise; set track_running_stats=False"
    if module.training and (
        isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 or isinstance(module, nn.RReLU)
    ):
        return (
            "is random in training mode, so that cotangents would meet other outputs than those they were "
            "computed from; call .eval() on it or leave it out"
        )
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.training and module.dropout > 0:
        return (
            "drops values at random in training mode, so that cotangents would meet other outputs than those they "
            "were computed from; set dropout=0.0 or call .eval() on it"
        )
    if module._backward_hooks or module._backward_pre_hooks:
        return "has backward hooks, which can change gradients after they were measured; remove them"
    return None


def _attention(module: nn.Module) -> str | None:
    if type(module) is not nn.MultiheadAttention or not any(
        parameter.requires_grad for parameter in module.parameters()
    ):
        return None
    return attention.refusal(module)


def _names(module: nn.Module) -> tuple[str, ...]:
    """The parameters of its own for which the module has a rule."""
    if type(module) is nn.MultiheadAttention:
        return attention.NAMES
    return RULES[type(module)].parameters if type(module) in RULES else ()


def _parameters(module: nn.Module, parameters: Mapping[str, Tensor]) -> str | None:
    trained = {key: parameter for key, parameter in parameters.items() if parameter.requires_grad}
    if not trained:
        return None
    names = ", ".join(repr(key) for key in trained)
    if not _names(module):
        return f"holds {names}, and its per-sample gradient has no rule; {_remedy(module)}, {_FREEZE}"
    if set(trained) - set(_names(module)):
        plain = type(module).__name__
        return f"computes its weight from {names} (weight norm, pruning, ...); use a plain {plain}"
    for key, parameter in trained.items():
        if parameter.dtype not in (torch.float32, torch.float64):
            return f"has {key!r} in {parameter.dtype}, too coarse for a norm; call .float() on it"
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return (
                f"has hooks on the gradient of {key!r}, which would never run: gradients are released, and no backward "
                "pass reaches a parameter. Remove them; what they do to a gradient can be done to a released one"
            )
    rule = RULES.get(type(module))
    return None if rule is None else rule.refusal(module)


def _view(module: nn.Module) -> str | None:
    """A weight that is no parameter of its own: its gradient would belong to whatever it was computed from."""
    trained = any(parameter is not None and parameter.requires_grad for parameter in module._parameters.values())
    for key in _names(module):
        value = getattr(module, key, None)
        if not isinstance(value, Tensor) or not (trained or value.requires_grad):
            continue
        if key not in module._parameters or not value.is_leaf:
            return (
                f"has a {key} that is computed from another tensor (a view of it, for one) and is no parameter of its "
                f"own, so that the tensor behind it would get gradients that nobody measured; give it an nn.Parameter "
                f"with memory of its own, {_FREEZE}"
            )
    return None


def _refuse_shared_memory(parameters: Mapping[str, Tensor]) -> None:
    """Refuse parameters of which one, trained, lies in the memory of another: loading either would change both."""
    placed: dict[tuple[str, int], list[tuple[int, int, str, bool]]] = {}
    for name, value in parameters.items():
        if not value.numel() or nn.parameter.is_lazy(value) or value.is_meta or value.layout != torch.strided:
            continue
        start = int(value.storage_offset()) * value.element_size()
        reach = 1 + sum((size - 1) * int(stride) for size, stride in zip(value.shape, value.stride(), strict=True))
        storage = (str(value.device), value.untyped_storage().data_ptr())
        placed.setdefault(storage, []).append((start, start + reach * value.element_size(), name, value.requires_grad))
    for views in placed.values():
        views.sort()
        for index, (_, end, first, trained) in enumerate(views):
            for start, _, second, also in views[index + 1 :]:
                if start >= end:
                    break
                if trained or also:
                    raise UnsupportedModule(
                        f"parameters {first!r} and {second!r} lie in the same memory: one is a view of the other, so "
                        "that they are not two parameters, and a step along either changes both. Give each memory of "
                        "its own (nn.Parameter(weight.detach().clone()))."
                    )


def _remedy(module: nn.Module) -> str:
    for kind, instead in _INSTEAD:
        if isinstance(module, kind):
            return instead
    for kind in RULES:
        if isinstance(module, kind):
            return f"a subclass may compute anything, so use {kind.__name__} itself"
    supported = ", ".join(kind.__name__ for kind in (*RULES, nn.MultiheadAttention) if kind is not attention.OUTPUT)
    return f"keep trainable parameters in supported layers ({supported}), or write this one a `layer_rule`"


def leaves(outputs: Iterable[Tensor], sources: dict[Node, Node | None]) -> Iterator[Tensor]:
    """The tensors that the graph below the outputs starts from: those that a gradient would be accumulated in.

    For the node that made the output (of any shape) of a recorded call, ``sources`` has the one that made its input:
    the walk steps over the call, so that a parameter is met only if it is used behind its layer's back.
    """
    pending = []
    for output in outputs:
        if output.grad_fn is None:
            yield output
        else:
            pending.append(output.grad_fn)
    seen = set(pending)
    while pending:
        node = pending.pop()
        if node in sources:
            below = [sources[node]]
        else:
            below = [child for child, _ in node.next_functions]
            if hasattr(node, "variable"):
                yield node.variable
        for child in below:
            if child is not None and child not in seen:
                seen.add(child)
                pending.append(child)


def refuse_strays(reached: Iterable[Tensor], names: Mapping[int, str]) -> None:
    """Refuse a trainable parameter among the leaves, of any shape."""
    for leaf in reached:
        name = names.get(id(leaf))
        if name is not None:
            raise UnsupportedModule(
                f"parameter {name!r} reaches the output outside the layer that owns it (functional use), "
                "where its per-sample gradient is not measured. Call the layer itself, once, or detach the "
                "parameter."
            )


def require_head(head: Tensor, records: int, live: Collection[Tensor], names: Mapping[int, str]) -> None:
    """Refuse what is no head (n,) or (n, d) of a tape: it depends on what the module returned, and on no parameter."""
    if head.dim() not in (1, 2) or head.shape[0] != records or not head.shape[1:].numel():
        raise ValueError(f"a head has shape {tuple(head.shape)}; it must be (n,) or (n, d), n = {records}.")
    if head.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"a head is {head.dtype}, too coarse for a norm; use float32 or float64.")
    reached = list(leaves([head], {})) if head.requires_grad else []
    if not any(tensor is leaf for tensor in reached for leaf in live):
        raise ValueError("a head does not depend on tape.raw: build it from tape.raw, without detaching.")
    refuse_strays(reached, names)


def units(head: Tensor) -> list[Tensor]:
    """The cotangents that select each column of a head (n, ...), for every record; each of the head's shape."""
    if head.shape[1:].numel() == 1:
        return [torch.ones_like(head)]
    cotangents = []
    for r in range(head.shape[1]):
        unit = torch.zeros_like(head)
        unit[:, r].fill_(1.0)
        cotangents.append(unit)
    return cotangents


def chained(slope: Tensor, squares: Tensor) -> Tensor:
    """Gram matrices (n, d, d) of a head from its slopes (n, d) and the squared gradient (n,) of the one column."""
    squares = squares.reshape(-1, 1, 1)
    if slope.shape[1] == 1:
        return slope.square().unsqueeze(2).mul_(squares)
    return slope.unsqueeze(2) * slope.unsqueeze(1) * squares


@dataclass(frozen=True)
class OutputForm:
    """How the tensors that a module returned were arranged: as one bare tensor, a tuple, or by name."""

    names: tuple[str, ...] | None = None
    single: bool = False

    @staticmethod
    def of(returned: Any) -> OutputForm:
        """The form of what a module returned: a tensor, a tuple of tensors, or tensors by name."""
        if isinstance(returned, Tensor):
            return OutputForm(single=True)
        named = isinstance(returned, Mapping) and all(isinstance(name, str) for name in returned)
        parts = list(returned.values()) if named else returned if isinstance(returned, tuple) else []
        if not parts or not all(isinstance(part, Tensor) for part in parts):
            raise ValueError(
                f"the module returned {type(returned).__name__}; it must return a tensor, a tuple of tensors, or a "
                "dict of tensors by name."
            )
        return OutputForm(names=tuple(returned) if named else None)

    def tensors(self, returned: Any, n: int) -> tuple[Tensor, ...]:
        """The tensors (n, ...) of what the module returned for n records, in the order of this form."""
        form = OutputForm.of(returned)
        if form.single != self.single or (form.names is None) != (self.names is None):
            raise UnsupportedModule("the module returned outputs of another form for some records than for others.")
        if self.names is not None and set(form.names or ()) != set(self.names):
            raise UnsupportedModule(
                f"the module returned outputs {sorted(form.names or ())} for some records and {sorted(self.names)} for "
                "others. Return the same names always."
            )
        parts = self.parts(returned)
        for output in parts:
            if not output.dim() or output.shape[0] != n:
                raise UnsupportedModule(
                    f"the module returned shape {tuple(output.shape)} for {n} records: every output must lead "
                    "with the records. Return per-record values, not their sum or mean."
                )
        return parts

    def parts(self, returned: Any) -> tuple[Tensor, ...]:
        """The tensors, of any shape, of something in this form, in its order."""
        if self.single:
            return (returned,)
        return tuple(returned) if self.names is None else tuple(returned[name] for name in self.names)

    def arranged(self, tensors: Sequence[Tensor]) -> Any:
        """Tensors of any shape in this form: one bare, a tuple, or a dict by name."""
        if self.single:
            return tensors[0]
        return tuple(tensors) if self.names is None else dict(zip(self.names, tensors, strict=True))
