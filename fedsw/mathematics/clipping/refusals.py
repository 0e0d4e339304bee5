"""Checks before a pass and a rehearsal on made-up records: what cannot be clipped record by record is refused, by name.

In order: `check`, by what a module is; probes of a copy, by what it does; `record`, which rehearses; `magnitudes`.

Treatment of each edge case, and its test in tests/mathematics/clipping. Exact: the clip is that of the naive loop over
records. Bounded: a record stays below its bound, and may lose more than it would have to. Refused: `UnsupportedModule`
names the module, the reason and the remedy. What a pass itself shows is in the table of `tape`.

    tied weights, a parameter that two layers hold: refused
        test_modules_the_clip_would_miss_are_refused_before_any_data[tied weights]
    a weight that is a view of another: refused
        test_a_weight_that_is_a_view_of_another_is_refused_by_name
    trained parameters outside layers with a rule: refused
        test_modules_the_clip_would_miss_are_refused_before_any_data[bare parameter]
    a subclass of a layer, weight norm, pruning: refused
        test_modules_the_clip_would_miss_are_refused_before_any_data[weight norm]
    RNN, LSTM, GRU, packed sequences too, and those of Opacus: exact
        test_layers_of_opacus_list_are_clipped_exactly[LSTM]
    cells of an RNN, LSTM, GRU, trained: refused
        test_modules_the_clip_would_miss_are_refused_before_any_data[recurrent cell]
    bags of embeddings, their sum or mean: exact
        test_layers_of_opacus_list_are_clipped_exactly[EmbeddingBag]
    biases of a module's own, added once as they are: exact
        test_layers_of_opacus_list_are_clipped_exactly[bare biases]
    biases of a module's own, used otherwise: refused
        test_uses_that_lose_the_clip_are_refused[a bias that multiplies]
    a frozen RNN, records first: exact
        test_layers_without_trained_parameters_are_passed_through_exactly[frozen recurrence]
    an LSTM with a `layer_rule`: exact
        test_an_lstm_with_a_rule_is_measured_and_clipped_exactly
    a layer with a wrong `layer_rule`: refused
        test_a_wrong_rule_is_found_and_never_trains
    batch norm that trains, or in training mode: refused
        test_batch_norm_of_a_frozen_backbone_is_refused_until_it_no_longer_looks_at_the_batch
    batch norm, frozen and in evaluation mode: exact
        test_heads_on_frozen_backbones_are_clipped_exactly[images]
    instance norm with statistics: refused
        test_modules_the_clip_would_miss_are_refused_before_any_data[instance norm with statistics]
    instance norm with parameters: exact
        test_layers_of_opacus_list_are_clipped_exactly[InstanceNorm]
    instance norm without either: exact
        test_layers_without_trained_parameters_are_passed_through_exactly[instance norm]
    dropout in training mode: refused
        test_modules_the_clip_would_miss_are_refused_before_any_data[dropout]
    dropout in evaluation mode: exact
        test_layers_without_trained_parameters_are_passed_through_exactly[dropout in evaluation mode]
    an embedding that scales or renormalises by the batch: refused
        test_modules_the_clip_would_miss_are_refused_before_any_data[frequency-scaled embedding]
    attention or recurrence with the batch second: refused
        test_modules_the_clip_would_miss_are_refused_before_any_data[attention over the batch]
    attention with learned or zero keys: exact
        test_layers_of_opacus_list_are_clipped_exactly[MultiheadAttention]
    hooks on gradients, backward hooks: refused
        test_modules_the_clip_would_miss_are_refused_before_any_data[hook on a gradient]
    float16 and bfloat16: refused
        test_half_precision_is_refused
    a forward that mixes records: refused
        test_what_mixes_records_is_refused_when_it_is_recorded[a batch mean]
    random numbers in a forward: refused
        test_what_mixes_records_is_refused_when_it_is_recorded[functional dropout]
    buffers that a forward changes: refused
        test_buffers_that_remember_records_are_caught_by_probing
    torch.compile, of a module or a part of it: refused
        test_compiled_modules_are_refused
    DistributedDataParallel (DDP), DataParallel: refused
        test_modules_that_spread_a_batch_over_processes_are_refused
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedsw.mathematics.clipping._unchanged import UnsupportedModule, unchanged
from fedsw.mathematics.clipping.clip import full_precision
from fedsw.mathematics.clipping.rules import RULES, register_imported
from fedsw.mathematics.clipping.rules.attention import OUTPUT
from fedsw.mathematics.clipping.tape import OutputForm, Tape, describe, is_bare, own_code, recorded

_FREEZE = "or freeze it with requires_grad_(False)"

_INSTEAD: tuple[tuple[type[nn.Module], str], ...] = (
    (
        nn.MultiheadAttention,
        "a subclass may compute anything, so use MultiheadAttention itself, or Linear projections and "
        "torch.nn.functional.scaled_dot_product_attention",
    ),
    (nn.modules.batchnorm._BatchNorm, "use GroupNorm"),
    (nn.RNNCellBase, "use RNN, GRU or LSTM, which take all times at once"),
    (nn.Bilinear, "use Linear on the outer product of the two inputs"),
    (nn.PReLU, "use LeakyReLU or ELU"),
)


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
    register_imported(RULES)
    owners: dict[int, str] = {}
    parameters: dict[str, nn.Parameter] = {}
    contained: set[nn.Module] = set()
    for name, child in module.named_modules():
        if child in contained:
            continue
        trains = any(parameter.requires_grad for parameter in child.parameters())
        rule = RULES.get(type(child)) if trains and type(child) in RULES else None
        if rule is not None and rule.contains:
            contained.update(part for part in child.modules() if part is not child)
        held = {key: parameter for key, parameter in child._parameters.items() if parameter is not None}
        reason = (
            _wrapping(child)
            or _mixing(child)
            or _stateful(child)
            or _parameters(child, held)
            or (None if rule is None else rule.refusal(child))
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


def _wrapping(module: nn.Module) -> str | None:
    """Reason why a wrapper around a network cannot be recorded; None if it can."""
    if "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None:
        return (
            "is compiled (torch.compile), so that no layer's input and output can be recorded; pass the module itself "
            "as it was before"
        )
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return (
            "spreads a batch over processes or devices and adds gradients up in a backward pass that never runs here; "
            "pass its .module, and add up clipped sums"
        )
    return None


def _mixing(module: nn.Module) -> str | None:
    """Reason why a module computes a record's output from other records too; None if it cannot."""
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and not module.batch_first:
        return "takes the second dimension for the batch and mixes along the first; set batch_first=True"
    if not isinstance(module, _MIXERS):
        return None
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        over = "normalises over the batch, so that each record's output depends on the others"
        if module.training:
            return f"{over}; use GroupNorm, or freeze it with requires_grad_(False) and call .eval() on it"
        if module.running_mean is None or module.running_var is None:
            return f"{over}, in evaluation mode too, since it keeps no statistics; use GroupNorm"
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


def _stateful(module: nn.Module) -> str | None:
    """Reason why a pass leaves something of a record, or differs from the one before; None if it does neither."""
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
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
        return (
            "has max_norm, by which a pass changes the rows that its records name, frozen ones too, and shows who is "
            "there; shorten all rows once, before training (torch.renorm), and set max_norm=None"
        )
    if module._backward_hooks or module._backward_pre_hooks:
        return "has backward hooks, which can change gradients after they were measured; remove them"
    return None


def _names(module: nn.Module) -> tuple[str, ...]:
    """The parameters of its own for which the module has a rule."""
    if is_bare(module):
        return tuple(module._parameters)
    return RULES.get(type(module)).owned(module) if type(module) in RULES else ()


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
    return None


def _view(module: nn.Module) -> str | None:
    """A weight that is not a parameter of its own: its gradient would belong to whatever it was computed from."""
    trained = any(parameter is not None and parameter.requires_grad for parameter in module._parameters.values())
    for key in _names(module):
        value = getattr(module, key, None)
        if not isinstance(value, Tensor) or not (trained or value.requires_grad):
            continue
        if key not in module._parameters or not value.is_leaf:
            return (
                f"has a {key} that is computed from another tensor (a view of it, for one) and is no parameter of its "
                f"own, so that the tensor behind it would get gradients that are not measured; give it an nn.Parameter "
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
    for known in RULES.classes():
        if isinstance(module, known):
            return f"a subclass may compute anything, so use {known.__name__} itself"
    supported = ", ".join(known.__name__ for known in RULES.classes() if known is not OUTPUT)
    return f"keep trainable parameters in supported layers ({supported}), or write this one a `layer_rule`"


Heads = Callable[[Any], Sequence[Tensor]]
"""From what a module returns to outputs (n, d) and losses (n,)."""

Probed = Callable[[nn.Module, Sequence[Any]], tuple[nn.Module, Heads]]
"""From a copy of a module and its inputs to the module that is probed and its heads."""

Measured = tuple[Tensor, Tensor | None]
"""One number of every record (n,), and its Gram matrices (n, 1, 1) where it is trained."""

Sites = list[set[torch.Size]]
"""The shapes that one record's input has for each layer, but for those that a longer record may lengthen."""

EXACT = 1e-6
"""Relative difference that rounding may make in float64."""

ROUNDED = 1e-3
"""Relative difference that rounding may make in a module that insists on float32."""

_passed: WeakKeyDictionary[nn.Module, set[Hashable]] = WeakKeyDictionary()


def probe_independence(module: nn.Module, *inputs: Any, heads: Heads | None = None) -> None:
    """Refuse a module, or heads, in which a record's result depends on the other records.

    Runs a float64 copy of the module over the whole batch and over each record by itself, and compares heads,
    parameter gradients (plain autograd, by record) and the Gram matrices the tape measures. Random numbers are
    refused, and buffers that a forward pass changes: they would carry statistics of private records out without noise.

    `record` does this itself for code that it does not know, on records that it makes up. It leaves out a module that
    passed here, without `heads`, on inputs of the same shapes and types. What it cannot see: a forward that mixes
    records only for values that were not given, or only in batches larger than the ones given; or that cuts a batch to
    its longest record where nothing but other values than 0 and 1 tell how long that is. (Then a long record may choose
    how all are measured: sums were seen to move by 5e-7 of one record's limit, which the factor 1.001 covers.)

    There are at least two distinct made-up records; heads are made of `Tape.raw`, by default the outputs themselves.
    UnsupportedModule names what differs; ValueError for fewer than two records, or outputs that are not finite.
    """
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    with unmoved_generators(tensors):
        examine(copied(module, double=True), [_cast(value, True) for value in inputs], heads, EXACT)
    if heads is None:
        remember(module, inputs)


def examine(model: nn.Module, inputs: Sequence[Any], heads: Heads | None, tolerance: float) -> None:
    """Compare a batch with its records one by one."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    n = next((len(value) for value in tensors), 0)
    if n < 2:
        raise ValueError(f"probing for mixed records takes at least 2 records; got {n}.")
    states = _generator_states(tensors)
    together, sites = _measure(model, inputs, heads)
    if any(not torch.equal(*pair) for pair in zip(states, _generator_states(tensors), strict=True)):
        raise UnsupportedModule(
            "a forward pass draws random numbers (functional dropout, noise): cotangents would meet other outputs than "
            "those they were computed from. Leave them out, or draw only in training mode and call .eval()."
        )
    _require_unmoved(model, inputs)
    if not all(bool(value.isfinite().all()) for value, _ in together):
        raise ValueError("the outputs of made-up records are not finite; give records that the module takes.")
    _require_alike(model, inputs, heads, tolerance, together, sites, grams=True)


def examine_beyond(model: nn.Module, batches: Iterable[Sequence[Any]], heads: Heads | None, tolerance: float) -> None:
    """`examine` of batches of other magnitudes, but for those that a copy's code does not take; it goes to the host.

    A batch that it does not take is one on which its code raises: an index beyond a table, for one, which would end the
    process on a device. What is not finite in a batch must not be so by itself.
    """
    model.cpu()
    for made in batches:
        inputs = [value.cpu() if isinstance(value, Tensor) else value for value in made]
        try:
            together, sites = _measure(model, inputs, heads)
        except UnsupportedModule:
            raise
        except Exception:  # the user's own code, on values that it may not be made for
            continue
        _require_unmoved(model, inputs)
        _require_alike(model, inputs, heads, tolerance, together, sites, grams=False)


def _require_alike(
    model: nn.Module,
    inputs: Sequence[Any],
    heads: Heads | None,
    tolerance: float,
    together: Sequence[Measured],
    sites: Sites,
    *,
    grams: bool,
) -> None:
    """Refuse a model that gives a record other heads or gradients in a batch than by itself.

    With `grams` the layers' rules are measured on batches of one record, too: training may draw such a batch.
    """
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    for i in range(len(tensors[0])):
        single = [value[i : i + 1] if isinstance(value, Tensor) else value for value in inputs]
        counted = (value[i] for value in tensors if value[i].numel() and value.dtype != torch.bool)
        size = max((float(numbers.abs().amax()) for numbers in counted), default=0.0)
        try:
            measured, alone_sites = _measure(model, single, heads, grams=grams)
            separate = measured, _squared_gradients(model, single, heads)
        except Exception as error:  # the user's own code, on a batch of one
            raise UnsupportedModule(
                f"record {i} alone cannot pass through the module, though the batch can: {error}"
            ) from error
        for (value, gram), (alone, gram_alone), true in zip(together, *separate, strict=True):
            if not _close(value[i], alone[0], tolerance, size):
                raise UnsupportedModule(_MIXED.format(what="output", i=i))
            squares = [norms[row, 0, 0] for norms, row in ((gram, i), (gram_alone, 0)) if norms is not None]
            if true is not None and not all(_close(square, true, tolerance, 0.0) for square in squares):
                raise UnsupportedModule(_MIXED.format(what="parameter gradient", i=i))
        if alone_sites != sites:
            # The way in which all records are measured follows from these shapes: the longest record would choose it.
            by_itself, batch = ([tuple(shape) for shapes in of for shape in shapes] for of in (alone_sites, sites))
            raise UnsupportedModule(_CUT.format(i=i, own=by_itself, sites=batch))


def _close(one: Tensor, other: Tensor, tolerance: float, size: float) -> bool:
    """Say whether two numbers of a record are equal but for rounding, in numbers of its size; or neither is finite."""
    if not (bool(one.isfinite()) and bool(other.isfinite())):
        return not (bool(one.isfinite()) or bool(other.isfinite()))
    scale = 1 + max(float(one.abs()), float(other.abs()), size)
    return torch.allclose(one, other, rtol=tolerance, atol=1e-3 * tolerance * scale)


def _require_unmoved(model: nn.Module, inputs: Sequence[Any]) -> None:
    """Refuse a forward pass that changes a parameter or a buffer; whatever it changes is put back."""

    def tensors() -> dict[str, Tensor]:
        return {name: value for name, value in (*model.named_buffers(), *model.named_parameters())}

    before = {name: value.detach().clone() for name, value in tensors().items()}
    with unchanged(model), torch.enable_grad():
        model(*inputs)
        after = tensors()
        changed = [name for name in (*before, *after) if not _equal(before.get(name), after.get(name))]
    if changed:
        kind = "buffer" if changed[0] in dict(model.named_buffers()) else "parameter"
        raise UnsupportedModule(
            f"{kind} {changed[0]!r} changes in a forward pass: it would keep statistics of private records, without "
            "noise. Remove what changes it, such as max_norm (norms can be cut once, before training), or call .eval()."
        )


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | (one != one) & (other != other)).all())


def probe_moved(
    module: nn.Module, inputs: Sequence[Any], probed: Probed | None = None, *, also: Sequence[Sequence[Any]] = ()
) -> None:
    """Probe a copy of a module with slightly moved parameters: `probe_independence` whatever its layers start at.

    It is probed on the inputs, on records of many magnitudes (`magnitudes`), and on further batches of inputs that are
    given; of these, on all that its code takes.

    The copy is in float64, or in the module's own type where the code takes no float64. ``probed`` makes of the copy,
    and of the inputs in its type, the module that is probed and its heads; by default the copy and its outputs.
    No random generator moves. UnsupportedModule names what differs; else whatever the user's own code raises.
    """
    with unmoved_generators([value for value in inputs if isinstance(value, Tensor)]):
        try:
            _probe_moved(module, inputs, probed, also, double=True)
        except UnsupportedModule:
            raise
        except Exception:  # code of the user's own that takes no float64, or is at fault in every type
            _probe_moved(module, inputs, probed, also, double=False)


def _probe_moved(
    module: nn.Module, inputs: Sequence[Any], probed: Probed | None, also: Sequence[Sequence[Any]], *, double: bool
) -> None:
    model = moved(copied(module, double=double), torch.Generator().manual_seed(0))
    values = [_cast(value, double) for value in inputs]
    target, heads = (model, None) if probed is None else probed(model, values)
    tolerance = EXACT if double else ROUNDED
    examine(target, values, heads, tolerance)
    further = ([_cast(value, double) for value in batch] for batch in also)
    examine_beyond(target, itertools.chain(further, magnitudes(values)), heads, tolerance)


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
    "random, changes gradients on their way, or has a layer with a wrong rule (see `require_exact`). Compute "
    "every record from itself, along dimensions after the first."
)

_CUT = (
    "the module cuts or fills up its records to the longest of a batch: the inputs of its layers have the shapes {own} "
    "for record {i} alone, and {sites} in a batch. Keep the length that the records have, whatever they hold."
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


def _measure(
    model: nn.Module, inputs: Sequence[Any], heads: Heads | None, *, grams: bool = True
) -> tuple[list[Measured], Sites]:
    """One random combination of each head's columns (n,), with its Gram matrices (n, 1, 1) where it is trained."""
    tape = unrehearsed(model, *inputs)
    combined = _combine(tape.raw, heads)
    return [
        (head.detach(), tape.gram(head) if grams and head.requires_grad else None) for head in combined
    ], tape.sites()


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


_MOVED = 0.01  # deviation of what is added to parameters
_TRIES = 8  # draws of made-up records, until they differ: of two whole numbers they may not


def record(module: nn.Module, *inputs: Any) -> Tape:
    """Run `module` forward once over a batch and keep what measuring and clipping its Jacobians needs.

    Guarantee: `Tape.gram` accounts for every path from a trainable parameter to the outputs. What would
    escape it (see `check`; a layer called twice in one forward; a parameter used outside the layer that owns
    it; a layer with another leading dimension than the batch) is refused here, by name, whatever the values.

    A module with code that is neither torch.nn's nor fedsw's is rehearsed first, on made-up records of many magnitudes
    and a copy (`probe_moved`): a mean over the batch, a softmax over it or functional dropout is refused. That
    happens once for a module, the modes of its layers and the shapes and types of its inputs; it depends neither on the
    records nor on their number, and moves no random generator.

    The leading dimension of every input counts the records. The tape's memory is O(n activations): per-sample Jacobians
    are never formed for all records. UnsupportedModule if the module would escape the clip, mixes records, or cannot be
    rehearsed; ValueError if the inputs disagree on n, or the module returns something else than tensors.
    """
    # Code of a user's own, a function given to a layer, or a second input may mix records:
    several = sum(isinstance(value, Tensor) for value in inputs) > 1
    fault = rehearsed(module, inputs) if several or own_code(module) else None
    tape = unrehearsed(module, *inputs)  # which names a fault of the real batch in its own shapes
    if fault is not None:
        raise fault
    return tape


def unrehearsed(module: nn.Module, *inputs: Any) -> Tape:
    """`record` without its rehearsal: what mixes records inside a custom forward passes."""
    return recorded(module, check(module), inputs)


def rehearsed(module: nn.Module, inputs: Sequence[Any]) -> UnsupportedModule | None:
    """Fault of a module on made-up records like the inputs; None without a fault, or if it passed before."""
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    if not tensors or any(value.dim() == 0 for value in tensors) or passed(module, inputs):
        return None
    check(module)  # its reasons are plainer than an error of the made-up pass below
    reason: Exception | None = None
    with unmoved_generators(tensors):
        generator = torch.Generator().manual_seed(0)
        for made in _made_up(module, inputs, generator):
            for double in (True, False):  # a forward that casts to float32 itself takes no float64
                model = moved(copied(module, double=double), generator)
                try:
                    values, tolerance = [_cast(value, double) for value in made], EXACT if double else ROUNDED
                    examine(model, values, None, tolerance)
                    examine_beyond(model, magnitudes(values), None, tolerance)
                except UnsupportedModule as fault:
                    return fault
                except Exception as fault:  # the user's code on values that it may not be made for
                    reason = fault
                else:
                    remember(module, inputs)
                    return None
    return UnsupportedModule(
        "the module has code of its own and does not take made-up records, so it is unknown whether it mixes "
        f"records ({type(reason).__name__}: {reason}). Call probe_independence(module, ...) once on at least two "
        "made-up records that it takes, in the modes, shapes and types of the batch; nothing is made up then."
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


_TOGETHER = (1.0, 10.0, 1e3, 1e6, -10.0, -1e6)
"""Sizes of records in one batch, so that whatever is computed of a batch differs from what is computed of each."""
_APART = (10.0, 100.0, 1e3, 1e6, -10.0, -1e3)
"""Sizes of batches in which all records have the same one."""
_RECORDS = 3


def magnitudes(inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """Batches of made-up records like the given ones, with numbers far beyond them.

    Normal ones; the same, filled up with zeros (what has no fractions with ones, too) at either end, as sequences of
    several lengths are, of which a batch reaches as far as the longest; one batch of many sizes, with outliers of
    either sign and a record of equal numbers; and a batch of each size. What has no fractions is taken from the given
    ones in turn: where nothing else is given, there are no sizes.
    """
    generator = torch.Generator().manual_seed(0)
    normal = [_normal(value, generator) for value in inputs]
    yield normal
    for mark, left in ((0, False), (1, False), (0, True)):
        yield [_filled_up(value, mark, left) for value in normal]
    if not any(isinstance(value, Tensor) and value.is_floating_point() for value in inputs):
        return
    for sizes in (_TOGETHER, *([size] * _RECORDS for size in _APART)):
        yield [_sized(value, sizes, generator, equal=len(sizes) > _RECORDS) for value in inputs]


def _normal(value: Any, generator: torch.Generator) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return _in_turn(value, _RECORDS)
    drawn = torch.randn((_RECORDS, *value.shape[1:]), generator=generator, dtype=torch.float64)
    return drawn.to(value.device, value.dtype)


def _filled_up(value: Any, mark: int, left: bool) -> Any:
    """The records with zeros for all numbers but the first: of the first record all stay, of the next a half, ...

    Where an input has no fractions, 0 or 1 may stand for *nothing more*: ``mark`` says which. ``left``: but the last.
    """
    if not isinstance(value, Tensor) or value.numel() == 0:
        return value
    flat = value.reshape(len(value), -1)
    lengths = [-(-flat.shape[1] // part) for part in range(1, len(flat) + 1)]
    real = torch.arange(flat.shape[1]) < torch.tensor(lengths).unsqueeze(1)
    real = real.flip(1) if left else real
    return flat.masked_fill(~real.to(value.device), 0 if value.is_floating_point() else mark).reshape(value.shape)


def _sized(value: Any, sizes: Sequence[float], generator: torch.Generator, *, equal: bool) -> Any:
    """Numbers uniform up to each record's size; where asked, with a last record of equal ones."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return _in_turn(value, len(sizes) + equal)
    rest = value.shape[1:]
    drawn = torch.rand((len(sizes), *rest), generator=generator, dtype=torch.float64)
    scale = torch.tensor(sizes, dtype=torch.float64).reshape(-1, *(1,) * len(rest))
    made = torch.cat([drawn * scale, torch.full((1, *rest), 5.0, dtype=torch.float64)]) if equal else drawn * scale
    return made.to(value.device, value.dtype)


def _in_turn(value: Any, count: int) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value[torch.tensor(list(itertools.islice(itertools.cycle(range(len(value))), count)))]
