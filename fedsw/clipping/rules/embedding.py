"""Embeddings: rows that a record reads several times add up before they are measured."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedsw.clipping.rules.products import inner_products, tiled, total_squares
from fedsw.clipping.rules.rule import Factored, Rule, times


def _gram(layer: nn.Embedding, a: Tensor, deltas: Sequence[Tensor]) -> Tensor:
    if not a.numel():
        return torch.zeros((a.shape[0], len(deltas), len(deltas)), dtype=torch.float64, device=a.device)
    index = a.reshape(a.shape[0], -1)
    slots = _slots(index)
    floats = 2 * len(deltas) * index.shape[1] * layer.embedding_dim

    def part_gram(part: slice) -> Tensor:
        return inner_products([_merge(layer, index[part], slots[part], delta[part]) for delta in deltas])

    return tiled(a.shape[0], floats, part_gram)


def _gradient(layer: nn.Embedding, a: Tensor, delta: Tensor, factors: Tensor) -> dict[str, Tensor]:
    rows = _without_padding(layer, a.reshape(-1), times(factors, delta).reshape(-1, layer.embedding_dim))
    table = torch.zeros_like(layer.weight, dtype=torch.float64)
    return {"weight": table.index_add_(0, a.reshape(-1), rows)}


def _reach(layer: nn.Embedding, a: Tensor, delta: Tensor) -> Tensor:
    return total_squares(delta).mul_(a.shape[1:].numel())


def _slots(index: Tensor) -> Tensor:
    """Number the distinct indices of each record, so that equal indices share a slot; (n, T) to (n, T)."""
    ordered, order = torch.sort(index, dim=1)
    starts = torch.zeros_like(ordered)
    starts[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).to(ordered.dtype)
    return torch.empty_like(order).scatter_(1, order, starts.cumsum(1))


def _merge(layer: nn.Embedding, index: Tensor, slots: Tensor, delta: Tensor) -> Tensor:
    """Sum the backprops of equal indices of a record: its per-sample gradient, without the untouched rows."""
    rows = delta.reshape(*index.shape, layer.embedding_dim).to(torch.float64)
    rows = _without_padding(layer, index, rows)
    return torch.zeros_like(rows).scatter_add_(1, slots.unsqueeze(-1).expand_as(rows), rows)


def _without_padding(layer: nn.Embedding, index: Tensor, rows: Tensor) -> Tensor:
    if layer.padding_idx is None:
        return rows
    return torch.where((index == layer.padding_idx).unsqueeze(-1), 0.0, rows)


def _refusal(layer: nn.Embedding) -> str | None:
    if layer.scale_grad_by_freq:
        return "scales gradients by how often the batch uses an index; set scale_grad_by_freq=False"
    if layer.max_norm is not None:
        return "rescales its weights in the forward pass; set max_norm=None"
    return None


EMBEDDING = Rule(
    least_dims=lambda layer: 1,
    factored=Factored(gram=_gram, gradient=_gradient, reach=_reach),
    refusal=_refusal,
)
