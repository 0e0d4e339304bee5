"""A recorded forward pass: per-sample Jacobians measured, and pulled back through, without forming them.

Edge cases that show in a pass, each with its test; for the words, and what is refused before a pass, see `refusals`.

    reuse: a layer called twice in one pass: refused
        test_what_only_a_forward_pass_shows_is_refused[called twice]
    reuse: attention called twice in one pass: refused
        test_attention_that_is_used_twice_in_a_pass_is_refused
    a parameter used behind its layer's back: refused
        test_what_only_a_forward_pass_shows_is_refused[functional use]
    a head with a parameter of its own: refused
        test_a_head_with_a_parameter_of_its_own_is_refused
    frozen parameters: exact
        test_frozen_parameters_are_neither_measured_nor_released
    frozen parts of attention: exact
        test_frozen_parts_of_attention_are_neither_measured_nor_released
    a layer that no head reaches: exact
        test_a_layer_that_no_head_reaches_gets_zero
    layer norm: exact
        test_clipped_sums_equal_the_loop_over_samples[layer-norm-of-sequence]
    RMS norm: exact
        test_clipped_sums_equal_the_loop_over_samples[rms-norm-of-sequence]
    group norm: exact
        test_clipped_sums_equal_the_loop_over_samples[group-norm]
    embeddings: an index several times in a record, padding: exact
        test_clipped_sums_equal_the_loop_over_samples[embedding-repeated-and-padding]
    attention masks: causal, padding, by record: exact
        test_attention_is_clipped_exactly_as_its_naive_jacobian
    an attention mask of every site of a record: bounded
        test_a_record_with_every_site_masked_leaves_the_others_alone
    an attention mask of all records as a second input: refused
        test_a_mask_of_all_records_is_not_taken_for_one_row_a_record
    records read as one sequence: refused
        test_frozen_layers_on_sequences_are_refused_where_they_would_read_the_records_as_one
    records merged, summed or not first: refused
        test_what_only_a_forward_pass_shows_is_refused[records merged]
    forward hooks of the user: exact
        test_forward_hooks_of_the_user_are_part_of_the_function
    an activation in place behind a layer: exact
        test_in_place_activations_after_a_layer_are_measured_where_the_layer_ended
    a layer's input that is overwritten: refused
        test_overwritten_inputs_are_refused
    checkpointing with use_reentrant=False: exact
        test_a_backward_pass_may_record_a_forward_pass
    checkpointing with use_reentrant=True: refused
        test_reentrant_checkpointing_is_refused
    checkpointing around attention that trains: refused
        test_attention_that_mixes_records_or_cannot_be_recorded_is_refused[run again in the backward pass]
    TF32, bfloat16 products, autocast around the pass: exact
        test_forward_gram_and_final_backward_run_without_tf32
    float32 rounding, sites that cancel: bounded
        test_a_jacobian_that_its_kernel_cannot_see_is_cut_all_the_same
    values that are not finite: bounded
        test_the_sum_is_that_of_the_other_records
    a backward pass that is not linear: bounded
        test_a_backward_pass_that_is_not_linear_loses_no_clip
    blocks of records, however they are cut: exact
        test_the_result_does_not_depend_on_how_records_are_blocked
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from fedsw.mathematics.clipping._unchanged import UnsupportedModule, kept, unchanged
from fedsw.mathematics.clipping.clip import finite, full_precision, row_sums
from fedsw.mathematics.clipping.columns import Way, columns
from fedsw.mathematics.clipping.gram import Block, Call, Total, overlaps, pulled_back
from fedsw.mathematics.clipping.rules import RULES, Rule
from fedsw.mathematics.clipping.rules.rule import BARE, Bare, trains

SEQUENTIAL = (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
"""Modules that read an input of two dimensions as one sequence: its rows, which would be records, are then mixed."""


def describe(name: str, module: nn.Module) -> str:
    """Name of a module in error messages: its path and its type."""
    return f"module {name!r} ({type(module).__name__})" if name else f"the module ({type(module).__name__})"


@dataclass(frozen=True)
class OutputForm:
    """Arrangement of the tensors that a module returned: one bare tensor, a tuple, or by name."""

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


Clip = Callable[[slice, Sequence[Tensor]], Sequence[Tensor]]
ColumnClip = Callable[[slice, Tensor], tuple[Tensor, Tensor]]


class Tape:
    """A recorded forward pass; `record` makes it.

    ``raw`` is what the module returned for the n ``records``, cut from its graph, to build heads from; ``size`` r is
    the length of what `clipped` returns. With one ``column``, every gradient of a head is a multiple of one gradient
    u_i = d raw_i / d parameters.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], blocks: Sequence[Block], form: OutputForm, rerun: nn.Module | None
    ) -> None:
        self._blocks = blocks
        self._rerun = () if rerun is None else (rerun,)  # by a backward pass, as checkpointing does
        self._total = Total(parameters)
        self.size = self._total.size
        leaves = []
        for parts in zip(*(block.outputs for block in blocks), strict=True):
            # A leaf of its own graph: heads are pulled back to it, and no further.
            joined = torch.cat([part.detach() for part in parts]) if len(parts) > 1 else parts[0].detach()
            leaves.append(joined.requires_grad_(any(part.requires_grad for part in parts)))
        self._leaves = tuple(leaves)
        self._live = [leaf for leaf in self._leaves if leaf.requires_grad]
        self.column = len(self._live) == 1 and self._live[0].shape[1:].numel() == 1
        self.records = self._leaves[0].shape[0]
        self.raw: Any = form.arranged(self._leaves)
        self.way: Way = "cheapest"

    @property
    def device(self) -> torch.device:
        """Device of the passes."""
        return self._leaves[0].device

    def gram(self, head: Tensor) -> Tensor:
        """Per-sample Gram matrices G_i = J_i J_i^T of J_i = d head_i / d parameters.

        Takes d backward passes, each only down to the outputs of the layers; the products are in float64. For a
        module that returns one column per record, one pass through the layers serves all heads: with u_i = d raw_i /
        d parameters, J_i = s_i u_i^T for the slopes s_i of the head, and G_i = |u_i|^2 s_i s_i^T, a product of
        factors without cancellation, as accurate as its factors.

        The head is (n,) or (n, d), a function of `raw` in which row i depends on row i alone and no parameter takes
        part; the result (n, d, d), float64. UnsupportedModule if a layer's input was overwritten.
        """
        self._require_head(head)
        self._require_intact()
        with full_precision(head.device), torch.no_grad(), unchanged(*self._rerun):
            if self.column:
                return chained(self._columns_slopes(head), self._layers_gram([self._ones()]))
            return self._layers_gram([self._below(head, unit) for unit in units(head)])

    def slopes(self, heads: Sequence[Tensor]) -> Tensor:
        """Derivatives s (h, n), float64, of heads (n,) or (n, 1) in the one column of the module: J_i = s_i u_i^T."""
        for head in heads:
            self._require_head(head)
        self._require_column()
        with full_precision(self.device), torch.no_grad():
            return torch.stack([self._columns_slopes(head).reshape(-1) for head in heads])

    def clipped(self, heads: Sequence[Tensor], clip: Clip, limits: Tensor, runs: Sequence[int]) -> Tensor:
        """Sum over heads and records of J_i^T w_i for weights that follow from the Gram matrices of each record.

        Block by block: the backprops that were measured are weighed and added, the same factors as of the Gram
        matrices, and no other backward pass is made. A record's part is cut to its limit (n,), measured as it is added.

        ``clip`` takes a slice of records and the Gram matrices (m, d, d) of the heads to their weights (m, d), float64.
        The sums are (S, r), float64, for S ``runs``, the lengths of consecutive parts, over the trainable parameters
        in the order of `module.parameters()`. A record with a head or a Gram matrix that is not finite contributes 0,
        without branching and without touching the other records.
        """
        for head in heads:
            self._require_head(head)
        if self.column:
            return self._clipped_along(heads, clip, limits, runs)
        self._require_intact()
        total = self._zeros(runs)
        with full_precision(self.device), torch.no_grad(), unchanged(*self._rerun):
            rows = [[self._below(head, unit) for unit in units(head)] for head in heads]
            ends = list(itertools.accumulate(map(len, rows)))
            for block in self._blocks:
                # All heads at once: their backprops are both what the clip is made from and what is added.
                measured = columns(block, [row for head_rows in rows for row in head_rows], self.way)
                grams = [
                    measured.gram(slice(end - len(head_rows), end)) for end, head_rows in zip(ends, rows, strict=True)
                ]
                weights = torch.cat(list(clip(block.rows, grams)), dim=1)
                keep = self._healthy(heads, grams, block.rows)
                self._total.add(
                    total, measured.parts(weights), self._part(limits, block), keep, overlaps(runs, block.rows)
                )
        return total

    def clipped_column(self, clip: ColumnClip, limits: Tensor, runs: Sequence[int]) -> Tensor:
        """`clipped` of a module of one column: the sum of w_i u_i for weights that follow from the squares |u_i|^2.

        ``clip`` takes a slice of records and |u_i|^2 (m,) to the weights (m,), float64, and which records are kept; the
        result is (S, r).
        """
        self._require_column()
        self._require_intact()
        total = self._zeros(runs)
        with full_precision(self.device), torch.no_grad(), unchanged(*self._rerun):
            ones = self._ones()
            for block in self._blocks:
                measured = columns(block, [ones], self.way)
                weights, keep = clip(block.rows, measured.gram(slice(None)).reshape(-1))
                parts = measured.parts(weights.unsqueeze(1))
                self._total.add(total, parts, self._part(limits, block), keep, overlaps(runs, block.rows))
        return total

    def _clipped_along(self, heads: Sequence[Tensor], clip: Clip, limits: Tensor, runs: Sequence[int]) -> Tensor:
        """`clipped` of a module of one column: its gradients are measured once for all heads."""
        with full_precision(self.device), torch.no_grad():
            slopes = [self._columns_slopes(head) for head in heads]

        def along(rows: slice, squares: Tensor) -> tuple[Tensor, Tensor]:
            grams = [chained(slope[rows], squares) for slope in slopes]
            parts = [row_sums(w * slope[rows]) for w, slope in zip(clip(rows, grams), slopes, strict=True)]
            return functools.reduce(operator.add, parts), self._healthy(heads, grams, rows)

        return self.clipped_column(along, limits, runs)

    def _healthy(self, heads: Sequence[Tensor], grams: Sequence[Tensor], rows: slice) -> Tensor:
        return finite([row_sums(values) for values in (*grams, *(head.detach()[rows] for head in heads))])

    def _layers_gram(self, rows: Sequence[Sequence[Tensor | None]]) -> Tensor:
        """Gram matrices (n, d, d) of d columns from what each sends to the module's outputs."""
        grams = [columns(block, rows, self.way).gram(slice(None)) for block in self._blocks]
        return grams[0] if len(grams) == 1 else torch.cat(grams)

    def _ones(self) -> list[Tensor | None]:
        """The cotangents that select the module's one column."""
        return [torch.ones_like(leaf) if leaf.requires_grad else None for leaf in self._leaves]

    def _zeros(self, runs: Sequence[int]) -> Tensor:
        return torch.zeros((len(runs), self.size), dtype=torch.float64, device=self.device)

    def _part(self, values: Tensor, block: Block) -> Tensor:
        return values if len(self._blocks) == 1 else values[block.rows]

    def _columns_slopes(self, head: Tensor) -> Tensor:
        """Derivatives (n, d), float64, of the d columns of a head in the one column of the module."""
        slopes = []
        for unit in units(head):
            (slope,) = pulled_back((head,), self._live, (unit,))
            slopes.append((torch.zeros_like(self._live[0]) if slope is None else slope).reshape(-1))
        return torch.stack(slopes).to(torch.float64).T

    def _below(self, head: Tensor, cotangents: Tensor) -> list[Tensor | None]:
        """Pull cotangents of a head back to the module's outputs; None if none arrives."""
        pulled = pulled_back((head,), self._live, (cotangents,))
        by_leaf = {id(leaf): cotangent for leaf, cotangent in zip(self._live, pulled, strict=True)}
        return [by_leaf.get(id(leaf)) for leaf in self._leaves]

    def sites(self) -> list[set[torch.Size]]:
        """The shapes that a record's input has in each call; none of calls of packed sequences, or above them."""
        calls = zip(*(block.calls for block in self._blocks if not block.ragged), strict=True)
        return [{call.input.shape[1:] for call in of} for of in calls if not of[0].rule.ragged]

    def _require_head(self, head: Tensor) -> None:
        require_head(head, self.records, self._live, self._total.names)

    def _require_column(self) -> None:
        if not self.column:
            raise ValueError("the module returned more than one number per record: use gram and clipped.")

    def _require_intact(self) -> None:
        for call in (call for block in self._blocks for call in block.calls):
            if call.input._version != call.version:
                raise UnsupportedModule(
                    f"{call.title}: its input was overwritten after the call (an in-place operation), so its "
                    "gradient cannot be measured. Use out-of-place operations, and a fresh batch each time."
                )


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
            below = [sources[node]]  # over a recorded call, past its parameters
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
    """Refuse what is not a head (n,) or (n, d) of a tape: it depends on the module's outputs, and on no parameter."""
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


# Records are taken in blocks whose widest layer writes about this many floats: what a backward pass leaves
# behind is measured while it is still in the processor's cache, and d backprops never coexist for all n. A layer that
# reads vectors writes what its width says; one that reads images or sequences writes a multiple of it.
_CACHED_VECTORS, _CACHED_SITES = 2**19, 2**18
_ACCELERATOR_FLOATS = 2**26


def recorded(module: nn.Module, every: Mapping[str, nn.Parameter], inputs: Sequence[Any]) -> Tape:
    """Run a module forward over blocks of records and note its calls; ``every`` parameter by name, frozen ones too.

    Nothing is checked but what the pass itself shows: `record` refuses the rest, and rehearses a custom forward. The
    module is put back as it was after every block, so that no block meets what another left.
    """
    tensors = [value for value in inputs if isinstance(value, Tensor)]
    sizes = {value.shape[0] if value.dim() else -1 for value in tensors}
    if len(sizes) != 1 or -1 in sizes:
        raise ValueError(
            f"inputs have shapes {[tuple(value.shape) for value in tensors]}; the leading dimension of every "
            "tensor must count the records."
        )
    n = sizes.pop()
    rows = _block_rows(every.values(), tensors)
    parameters = {name: parameter for name, parameter in every.items() if parameter.requires_grad}
    names = {id(parameter): name for name, parameter in parameters.items()}
    blocks: list[Block] = []
    form: OutputForm | None = None
    with full_precision(tensors[0].device), torch.enable_grad(), kept(module) as state:
        for start in range(0, max(n, 1), rows):
            part = slice(start, min(start + rows, n))
            arguments = [value[part].detach() if isinstance(value, Tensor) else value for value in inputs]
            with listening(module, part.stop - start) as notes:
                returned = module(*arguments)
            calls = notes.calls
            form = form or OutputForm.of(returned)
            outputs = tuple(state.apart(output) for output in form.tensors(returned, part.stop - start))
            state.put_back()  # before the next block runs
            sources = {call.edge.node: call.source for call in calls}
            live = [output for output in outputs if output.requires_grad]
            refuse_strays(leaves(live, sources), names)
            bare = len(live) == len(calls) == 1 and get_gradient_edge(live[0]) == calls[0].edge
            blocks.append(Block(part, outputs, tuple(calls), bare, notes.ragged))
    return Tape(parameters, blocks, form or OutputForm(), module if own_code(module) else None)


def _block_rows(parameters: Collection[Tensor], tensors: Sequence[Tensor]) -> int:
    """Records per block: a cacheful of the widest layer, but enough of them to pay for a sum of length r."""
    widths = [value.shape[1:].numel() for value in tensors] + [p.shape[0] for p in parameters if p.dim()]
    r = sum(p.numel() for p in parameters if p.requires_grad)
    vectors = all(value.dim() < 3 for value in (*tensors, *parameters))
    cached = _CACHED_VECTORS if vectors else _CACHED_SITES
    floats = cached if tensors[0].device.type == "cpu" else _ACCELERATOR_FLOATS
    return max(floats // max(*widths, 1), math.isqrt(r) // 4, 1)


_KNOWN = ("torch.nn.", "fedsw.learning.models.", "fedsw.mathematics.clipping.rules.", "fedsw.audit.")
_ACTIVATIONS = (None, F.relu, F.gelu)  # those of a transformer's layer that are functions of single numbers


def own_code(module: nn.Module) -> bool:
    """Say whether a pass runs code that is neither torch.nn's nor fedsw's, or a function that was given to a layer."""
    return any(
        not type(child).__module__.startswith(_KNOWN)
        or "forward" in vars(child)
        or bool(child._forward_hooks or child._forward_pre_hooks)
        or vars(child).get("activation") not in _ACTIVATIONS
        for child in module.modules()
    )


@contextmanager
def listening(module: nn.Module, n: int) -> Iterator[Notes]:
    """Collect the calls of the supported layers below `module` during a forward pass of n records.

    A layer that applies its weights where no hook sees them, and trains, gets another forward pass for as long, of the
    same values, as its rule's `calls` make it; small means get one that is faster. Bare parameters are seen where they
    are added.
    """
    notes = Notes(n)
    handles: list[RemovableHandle] = []
    replaced: list[nn.Module] = []
    try:
        for name, layer in module.named_modules():
            title = describe(name, layer)
            rule = RULES.get(type(layer)) if type(layer) in RULES else None
            if isinstance(layer, SEQUENTIAL):
                handles.append(layer.register_forward_pre_hook(_batched(title, notes), with_kwargs=True))
            if rule is not None and rule.calls is None:
                # Before any hook of the user, which may replace the output by something computed from it.
                handles.append(layer.register_forward_hook(_hook(title, notes), prepend=True))
            elif rule is not None and rule.calls is not None and any(p.requires_grad for p in layer.parameters()):
                vars(layer)["forward"] = rule.calls(layer, functools.partial(notes.take, title))
                replaced.append(layer)
            elif applies(layer):
                vars(layer)["forward"] = functools.partial(means, layer)
                replaced.append(layer)
        with added(module, notes):
            yield notes
    finally:
        for handle in handles:
            handle.remove()
        for layer in replaced:
            del vars(layer)["forward"]


class Notes:
    """The calls of one forward pass of n records, in their order."""

    def __init__(self, n: int) -> None:
        self.calls: list[Call] = []
        self.ragged = False  # the longest record decides how many sites there are
        self._n = n
        self.seen: set[int] = set()

    def take(self, title: str, layer: Any, rule: Rule, a: Tensor, output: Tensor) -> None:
        """Note that a layer made this output (n, ...) of this input (n, ...), unless nothing in it is trained."""
        n = self._n
        if a.dim() < rule.least_dims(layer) or a.shape[0] != n or output.shape[0] != n:
            raise UnsupportedModule(
                f"{title} maps {tuple(a.shape)} to {tuple(output.shape)} for {n} records: the leading "
                "dimension must count the records, and nothing else may be computed along it. Keep records "
                "first."
            )
        if not any(trains(layer, name) for name in rule.parameters):
            return
        if id(layer) in self.seen:
            raise UnsupportedModule(
                f"{title} is called twice in one forward pass: its per-sample gradient has cross terms "
                "between the calls. Use a layer of its own for each call, or one call on a sequence."
            )
        self.seen.add(id(layer))
        if output.dtype not in (torch.float32, torch.float64):
            raise UnsupportedModule(f"{title} returns {output.dtype}; use float32 or float64 throughout.")
        if not output.requires_grad:
            raise UnsupportedModule(
                f"{title} runs without gradient (torch.no_grad, re-entrant checkpointing), so its parameters "
                "would never train. Freeze it with requires_grad_(False), or use use_reentrant=False."
            )
        edge = get_gradient_edge(output)
        self.calls.append(Call(title, layer, rule, a.detach(), a._version, a.grad_fn, edge))


def _hook(title: str, notes: Notes) -> Any:
    def note(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        a = args[0] if args else None
        if not isinstance(a, Tensor):
            raise UnsupportedModule(f"{title} got its input by keyword; pass it by position.")
        if not isinstance(output, Tensor):
            returned = type(output).__name__
            raise UnsupportedModule(f"{title} returns a {returned}; a layer with a rule returns one tensor.")
        notes.take(title, layer, RULES.get(type(layer)), a, output)

    return note


def bare(module: nn.Module) -> dict[int, tuple[str, nn.Parameter]]:
    """Trained parameters that modules without a rule hold as biases, with their titles, by `id`."""
    return {
        id(parameter): (f"parameter {key!r} of {describe(name, layer)}", parameter)
        for name, layer in module.named_modules()
        if is_bare(layer)
        for key, parameter in layer._parameters.items()
        if parameter is not None and parameter.requires_grad
    }


def is_bare(layer: nn.Module) -> bool:
    """Say whether a class of a user's own holds no trained parameter but such as are called a bias."""
    trained = [key for key, value in layer._parameters.items() if value is not None and value.requires_grad]
    bases = (base.__module__ for base in type(layer).__mro__)
    known = type(layer) in RULES or any(base.startswith(_LAYERS) and base not in _CONTAINERS for base in bases)
    return not known and bool(trained) and all("bias" in key for key in trained)


_LAYERS = ("torch.nn.", "opacus.")
_CONTAINERS = ("torch.nn.modules.module", "torch.nn.modules.container")


class _Additions(TorchFunctionMode):
    """Takes note where a bare parameter is added to something of the records; any other use is refused as a stray."""

    def __init__(self, known: Mapping[int, tuple[str, nn.Parameter]], notes: Notes) -> None:
        super().__init__()
        self._notes, self._known = notes, known
        self._parts = {key: Bare.of(parameter) for key, (_, parameter) in known.items()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _ADDING and len(args) == 2 and not kwargs:
            for one, other in (args, args[::-1]):
                if isinstance(one, Tensor) and id(one) in self._known and isinstance(other, Tensor):
                    wide = one.dim() < result.dim() or one.dim() == result.dim() and one.shape[0] == 1
                    if wide and other.shape[:1] == result.shape[:1]:
                        self._notes.take(self._known[id(one)][0], self._parts[id(one)], BARE, other, result)
        return result


_ADDING = ("add", "__add__", "__radd__")


@contextmanager
def added(module: nn.Module, notes: Notes) -> Iterator[None]:
    """Take note of bare parameters for as long, if there are any."""
    known = bare(module)
    if not known:
        yield
        return
    with _Additions(known, notes):
        yield


def _batched(title: str, notes: Notes) -> Any:
    def look(layer: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        if any(isinstance(value, PackedSequence) for value in (*args, *named.values())):
            notes.ragged = True
            return
        shapes = [tuple(value.shape) for value in (*args, *named.values()) if isinstance(value, Tensor)]
        if not shapes or len(shapes[0]) != 3:
            raise UnsupportedModule(
                f"{title} got an input of shape {shapes[0] if shapes else 'unknown'} and would read the records as one "
                "sequence; give it (records, sites, features)."
            )

    return look


_MOST = 16  # numbers in a window, each of which takes one pass over the output


def applies(layer: nn.Module) -> bool:
    """Say whether the layer is a mean over small windows that do not overlap, as torch computes it."""
    return (
        type(layer) is nn.AvgPool2d
        and "forward" not in vars(layer)
        and _pair(layer.kernel_size) == _pair(layer.stride)
        and _pair(layer.padding) == (0, 0)
        and math.prod(_pair(layer.kernel_size)) <= _MOST
        and not layer.ceil_mode
        and layer.divisor_override is None
    )


def means(layer: nn.AvgPool2d, images: Tensor) -> Tensor:
    """Output of the layer for images (n, C, H, W), up to the order of its sums; torch's own for anything else."""
    kernel = _pair(layer.kernel_size)
    if images.dim() != 4 or images.shape[2] < kernel[0] or images.shape[3] < kernel[1]:
        return nn.AvgPool2d.forward(layer, images)
    result: Tensor = _Means.apply(images, kernel)  # type: ignore[no-untyped-call]
    return result


class _Means(torch.autograd.Function):
    """Keeps its input as torch's own does, though nothing reads it: a checkpointed layer runs torch's own again."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernel: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(images)
        ctx.kernel, ctx.shape = kernel, images.shape
        first, *others = _taps(images, kernel)
        total = first.clone(memory_format=torch.contiguous_format)
        for tap in others:
            total.add_(tap)
        return total.div_(math.prod(kernel))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        _ = ctx.saved_tensors  # which lets a checkpoint run
        (gradient,) = gradients
        whole = all(size % k == 0 for size, k in zip(ctx.shape[2:], ctx.kernel, strict=True))
        pulled = (gradient.new_empty if whole else gradient.new_zeros)(ctx.shape)
        share = gradient / math.prod(ctx.kernel)
        for tap in _taps(pulled, ctx.kernel):
            tap.copy_(share)
        return pulled, None


def _taps(images: Tensor, kernel: tuple[int, int]) -> Iterator[Tensor]:
    """The numbers at each place of the windows, as views (n, C, H // kernel, W // kernel)."""
    high, wide = kernel
    rows, columns = images.shape[2] // high * high, images.shape[3] // wide * wide
    for i, j in itertools.product(range(high), range(wide)):
        yield images[:, :, i:rows:high, j:columns:wide]


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[-1]))
