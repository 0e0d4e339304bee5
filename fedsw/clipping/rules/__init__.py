"""The layers whose per-sample Jacobians can be measured, and the rule of each."""

from __future__ import annotations

from torch import nn

from fedsw.clipping.rules.attention import OUTPUT
from fedsw.clipping.rules.convolution import CONVOLUTION
from fedsw.clipping.rules.dense import EMBEDDING, GROUP_NORM, LAYER_NORM, LINEAR, RMS_NORM
from fedsw.clipping.rules.rule import Rule

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: LINEAR,
    OUTPUT: LINEAR,
    nn.Conv1d: CONVOLUTION,
    nn.Conv2d: CONVOLUTION,
    nn.Conv3d: CONVOLUTION,
    nn.ConvTranspose1d: CONVOLUTION,
    nn.ConvTranspose2d: CONVOLUTION,
    nn.ConvTranspose3d: CONVOLUTION,
    nn.Embedding: EMBEDDING,
    nn.LayerNorm: LAYER_NORM,
    nn.RMSNorm: RMS_NORM,
    nn.GroupNorm: GROUP_NORM,
}

__all__ = ["RULES", "Rule"]
