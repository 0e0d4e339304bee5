"""A rehearsal on made-up records that catches mixing no structural check can see."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedsw.clipping.outputs import Form
from fedsw.clipping.precision import full_precision
from fedsw.clipping.recording import unrehearsed
from fedsw.clipping.refusals import UnsupportedModule

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

    Args:
        module: the model.
        inputs: at least two distinct made-up records; the leading dimension counts them.
        heads: from `Tape.raw` to the heads that will be clipped; by default the outputs themselves.

    Raises:
        UnsupportedModule: naming what differs.
        ValueError: if fewer than two records are given, or their outputs are not finite.
    """
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    with unmoved_generators(tensors):
        examine(copied(module, double=True), [_double(value) for value in inputs], heads, EXACT)
    if heads is None:
        remember(module, inputs)


def examine(model: nn.Module, given: Sequence[Any], heads: Heads | None, tolerance: float) -> None:
    """Compare a batch with its records alone; changes the model's buffers if its forward does.

    Raises:
        UnsupportedModule, ValueError: as `probe_independence`.
    """
    tensors = [value for value in given if isinstance(value, Tensor)]
    n = next((len(value) for value in tensors), 0)
    if n < 2:
        raise ValueError(f"probing for mixed records takes at least 2 records; got {n}.")
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    states = _generator_states(tensors)
    together = _measure(model, given, heads)
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
        single = [value[i : i + 1] if isinstance(value, Tensor) else value for value in given]
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
    """Whether the module passed before, in these modes, on inputs of these shapes and types."""
    return _likeness(module, inputs) in _passed.get(module, ())


def remember(module: nn.Module, inputs: Sequence[Any]) -> None:
    """Note that the module passed; forgotten with the module."""
    _passed.setdefault(module, set()).add(_likeness(module, inputs))


def copied(module: nn.Module, *, double: bool) -> nn.Module:
    """A copy to try things on, without the graphs of earlier passes that the module may keep."""
    kept = [value for child in module.modules() for value in vars(child).values() if isinstance(value, Tensor)]
    memo: dict[int, Any] = {id(value): value.detach() for value in kept if value.grad_fn is not None}
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
    "random, or changes gradients on their way. Compute every record from itself, along dimensions after the "
    "first."
)


def _likeness(module: nn.Module, inputs: Sequence[Any]) -> Hashable:
    """What decides whether another rehearsal could come out differently: layers, modes, hooks, shapes and types."""
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
            found = [each.double().square().sum() for each in gradients if each is not None]
            squares.append(sum(found, head.new_zeros(())))
    return squares


def _combine(raw: Any, heads: Heads | None) -> list[Tensor]:
    parts = Form.of(raw).parts(raw) if heads is None else heads(raw)
    generator = torch.Generator().manual_seed(0)
    combined = []
    for part in parts:
        flat = part.reshape(len(part), -1).double()
        weights = torch.randn(flat.shape[1], generator=generator, dtype=torch.float64).to(flat.device)
        combined.append(flat @ weights)
    return combined


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
