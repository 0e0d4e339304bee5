"""Where the channels of images stand in memory."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Unflattened(nn.Unflatten):
    """`nn.Unflatten` of columns into images with channels innermost in memory: convolutions of few take less time."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__(1, (channels, side, side))

    def forward(self, input: Tensor) -> Tensor:
        """Images (m, channels, side, side) of rows (m, channels side^2)."""
        return super().forward(input).contiguous(memory_format=torch.channels_last)


def innermost(module: nn.Module) -> None:
    """Store a module's filters with channels innermost; names, shapes and numbers stay."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # which torch does not declare
