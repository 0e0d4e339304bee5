"""The door to the clip: a batch is recorded, and code that is nobody's known layer is rehearsed before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw.clipping.probe import ROUNDED, copied, examine, passed, remember, unmoved_generators
from fedsw.clipping.recording import unrehearsed
from fedsw.clipping.refusals import UnsupportedModule, check
from fedsw.clipping.tape import Tape

_KNOWN = ("torch.nn.", "fedsw.models.")
_ACTIVATIONS = (None, F.relu, F.gelu)  # those of a transformer's layer that are functions of single numbers
_MOVED = 0.01
_TRIES = 8


def record(module: nn.Module, *inputs: Any) -> Tape:
    """Run `module` forward once over a batch and keep what measuring and clipping its Jacobians needs.

    Guarantee: `Tape.gram` accounts for every path from a trainable parameter to the outputs. What would
    escape it (see `check`; a layer called twice in one forward; a parameter used outside the layer that owns
    it; a layer whose leading dimension is not the batch) is refused here, by name, whatever the values.

    A module with code that is neither torch.nn's nor fedsw's is rehearsed first, on two or three made-up records
    and a copy (`probe_independence`): a mean over the batch, a softmax over it or functional dropout is refused. That
    happens once for a module, the modes of its layers and the shapes and types of its inputs; it depends neither on the
    records nor on their number, and moves no random generator.

    Args:
        module: supported layers and modules without trainable parameters, composed freely.
        inputs: what the module's forward takes; the leading dimension of every tensor counts the records.

    Returns:
        The tape, whose memory is O(n activations): per-sample Jacobians are never formed for all records.

    Raises:
        UnsupportedModule: if the module would escape the clip, mixes records, or cannot be rehearsed.
        ValueError: if the inputs disagree on n, or the module returns something else than tensors.
    """
    fault = rehearsed(module, inputs) if _has_own_code(module, inputs) else None
    tape = unrehearsed(module, *inputs)  # which names a fault of the real batch in its own shapes
    if fault is not None:
        raise fault
    return tape


def rehearsed(module: nn.Module, inputs: Sequence[Any]) -> UnsupportedModule | None:
    """What is wrong with a module on made-up records like the inputs; None if nothing, or if it passed before."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    if not tensors or any(value.dim() == 0 for value in tensors) or passed(module, inputs):
        return None
    check(module)  # whose reasons are plainer than what goes wrong without it
    reason: Exception | None = None
    with unmoved_generators(tensors):
        generator = torch.Generator().manual_seed(0)
        for given in _made_up(module, inputs, generator):
            for double in (True, False):  # a forward that casts to float32 itself takes no float64
                model = moved(copied(module, double=double), generator)
                try:
                    examine(model, [_cast(value, double) for value in given], None, 1e-6 if double else ROUNDED)
                except UnsupportedModule as fault:
                    return fault
                except Exception as fault:  # the user's code on values that it may not be made for
                    reason = fault
                else:
                    remember(module, inputs)
                    return None
    return UnsupportedModule(
        "the module has code of its own and does not take made-up records, so that nobody can see whether it mixes "
        f"records ({type(reason).__name__}: {reason}). Call probe_independence(module, ...) once on at least two "
        "made-up records that it takes, in the modes, shapes and types of the batch; nothing is made up then."
    )


def _has_own_code(module: nn.Module, inputs: Sequence[Any]) -> bool:
    """Whether anything but a layer of torch or a model of fedsw decides what a forward pass does.

    That may be a function that a layer was given, or a second input: a mask of attention is shared by all records if it
    has two dimensions, and its rows are not the records' own.
    """
    if sum(isinstance(value, Tensor) for value in inputs) > 1:
        return True
    return any(
        not type(child).__module__.startswith(_KNOWN)
        or "forward" in vars(child)
        or bool(child._forward_hooks or child._forward_pre_hooks)
        or vars(child).get("activation") not in _ACTIVATIONS
        for child in module.modules()
    )


def _made_up(module: nn.Module, inputs: Sequence[Any], generator: torch.Generator) -> Iterator[list[Any]]:
    """Distinct records of the inputs' shapes and types, from values that most code takes to more careful ones."""
    tables = [child.num_embeddings for child in module.modules() if isinstance(child, nn.Embedding)]
    for careful in (False, True):
        for rows in (3, 2):
            for _ in range(_TRIES):
                given = [_like(value, rows, min(tables, default=2), generator, careful=careful) for value in inputs]
                if _distinct([value for value in given if isinstance(value, Tensor)]):
                    yield given
                    break


def _like(value: Any, rows: int, indices: int, generator: torch.Generator, *, careful: bool) -> Any:
    """Made-up values for one input: normal or in (0, 1); whole numbers that every table of embeddings has."""
    if not isinstance(value, Tensor):
        return value
    shape = (rows, *value.shape[1:])
    if value.dtype == torch.bool:
        made = torch.ones(shape) if careful else torch.randint(0, 2, shape, generator=generator)
    elif not value.is_floating_point():
        made = torch.randint(1 if careful and indices > 2 else 0, indices, shape, generator=generator)
    else:
        made = (torch.rand if careful else torch.randn)(shape, generator=generator, dtype=torch.float64)
    return made.to(value.device, value.dtype)


def _distinct(tensors: Sequence[Tensor]) -> bool:
    flat = torch.cat([value.reshape(len(value), -1).double() for value in tensors], dim=1)
    return len(torch.unique(flat, dim=0)) == len(flat)


def moved(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """The copy with finite parameters, moved a little: a layer that starts at 0 would hide what is below it."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.nan_to_num_(0.0, 0.0, 0.0)
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(noise.to(parameter.device, parameter.dtype), alpha=_MOVED)
    return model


def _cast(value: Any, double: bool) -> Any:
    return value.double() if double and isinstance(value, Tensor) and value.is_floating_point() else value
