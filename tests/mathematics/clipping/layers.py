"""A table of models, each built around one supported layer, and inputs for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.mathematics.clipping.naive import Build, Draw, Flat


def normals(*shape: int) -> Draw:
    return lambda n: torch.randn(n, *shape)


def tokens(*shape: int) -> Draw:
    return lambda n: torch.randint(0, 5, (n, *shape))


class Attending(nn.Module):
    """A sequence that attends to itself."""

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def encoder(width: int, heads: int, **options) -> nn.TransformerEncoderLayer:
    """A small layer without dropout, records first."""
    return nn.TransformerEncoderLayer(width, heads, 5, dropout=0.0, batch_first=True, **options)


def table(d: int, bias: bool) -> dict[str, tuple[Build, Draw]]:
    """Models of output dimension d, by the layer that they are about."""

    def tail(width: int) -> list[nn.Module]:
        return [nn.Tanh(), nn.Flatten(), nn.Linear(width, d, bias=bias)]

    b = {"bias": bias}
    return {
        "linear": (lambda: Flat(nn.Linear(5, 7, **b), *tail(7)), normals(5)),
        "linear-short-sequence": (lambda: Flat(nn.Linear(5, 6, **b), *tail(12)), normals(2, 5)),
        "linear-long-sequence": (lambda: Flat(nn.Linear(2, 3, **b), *tail(90)), normals(30, 2)),
        "linear-grid": (lambda: Flat(nn.Linear(3, 2, **b), *tail(24)), normals(3, 4, 3)),
        "conv1d-dilated-grouped": (
            lambda: Flat(nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, **b), *tail(36)),
            normals(4, 11),
        ),
        "conv1d-few-sites": (lambda: Flat(nn.Conv1d(4, 6, 5, **b), *tail(12)), normals(4, 6)),
        "conv2d": (
            lambda: Flat(nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), **b), *tail(36)),
            normals(2, 6, 5),
        ),
        "conv2d-depthwise-same-circular": (
            lambda: Flat(nn.Conv2d(3, 6, 3, groups=3, padding="same", padding_mode="circular", **b), *tail(96)),
            normals(3, 4, 4),
        ),
        "conv2d-reflect": (
            lambda: Flat(nn.Conv2d(2, 2, 2, padding=1, padding_mode="reflect", **b), *tail(32)),
            normals(2, 3, 3),
        ),
        "conv2d-skips-columns": (lambda: Flat(nn.Conv2d(1, 2, 1, stride=3, **b), *tail(8)), normals(1, 5, 6)),
        "conv3d": (lambda: Flat(nn.Conv3d(1, 2, 2, **b), *tail(8)), normals(1, 2, 3, 3)),
        "conv-transpose1d-grouped": (
            lambda: Flat(nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, **b), *tail(60)),
            normals(4, 5),
        ),
        "conv-transpose1d-dilated": (
            lambda: Flat(
                nn.ConvTranspose1d(2, 3, 3, stride=1, padding=1, output_padding=1, dilation=2, **b), *tail(24)
            ),
            normals(2, 5),
        ),
        "conv-transpose2d": (
            lambda: Flat(
                nn.ConvTranspose2d(2, 4, (3, 2), stride=(2, 3), padding=1, output_padding=(1, 2), **b),
                *tail(264),
            ),
            normals(2, 3, 4),
        ),
        "embedding-one-token": (lambda: Flat(nn.Embedding(5, 4), *tail(4)), tokens()),
        "embedding-repeated": (lambda: Flat(nn.Embedding(5, 3), *tail(24)), tokens(8)),
        "embedding-repeated-and-padding": (
            lambda: Flat(nn.Embedding(5, 3, padding_idx=0), *tail(24)),
            tokens(8),
        ),
        "layer-norm": (lambda: Flat(nn.Linear(5, 6), nn.LayerNorm(6, **b), *tail(6)), normals(5)),
        "layer-norm-of-sequence": (lambda: Flat(nn.LayerNorm((3, 4), **b), *tail(24)), normals(2, 3, 4)),
        "rms-norm": (lambda: Flat(nn.Linear(5, 6, **b), nn.RMSNorm(6), *tail(6)), normals(5)),
        "rms-norm-of-sequence": (lambda: Flat(nn.RMSNorm((3, 4), eps=1e-3), *tail(24)), normals(2, 3, 4)),
        "attention": (
            lambda: Flat(Attending(nn.MultiheadAttention(4, 2, batch_first=True, **b)), *tail(12)),
            normals(3, 4),
        ),
        "transformer": (lambda: Flat(encoder(4, 2, **b), *tail(12)), normals(3, 4)),
        "group-norm": (lambda: Flat(nn.Conv1d(3, 6, 3, **b), nn.GroupNorm(3, 6), *tail(30)), normals(3, 7)),
        "group-norm-of-vector": (lambda: Flat(nn.GroupNorm(2, 6), *tail(6)), normals(6)),
    }


NAMES = tuple(table(1, True))


def make(name: str, d: int, bias: bool, n: int, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """A model of the table and a batch for it, both of random normals."""
    torch.default_generator.manual_seed(seed)
    build, draw = table(d, bias)[name]
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    return model, draw(n)
