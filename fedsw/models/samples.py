"""Labelled samples of a trained class-conditional generator."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from fedsw.models.conditional import Conditional
from fedsw.randomness import Stream

CHUNK = 4096


def generate(network: nn.Module, proportions: Tensor, count: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Labelled samples of a trained generator.

    Args:
        network: as `fedsw.single.generators.fit_generator` returns it; it is put into evaluation mode.
        proportions: (cells,), of the cells among the samples: `NoisedSketch.proportions`. Numbers are rounded so that
            their sum is `count`.
        count: how many samples.
        seed: of noise and order.

    Returns:
        Features (count, p) on the network's device, and cells (count,) int64 in random order: the label is
        cells // groups, the group cells % groups.
    """
    if count < 1:
        raise ValueError(f"count = {count}; it must be at least 1")
    network.eval()
    conditional, like = cast(Conditional, network), next(network.parameters())
    generator = seeded_generator(seed, "generated samples", 0)
    cells = stratified(proportions, count)[torch.randperm(count, generator=generator)].to(like.device)
    parts = []
    with torch.no_grad():
        for start in range(0, count, CHUNK):
            part = cells[start : start + CHUNK]
            noise = torch.randn(len(part), conditional.latent, generator=generator).to(like)
            parts.append(conditional(noise, part))
    return torch.cat(parts), cells


def proportions_of(network: nn.Module) -> Tensor:
    """How often each cell is to be generated, (cells,) float64: the network's own buffer, or equal parts."""
    cells = int(cast(Conditional, network).cells)
    found = getattr(network, "proportions", None)
    if not isinstance(found, Tensor) or tuple(found.shape) != (cells,):
        return torch.full((cells,), 1 / cells, dtype=torch.float64)
    return found.detach().to("cpu", torch.float64)


def stratified(proportions: Tensor, count: int) -> Tensor:
    """Cells (count,) int64, in order, in the proportions as closely as whole numbers can be (largest remainders).

    `proportions` (cells,) are not negative and have sum 1.
    """
    wanted = (proportions.detach().cpu().to(torch.float64) * count).clamp(min=0)
    whole = wanted.floor()
    short = count - int(whole.sum())
    order = torch.sort(wanted - whole, descending=True, stable=True).indices
    whole[order[: max(0, short)]] += 1
    return torch.repeat_interleave(torch.arange(len(wanted)), whole.to(torch.int64))[:count]


def seeded_generator(seed: int, *purpose: str | int) -> torch.Generator:
    """torch's generator for one public purpose of a seed."""
    word = int(Stream.seeded(seed, *purpose).words(1)[0])
    return torch.Generator().manual_seed(word >> 1)
