"""Rules of linear layers, embeddings, and normalisation within a record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsw.mathematics.clipping.rules.rule import (
    Factored,
    Formed,
    Rule,
    Take,
    Worst,
    all_but_cancelling,
    forming_is_cheaper,
    inner_products,
    met,
    outer_cost,
    outer_gram,
    reach_of_sites,
    squared_norms,
    tiled,
    times,
    total_squares,
    trains,
)


def _input_squares(layer: nn.Linear, a: Tensor) -> Tensor | None:
    if a.dim() > 2:
        return None
    squares = squared_norms(a) if trains(layer, "weight") else a.new_zeros(a.shape[0], dtype=torch.float64)
    return squares.add_(1.0) if trains(layer, "bias") else squares


def _gram(layer: nn.Linear, a: Tensor, deltas: Sequence[Tensor]) -> Tensor:
    n = a.shape[0]
    gram = torch.zeros((n, len(deltas), len(deltas)), dtype=torch.float64, device=a.device)
    if trains(layer, "weight"):
        inputs, backprops = _sites(a), [_sites(delta) for delta in deltas]
        kernel, floats = outer_cost(inputs.shape[2], layer.in_features, layer.out_features, len(deltas))

        def part_gram(part: slice) -> Tensor:
            return outer_gram(inputs[part], [delta[part] for delta in backprops], kernel=kernel)

        gram = gram + tiled(n, floats, a.device, part_gram)
    if trains(layer, "bias"):
        gram = gram + inner_products([_sites(delta).sum(2, dtype=torch.float64) for delta in deltas])
    return gram


def _gradient(layer: nn.Linear, a: Tensor, delta: Tensor, factors: Tensor) -> dict[str, Tensor]:
    sums = {}
    if a.dim() == 2 and layer.in_features < layer.out_features:
        # The narrower factor is scaled, and leads: the product of transposes takes a multiple of the time.
        if trains(layer, "bias"):
            sums["bias"] = factors @ delta
        if trains(layer, "weight"):
            sums["weight"] = (a.mul_(factors.unsqueeze(1)).T @ delta).T
        return sums
    delta = delta.mul_(factors.reshape(-1, *[1] * (delta.dim() - 1))).reshape(-1, layer.out_features)
    if trains(layer, "weight"):
        sums["weight"] = delta.T @ a.reshape(-1, layer.in_features)
    if trains(layer, "bias"):
        sums["bias"] = delta.sum(0)
    return sums


def _reach(layer: nn.Linear, a: Tensor, delta: Tensor) -> Tensor | None:
    if a.dim() == 2:
        return None
    real = met(delta)
    inputs = torch.where(real.unsqueeze(2), a.reshape(*real.shape, layer.in_features), 0.0)
    return reach_of_sites(layer, total_squares(inputs), delta, sites=real.sum(1))


def _sizes(layer: nn.Linear, a: Tensor, delta: Tensor) -> Tensor:
    sites: Tensor = met(delta).sum(1, dtype=torch.float64)
    return sites * (layer.in_features + layer.out_features)


def _rows(layer: nn.Linear, a: Tensor, deltas: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    """The weight's part of every record of a sequence, by its own product."""
    rows, inputs = {}, _sites(a)[:, 0]
    varying = [_sites(delta)[:, 0] for delta in deltas]
    if trains(layer, "weight"):
        rows["weight"] = [torch.bmm(delta.mT, inputs).flatten(1) for delta in varying]
    if trains(layer, "bias"):
        rows["bias"] = [delta.sum(1) for delta in varying]
    return rows


def _cheaper(layer: nn.Linear, a: Tensor, delta: Tensor, d: int) -> bool:
    sites = delta[:1].numel() // layer.out_features
    return a.dim() > 2 and forming_is_cheaper(sites, layer.in_features, layer.out_features, d, copied=False)


def _sites(values: Tensor) -> Tensor:
    """(n, ..., width) to (n, 1, T, width)."""
    n, width = values.shape[0], values.shape[-1]
    return values.reshape(n, 1, values[:1].numel() // width if n else 0, width)


def _worst(layer: nn.Linear) -> list[Worst]:
    width = layer.in_features
    sites = all_but_cancelling(width, 2).mT.contiguous()
    return [Worst(layer, torch.ones(1, width), "a vector"), Worst(layer, sites, "two sites that nearly cancel")]


LINEAR = Rule(
    least_dims=lambda layer: 2,
    factored=Factored(gram=_gram, gradient=_gradient, reach=_reach, shared=_input_squares, sizes=_sizes),
    formed=Formed(rows=_rows, floats=lambda layer, a, delta, d: d * layer.weight.numel(), cheaper=_cheaper),
    worst=_worst,
)


def _embedding_gram(layer: nn.Embedding, a: Tensor, deltas: Sequence[Tensor]) -> Tensor:
    if not a.numel():
        return torch.zeros((a.shape[0], len(deltas), len(deltas)), dtype=torch.float64, device=a.device)
    index = a.reshape(a.shape[0], -1)
    slots = _slots(index)
    floats = 2 * len(deltas) * index.shape[1] * layer.embedding_dim

    def part_gram(part: slice) -> Tensor:
        merged = []
        for delta in deltas:
            # Backprops of equal indices of a record add up in one row: its gradient, without the untouched rows.
            rows = delta[part].reshape(*index[part].shape, layer.embedding_dim).to(torch.float64)
            rows = _without_padding(layer, index[part], rows)
            merged.append(torch.zeros_like(rows).scatter_add_(1, slots[part].unsqueeze(-1).expand_as(rows), rows))
        return inner_products(merged)

    return tiled(a.shape[0], floats, a.device, part_gram)


def _embedding_gradient(layer: nn.Embedding, a: Tensor, delta: Tensor, factors: Tensor) -> dict[str, Tensor]:
    rows = _without_padding(layer, a.reshape(-1), times(factors, delta).reshape(-1, layer.embedding_dim))
    table = torch.zeros_like(layer.weight, dtype=torch.float64)
    return {"weight": table.index_add_(0, a.reshape(-1), rows)}


def _embedding_sites(layer: nn.Embedding, a: Tensor, delta: Tensor) -> Tensor:
    """How many sites of a record (n,) have a part in its gradient."""
    return met(delta.reshape(len(a), a.shape[1:].numel(), layer.embedding_dim)).sum(1, dtype=torch.float64)


def _slots(index: Tensor) -> Tensor:
    """Number the distinct indices of each record, so that equal indices share a slot; (n, T) to (n, T)."""
    ordered, order = torch.sort(index, dim=1)
    starts = torch.zeros_like(ordered)
    starts[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).to(ordered.dtype)
    return torch.empty_like(order).scatter_(1, order, starts.cumsum(1))


def _without_padding(layer: nn.Embedding, index: Tensor, rows: Tensor) -> Tensor:
    if layer.padding_idx is None:
        return rows
    return torch.where((index == layer.padding_idx).unsqueeze(-1), 0.0, rows)


def _refusal(layer: nn.Embedding | nn.EmbeddingBag) -> str | None:
    if layer.scale_grad_by_freq:
        return "scales gradients by how often the batch uses an index; set scale_grad_by_freq=False"
    return None


def _embedding_worst(layer: nn.Embedding | nn.EmbeddingBag) -> list[Worst]:
    index = next(index for index in range(layer.num_embeddings) if index != layer.padding_idx)
    return [Worst(layer, torch.full((1, _SITES), index), "one index at every site")]


_SITES = 4

EMBEDDING = Rule(
    least_dims=lambda layer: 1,
    factored=Factored(
        gram=_embedding_gram,
        gradient=_embedding_gradient,
        reach=lambda layer, a, delta: total_squares(delta).mul_(_embedding_sites(layer, a, delta)),
        sizes=lambda layer, a, delta: (1 + layer.embedding_dim) * _embedding_sites(layer, a, delta),
    ),
    refusal=_refusal,
    worst=_embedding_worst,
)


def _bag_calls(layer: nn.EmbeddingBag, take: Take) -> Callable[..., Tensor]:
    """Bags (n, E) as sums of single embeddings: an index of its own for every site, those of a bag in one row."""

    def bags(index: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        real, rule = torch.ones_like(index, dtype=torch.bool), EMBEDDING
        if index.dim() == 1:
            # One row a bag, filled up with index 0: `real` leaves those sites out.
            rule = replace(EMBEDDING, ragged=True)
            if offsets is None:
                raise ValueError("indices of one dimension take the offsets of their bags.")
            starts = offsets[:-1] if layer.include_last_offset else offsets
            ends = torch.cat(
                [starts[1:], offsets[-1:] if layer.include_last_offset else starts.new_tensor([len(index)])]
            )
            sizes = ends - starts
            real = torch.arange(max(int(sizes.max()), 1) if len(sizes) else 1, device=index.device) < sizes.unsqueeze(1)
            sites = starts.unsqueeze(1) + torch.arange(real.shape[1], device=index.device)
            filled = torch.where(real, sites, 0)
            none = index.new_zeros(real.shape)
            index = index[filled] if len(index) else none
            if per_sample_weights is not None:
                per_sample_weights = per_sample_weights[filled] if len(per_sample_weights) else none.to(layer.weight)
        rows = F.embedding(index, layer.weight, layer.padding_idx)
        take(layer, rule, index, rows)
        if layer.padding_idx is not None:
            real = real & (index != layer.padding_idx)
        rows = torch.where(real.unsqueeze(-1), rows, 0.0)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(-1)
        total = rows.sum(1)
        return total / real.sum(1, keepdim=True).clamp(min=1) if layer.mode == "mean" else total

    return bags


def _bag_refusal(layer: nn.EmbeddingBag) -> str | None:
    if layer.mode == "max":
        return "takes the largest of every coordinate (mode='max'), for which there is no rule; use 'sum' or 'mean'"
    return _refusal(layer)


BAGS = Rule(least_dims=lambda layer: 1, refusal=_bag_refusal, worst=_embedding_worst, calls=_bag_calls)


def _rule(
    standardise: Callable[[Any, Tensor], Tensor],
    reduce: Callable[[Any, Tensor], Tensor],
    shape: Callable[[Any], Sequence[int]],
    least_dims: Callable[[Any], int] = lambda layer: 2,
) -> Rule:
    """Rule of y = w * standardise(x) + b, where `reduce` sums (n, ...) over what shares an entry of w.

    A record of several sites has this ``shape``.
    """

    def rows(layer: Any, a: Tensor, deltas: Sequence[Tensor]) -> dict[str, list[Tensor]]:
        formed = {}
        if trains(layer, "weight"):
            normal = standardise(layer, a)
            formed["weight"] = [reduce(layer, normal * delta).flatten(1) for delta in deltas]
        if trains(layer, "bias"):
            formed["bias"] = [reduce(layer, delta).flatten(1) for delta in deltas]
        return formed

    def worst(layer: Any) -> list[Worst]:
        sites = all_but_cancelling(*shape(layer))
        return [Worst(layer, sites, "sites that differ"), Worst(layer, 1e6 + sites, "sites far from 0 that differ")]

    return Rule(
        least_dims=least_dims,
        formed=Formed(
            rows=rows, floats=lambda layer, a, delta, d: 3 * a[:1].numel(), cheaper=lambda layer, a, delta, d: True
        ),
        worst=worst,
    )


def _layer_reduce(layer: nn.LayerNorm | nn.RMSNorm, values: Tensor) -> Tensor:
    shared = values.dim() - len(layer.normalized_shape)
    return values.sum(tuple(range(1, shared))) if shared > 1 else values


def _group_reduce(layer: nn.GroupNorm, values: Tensor) -> Tensor:
    return values.flatten(2).sum(2) if values.dim() > 2 else values


def _layer_shape(layer: nn.LayerNorm | nn.RMSNorm) -> tuple[int, ...]:
    return (2, *layer.normalized_shape)


def _layer_dims(layer: nn.LayerNorm | nn.RMSNorm) -> int:
    return 1 + len(layer.normalized_shape)


def _instance_dims(layer: InstanceNorm) -> int:
    """Records, channels and 1, 2 or 3 axes of sites: with one axis less, torch reads records as channels."""
    return 2 + next(axes for axes, kind in enumerate(INSTANCE_NORMS, 1) if isinstance(layer, kind))


InstanceNorm = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)

LAYER_NORM = _rule(
    lambda layer, a: F.layer_norm(a, layer.normalized_shape, eps=layer.eps), _layer_reduce, _layer_shape, _layer_dims
)
RMS_NORM = _rule(
    lambda layer, a: F.rms_norm(a, list(layer.normalized_shape), eps=layer.eps),
    _layer_reduce,
    _layer_shape,
    _layer_dims,
)
INSTANCE_NORM = _rule(
    lambda layer, a: F.instance_norm(a, eps=layer.eps),
    _group_reduce,
    lambda layer: (layer.num_features, *[1] * (_instance_dims(layer) - 3), 2),
    _instance_dims,
)
GROUP_NORM = _rule(
    lambda layer, a: F.group_norm(a, layer.num_groups, eps=layer.eps),
    _group_reduce,
    lambda layer: (layer.num_channels, 2),
)
