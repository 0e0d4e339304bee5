"""Attention: its projections are measured as linear layers, and what lies between them has no parameters."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsw.mathematics.clipping.rules._dense import LINEAR
from fedsw.mathematics.clipping.rules.rule import BARE, Bare, Rule, Take, Worst, all_but_cancelling

NAMES = (
    *("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"),
    *("bias_k", "bias_v"),
)
"""The parameters that `nn.MultiheadAttention` holds itself; those of its `out_proj` are that layer's."""

OUTPUT = nn.modules.linear.NonDynamicallyQuantizableLinear
"""The type of `out_proj`: a Linear under another name."""

PROJECTION = replace(LINEAR, least_dims=lambda layer: 3)
"""The rule of a projection: that of a linear layer on (records, sites, features)."""


@dataclass(frozen=True, eq=False)
class Projection:
    """The linear map that an attention layer applies to its queries, its keys or its values.

    The layer may pack the weights of all three in one parameter. Their rows are disjoint, so that the Gram matrices of
    the three add without cross terms.

    ``weight`` (E, features) and ``bias`` (E,) are rows of the layer's parameters; ``places`` has the first row of each.
    """

    weight: Tensor
    bias: Tensor | None
    places: Mapping[str, tuple[Tensor, int]]

    @staticmethod
    def of(weight: Tensor, bias: Tensor | None) -> Projection:
        """The map of a whole weight (out, in) and bias (out,)."""
        places = {"weight": (weight, 0)} | ({} if bias is None else {"bias": (bias, 0)})
        return Projection(weight, bias, places)

    @property
    def in_features(self) -> int:
        """Width of the input."""
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        """Width of the output."""
        return self.weight.shape[0]


def projections(layer: nn.MultiheadAttention) -> tuple[Projection, Projection, Projection]:
    """The projections of queries, keys and values; taken under `torch.enable_grad`."""
    width, packed, bias = layer.embed_dim, layer.in_proj_weight, layer.in_proj_bias

    def part(which: int, apart: Tensor | None) -> Projection:
        start = which * width
        rows = slice(start, start + width)
        places: dict[str, tuple[Tensor, int]] = {}
        if apart is not None:
            weight, places["weight"] = apart, (apart, 0)
        else:
            weight, places["weight"] = packed[rows], (packed, start * packed.shape[1])
        if bias is not None:
            places["bias"] = (bias, start)
        return Projection(weight, None if bias is None else bias[rows], places)

    return part(0, layer.q_proj_weight), part(1, layer.k_proj_weight), part(2, layer.v_proj_weight)


def applied(part: Projection, a: Tensor, take: Take, rule: Rule | None = None) -> Tensor:
    """Output (n, ..., E) of a projection of (n, ..., features), of which note is taken."""
    output = F.linear(a, part.weight, part.bias)
    take(part, rule or PROJECTION, a, output)
    return output


def _calls(layer: nn.MultiheadAttention, take: Take) -> Callable[..., Any]:
    parts = projections(layer)
    learned = [None if bias is None else Bare.of(bias) for bias in (layer.bias_k, layer.bias_v)]

    def project(which: int, a: Tensor) -> Tensor:
        return applied(parts[which], a, take)

    def append(which: int, sequence: Tensor) -> Tensor:
        """Keys (1) or values (2), (n, S, E), with a learned site and a site of zeros behind them."""
        part, n = learned[which - 1], len(sequence)
        if part is not None:
            site = part.bias.expand(n, 1, -1)
            take(part, BARE, sequence, site)
            sequence = torch.cat([sequence, site], 1)
        return F.pad(sequence, (0, 0, 0, 1)) if layer.add_zero_attn else sequence

    return functools.partial(attended, layer, project, append)


def attended(
    layer: nn.MultiheadAttention,
    project: Callable[[int, Tensor], Tensor],
    append: Callable[[int, Tensor], Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The forward pass of `nn.MultiheadAttention`, with its projections as calls that can be recorded.

    torch's own applies its weights as functions, where no hook sees them. Activation checkpointing around the layer
    runs torch's own in the backward pass, and torch refuses that, because it saves other tensors.

    The layer has passed `refusal`; ``project`` applies the projection of queries (0), keys (1) or values (2), and
    ``append`` adds the sites that no mask covers. Queries are (n, T, E), keys and values (n, S, features), outputs
    (n, T, E), weights (n, T, S) or (n, heads, T, S), where S counts what was appended, too.
    """
    if is_causal and attn_mask is None:
        raise ValueError("is_causal only says that attn_mask is causal, and there is none: pass attn_mask.")
    q, k, v = (
        torch.unflatten(
            projected if which == 0 else append(which, projected), -1, (layer.num_heads, layer.head_dim)
        ).transpose(1, 2)
        for which, sequence in enumerate((query, key, value))
        for projected in (project(which, sequence),)
    )
    mask = _mask(attn_mask, key_padding_mask, q)
    if mask is not None and k.shape[2] > key.shape[1]:
        mask = F.pad(mask.expand(*mask.shape[:-1], key.shape[1]), (0, k.shape[2] - key.shape[1]))
    weights = None
    if need_weights:
        scores = (q / math.sqrt(layer.head_dim)) @ k.mT
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        mixed = weights @ v
        weights = weights.mean(dim=1) if average_attn_weights else weights
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return layer.out_proj(mixed.transpose(1, 2).flatten(2)), weights


class _Attending(nn.Module):
    """Attention of queries (n, T, E) to a few public keys, which are values, too."""

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, queries: Tensor) -> Tensor:
        """The attended values (n, T, E)."""
        n, layer = len(queries), self.attention
        keys, values = (queries.new_ones((n, _KEYS, width)) for width in (layer.kdim, layer.vdim))
        keys = keys * torch.arange(_KEYS).to(keys).unsqueeze(1)
        attended_to: Tensor = layer(queries, keys, values, need_weights=False)[0]
        return attended_to


_KEYS = 3


def _worst(layer: nn.MultiheadAttention) -> list[Worst]:
    """The worst neighbours of the projections of an attention layer; see `Rule`."""
    sites = all_but_cancelling(layer.embed_dim, 2).mT.contiguous()
    return [Worst(_Attending(layer), sites, "two sites that nearly cancel")]


def _refusal(layer: nn.MultiheadAttention) -> str | None:
    """Reason why the layer cannot be clipped although its projections could, with the remedy; None if it can."""
    if "forward" in vars(layer):
        return "has a forward of its own, which may compute anything; use MultiheadAttention as it is"
    if type(layer.out_proj) not in (OUTPUT, nn.Linear):
        return f"has an out_proj of type {type(layer.out_proj).__name__}, which it does not call; use Linear itself"
    return None


ATTENTION = Rule(least_dims=lambda layer: 3, parameters=NAMES, refusal=_refusal, worst=_worst, calls=_calls)


def _mask(attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Both masks as numbers to add to the scores, of a shape that broadcasts to (n, heads, T, S); None without any."""
    mask = None
    if attn_mask is not None:
        mask = _added(attn_mask, q)
        mask = mask.reshape(*q.shape[:2], *mask.shape[1:]) if mask.dim() == 3 else mask
    if key_padding_mask is not None:
        padding = _added(key_padding_mask, q)
        padding = padding.reshape(q.shape[0], 1, 1, padding.shape[-1])
        mask = padding if mask is None else mask + padding
    return mask


def _added(mask: Tensor, q: Tensor) -> Tensor:
    """A mask as numbers to add: minus infinity where it is True."""
    if mask.dtype != torch.bool:
        return mask.to(q.dtype)
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill_(mask, -math.inf)
