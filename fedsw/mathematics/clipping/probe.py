"""A rehearsal on made-up records that catches mixing no structural check can see."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw.mathematics.clipping._recording import unrehearsed
from fedsw.mathematics.clipping._tape import Tape
from fedsw.mathematics.clipping.clip import full_precision
from fedsw.mathematics.clipping.refusals import OutputForm, UnsupportedModule, check

Heads = Callable[[Any], Sequence[Tensor]]

EXACT = 1e-6
"""Relative difference that rounding may make in float64."""

ROUNDED = 1e-3
"""Relative difference that rounding may make in a module that insists on float32."""

_passed: WeakKeyDictionary[nn.Module, set[Hashable]] = WeakKeyDictionary()


def probe_independence(module: nn.Module, *inputs: Any, heads: Heads | None = None) -> None:
    """Refuse a module, or heads, in which a record's result depends on the other records.

    Runs a float64 copy of the module over the whole batch and over each record alone, and compares heads,
    parameter gradients (plain autograd, record alone) and the Gram matrices the tape measures. Random numbers are
    refused, and buffers that a forward pass changes: they would carry statistics of private records out without noise.

    `record` does this itself for code that it does not know, on records that it makes up. It leaves out a module that
    passed here, without `heads`, on inputs of the same shapes and types. What it cannot see: a forward that mixes
    records only for certain values, or only in batches larger than the ones given.

    There are at least two distinct made-up records; heads are made of `Tape.raw`, by default the outputs themselves.
    UnsupportedModule names what differs; ValueError for fewer than two records, or outputs that are not finite.
    """
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    with unmoved_generators(tensors):
        examine(copied(module, double=True), [_cast(value, True) for value in inputs], heads, EXACT)
    if heads is None:
        remember(module, inputs)


def examine(model: nn.Module, inputs: Sequence[Any], heads: Heads | None, tolerance: float) -> None:
    """Compare a batch with its records alone; changes the model's buffers if its forward does."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    n = next((len(value) for value in tensors), 0)
    if n < 2:
        raise ValueError(f"probing for mixed records takes at least 2 records; got {n}.")
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    states = _generator_states(tensors)
    together = _measure(model, inputs, heads)
    if any(not torch.equal(*pair) for pair in zip(states, _generator_states(tensors), strict=True)):
        raise UnsupportedModule(
            "a forward pass draws random numbers (functional dropout, noise): cotangents would meet other outputs than "
            "those they were computed from. Leave them out, or draw only in training mode and call .eval()."
        )
    for name, buffer in model.named_buffers():
        if name not in buffers or not torch.equal(buffer, buffers[name]):
            raise UnsupportedModule(
                f"buffer {name!r} changes in a forward pass: it keeps statistics of private records, without "
                "noise. Remove it, or call .eval()."
            )
    if not all(bool(value.isfinite().all()) for value, _ in together):
        raise ValueError("the outputs of made-up records are not finite; give records that the module takes.")
    for i in range(n):
        single = [value[i : i + 1] if isinstance(value, Tensor) else value for value in inputs]
        try:
            separate = _measure(model, single, heads), _squared_gradients(model, single, heads)
        except Exception as error:  # the user's own code, on a batch of one
            raise UnsupportedModule(
                f"record {i} alone cannot pass through the module, though the batch can: {error}"
            ) from error
        for (value, gram), (alone, _), true in zip(together, *separate, strict=True):
            scale = float(1 + value.abs().max())
            if not torch.allclose(value[i], alone[0], rtol=tolerance, atol=1e-3 * tolerance * scale):
                raise UnsupportedModule(_MIXED.format(what="output", i=i))
            if gram is None or true is None:
                continue
            if not torch.allclose(gram[i, 0, 0], true, rtol=tolerance, atol=1e-3 * tolerance * float(1 + true)):
                raise UnsupportedModule(_MIXED.format(what="parameter gradient", i=i))


def passed(module: nn.Module, inputs: Sequence[Any]) -> bool:
    """Say whether the module passed before, in these modes, on inputs of these shapes and types."""
    return _likeness(module, inputs) in _passed.get(module, ())


def remember(module: nn.Module, inputs: Sequence[Any]) -> None:
    """Note that the module passed; forgotten with the module."""
    _passed.setdefault(module, set()).add(_likeness(module, inputs))


def copied(module: nn.Module, *, double: bool) -> nn.Module:
    """A copy to try things on, without the graphs of earlier passes that the module may keep."""
    tensors = [value for child in module.modules() for value in vars(child).values() if isinstance(value, Tensor)]
    memo: dict[int, Any] = {id(value): value.detach() for value in tensors if value.grad_fn is not None}
    try:
        copy_ = copy.deepcopy(module, memo)
    except Exception as error:  # whatever the module holds
        raise UnsupportedModule(
            f"the module cannot be copied to be rehearsed ({error}). Keep in it what copy.deepcopy can copy."
        ) from error
    return copy_.double() if double else copy_


@contextmanager
def unmoved_generators(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put torch's random generators back as they were, those of the devices of tensors of any shape too."""
    devices = {value.device for value in tensors if value.is_cuda}
    with torch.random.fork_rng(devices=list(devices)):
        yield


_MIXED = (
    "the {what} of record {i} differs between the batch and the record alone: the module mixes records, is "
    "random, changes gradients on their way, or has a layer whose rule is wrong (`require_exact` tells). Compute "
    "every record from itself, along dimensions after the first."
)


def _likeness(module: nn.Module, inputs: Sequence[Any]) -> Hashable:
    """Key of a rehearsal, equal where another one would come out the same: layers, modes, hooks, shapes and types."""
    layers = tuple(
        (id(child), type(child), child.training, len(child._forward_hooks), len(child._forward_pre_hooks))
        for child in module.modules()
    )
    return layers, tuple(map(_kind, inputs))


def _kind(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return tuple(value.shape[1:]), value.dtype, value.device.type
    return type(value), value if isinstance(value, bool | int | float | str) else None


def _generator_states(tensors: Sequence[Tensor]) -> list[Tensor]:
    devices = {value.device for value in tensors if value.is_cuda}
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in sorted(devices, key=str))]


def _measure(model: nn.Module, inputs: Sequence[Any], heads: Heads | None) -> list[tuple[Tensor, Tensor | None]]:
    """One random combination of each head's columns (n,), with its Gram matrices (n, 1, 1) where it is trained."""
    tape = unrehearsed(model, *inputs)
    combined = _combine(tape.raw, heads)
    return [(head.detach(), tape.gram(head) if head.requires_grad else None) for head in combined]


def _squared_gradients(model: nn.Module, inputs: Sequence[Any], heads: Heads | None) -> list[Tensor | None]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    squares: list[Tensor | None] = []
    device = next(value.device for value in inputs if isinstance(value, Tensor))
    with full_precision(device), torch.enable_grad():
        for head in _combine(model(*inputs), heads):
            if not head.requires_grad:
                squares.append(None)
                continue
            gradients = torch.autograd.grad(head.sum(), trained, retain_graph=True, allow_unused=True)
            parts = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
            squares.append(sum(parts, head.new_zeros(())))
    return squares


def _combine(raw: Any, heads: Heads | None) -> list[Tensor]:
    parts = OutputForm.of(raw).parts(raw) if heads is None else heads(raw)
    generator = torch.Generator().manual_seed(0)
    combined = []
    for part in parts:
        flat = part.reshape(len(part), -1).double()
        weights = torch.randn(flat.shape[1], generator=generator, dtype=torch.float64).to(flat.device)
        combined.append(flat @ weights)
    return combined


_KNOWN = ("torch.nn.", "fedsw.learning.models.")
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

    The leading dimension of every input counts the records. The tape's memory is O(n activations): per-sample Jacobians
    are never formed for all records. UnsupportedModule if the module would escape the clip, mixes records, or cannot be
    rehearsed; ValueError if the inputs disagree on n, or the module returns something else than tensors.
    """
    fault = rehearsed(module, inputs) if _has_own_code(module, inputs) else None
    tape = unrehearsed(module, *inputs)  # which names a fault of the real batch in its own shapes
    if fault is not None:
        raise fault
    return tape


def rehearsed(module: nn.Module, inputs: Sequence[Any]) -> UnsupportedModule | None:
    """Fault of a module on made-up records like the inputs; None without a fault, or if it passed before."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    if not tensors or any(value.dim() == 0 for value in tensors) or passed(module, inputs):
        return None
    check(module)  # whose reasons are plainer than what goes wrong without it
    reason: Exception | None = None
    with unmoved_generators(tensors):
        generator = torch.Generator().manual_seed(0)
        for made in _made_up(module, inputs, generator):
            for double in (True, False):  # a forward that casts to float32 itself takes no float64
                model = moved(copied(module, double=double), generator)
                try:
                    examine(model, [_cast(value, double) for value in made], None, EXACT if double else ROUNDED)
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
    """Say whether a forward pass depends on code of a user's own, a function given to a layer, or a second input."""
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
                made = [_like(value, rows, min(tables, default=2), generator, careful=careful) for value in inputs]
                if _distinct([value for value in made if isinstance(value, Tensor)]):
                    yield made
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
