"""Generators trained on a noised sketch: post-processing, for as long as one likes, on from where it stopped."""

from __future__ import annotations

import copy
import hashlib
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from fedsw import files
from fedsw.models.labelled import (
    CHUNK,
    Conditional,
    Proportioned,
    generate,
    seeded_generator,
    settled,
    stratified,
)
from fedsw.sketches.law import BatchSums, Sketcher, SomeOfLaw, sums_of_vectors
from fedsw.sketches.noised import NoisedSketch


@dataclass(frozen=True, eq=False)
class Target:
    """What generated samples are compared with: a noised sketch, in the precision and on the device of training.

    Attributes:
        blocks: (cells, F), the sketch's sums over its records.
        proportions: (cells,), of the generated law.
        weights: (cells,), of every cell's squared distance.
        noise: mean of the squared noise in the weighted blocks, which `distance` takes off.
    """

    blocks: Tensor
    proportions: Tensor
    weights: Tensor
    noise: float

    @classmethod
    def of(cls, sketch: NoisedSketch, *, weights: Tensor | None = None, like: Tensor | None = None) -> Target:
        """The target of a sketch.

        Args:
            sketch: (cells, F + 1) numbers, released.
            weights: (cells,), at least 0; None for 1, the distance between the laws of features and labels together.
            like: a tensor of the wanted precision and device; None for float64 on the CPU.

        Raises:
            ValueError: if the weights have another shape, are negative or all 0.
        """
        chosen = torch.ones(sketch.law.cells, dtype=torch.float64) if weights is None else weights.to(torch.float64)
        if chosen.shape != (sketch.law.cells,) or bool((chosen < 0).any()) or not float(chosen.sum()) > 0:
            raise ValueError(
                f"weights have shape {tuple(chosen.shape)}; give one number of at least 0 for each of the "
                f"{sketch.law.cells} cells, not all 0"
            )
        noise = sketch.deviation**2 * sketch.coordinates * float(chosen.sum())
        found = (sketch.blocks, sketch.proportions, chosen.to(sketch.value.device))
        blocks, proportions, cell_weights = found if like is None else (each.to(like) for each in found)
        return cls(blocks, proportions, cell_weights, noise)

    def at(self, places: Tensor, factors: Tensor) -> Target:
        """The target at some coordinates, places (m,), multiplied by factors (m,): see `Sketcher.some`."""
        blocks = self.blocks[:, places.to(self.blocks.device)] * factors.to(self.blocks)
        return Target(blocks, self.proportions, self.weights, self.noise)


def distance(target: Target, vectors: Tensor, cells: Tensor) -> Tensor:
    """`distance_of_sums` of vectors phi of generated samples (m, F), differentiable, in cells (m,) int64."""
    return distance_of_sums(target, sums_of_vectors(vectors, cells, len(target.blocks)))


def distance_of_sums(target: Target, batch: BatchSums) -> Tensor:
    """Estimate without bias the weighted squared distance between the sketched records and a generated law.

    With b_c the target's blocks, p_c its proportions and mu_c the mean vector that the generator has for cell c, it
    estimates sum_c weight_c |E b_c - p_c mu_c|^2 without bias, given as many samples of each cell as there are: the
    square of a mean is taken over pairs of *different* samples, and the mean of the squared noise is taken off. It may
    be negative. A square with its diagonal would pull small batches together. Cells without two samples are left out,
    so a batch has two or more of every cell of positive proportion.

    Guarantee: post-processing of the sketch. BatchNorm and whatever else mixes samples of a batch is allowed in the
    generator, since no record passes through it; samples of a batch then depend on each other a little, and what is
    estimated is the distance of the law that the batch's own statistics make.

    Args:
        target: of the sketch.
        batch: sums over the vectors of the generated samples, by cell.

    Returns:
        A scalar, differentiable in the vectors.

    Source: Gretton, Borgwardt, Rasch, Schoelkopf, Smola 2012, Lemma 6 (U-statistic).
    """
    sums, squares, counts = batch.sums, batch.squares, batch.counts
    scale = target.proportions / counts.clamp(min=1)
    cross = (target.blocks * sums).sum(dim=1) * scale
    pairs = (sums.square().sum(dim=1) - squares) * scale.square() * counts / (counts - 1).clamp(min=1)
    terms = target.blocks.square().sum(dim=1) - 2 * cross + pairs
    present = (counts >= 2) | (target.proportions == 0)
    return (target.weights * torch.where(present, terms, 0.0)).sum() - target.noise


def drawn_distance(target: Target, vectors: Tensor, cells: Tensor) -> Tensor:
    """`drawn_distance_of_sums` of vectors (m, F), m >= 2, in cells (m,) int64."""
    return drawn_distance_of_sums(target, sums_of_vectors(vectors, cells, len(target.blocks)))


def drawn_distance_of_sums(target: Target, batch: BatchSums) -> Tensor:
    """The same for cells that were drawn at random, independently, with the target's proportions.

    Unbiased for any batch of two or more, whichever cells are in it: where there are more cells than a batch can hold
    twice.

    Args:
        target: of the sketch.
        batch: sums over the vectors of m >= 2 samples, by cell.

    Returns:
        A scalar, differentiable in the vectors.
    """
    sums, squares, m = batch.sums, batch.squares, batch.counts.sum()
    pairs = (sums.square().sum(dim=1) - squares) / (m * (m - 1))
    terms = target.blocks.square().sum(dim=1) - 2 * (target.blocks * sums).sum(dim=1) / m + pairs
    return (target.weights * terms).sum() - target.noise


__all__ = ["CheckpointRefused", "Progress", "FitSettings", "fit_generator", "generate", "sketch_distance"]

_TITLE = b"fedsw generator 1 "


@dataclass(frozen=True)
class FitSettings:
    """How a generator is trained; public, and part of a checkpoint.

    Attributes:
        steps: optimizer steps in all.
        batch: samples of a step.
        seed: of labels, noise and the frequencies of a step.
        learning_rate: of Adam at the first step; it falls to 0 along a cosine.
        fraction: of the frequencies that a step looks at, drawn anew every step; 1 for all. A half takes half the time,
            and its gradient has the whole's as its mean.
        averaging: of all steps, that an exponential average of the weights looks back on; the average is the trained
            network then, with BatchNorm's statistics for it. 0 for the weights of the last step.

    Raises:
        ValueError: if a number is out of range.
    """

    steps: int
    batch: int = 300
    seed: int = 0
    learning_rate: float = 0.01
    fraction: float = 1.0
    averaging: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 2:
            raise ValueError(f"steps = {self.steps}, batch = {self.batch}; at least 1 and 2")
        if not (0 < self.learning_rate < math.inf and 0 < self.fraction <= 1):
            raise ValueError(
                f"learning_rate = {self.learning_rate}, fraction = {self.fraction}; positive, and at most 1"
            )
        if not 0 <= self.averaging < 1:
            raise ValueError(f"averaging = {self.averaging}; it is a part of the steps, at least 0 and below 1")


@dataclass(frozen=True)
class Progress:
    """Where training is, for an observer. All of it is post-processing of the sketch.

    Attributes:
        step: steps done.
        distance: mean estimate of the squared distance to the sketch over the steps since the last call.
        network: as it is now, averaged where weights are; `generate` draws samples from it.
    """

    step: int
    distance: float
    network: nn.Module


class CheckpointRefused(ValueError):
    """A checkpoint file is damaged, or of another sketch, network or setting."""


@dataclass(frozen=True, eq=False)
class Compared:
    """What a step compares generated samples with: a law, drawn, and a target of it."""

    drawn: Sketcher
    target: Target


@dataclass(frozen=True, eq=False)
class Cells:
    """Which cells the samples of a step are of: the same at every step, or, where a batch is too small, drawn.

    Attributes:
        proportions: (cells,), on the host.
        fixed: (batch,), where a batch has two samples or more of every cell; None otherwise.
    """

    proportions: Tensor
    batch: int
    fixed: Tensor | None

    @classmethod
    def of(cls, target: Target, batch: int) -> Cells:
        """The cells of batches of that size, on the target's device."""
        proportions = target.proportions.cpu()
        each = stratified(proportions, batch)
        whole = bool((torch.bincount(each, minlength=len(proportions))[proportions > 0] >= 2).all())
        return cls(proportions, batch, each.to(target.blocks.device) if whole else None)

    def drawn(self, generator: torch.Generator, device: torch.device) -> Tensor:
        """Of a step, (batch,)."""
        if self.fixed is not None:
            return self.fixed
        return torch.multinomial(self.proportions, self.batch, replacement=True, generator=generator).to(device)


def fit_generator(
    sketch: NoisedSketch,
    network: nn.Module,
    settings: FitSettings,
    *,
    sketcher: Sketcher | None = None,
    weights: Tensor | None = None,
    proportions: Tensor | None = None,
    later: Sequence[tuple[NoisedSketch, Sketcher]] = (),
    observer: Callable[[Progress], None] | None = None,
    every: int = 100,
    checkpoint: Path | str | None = None,
) -> nn.Module:
    """Train a class-conditional generator until its samples, with their labels, have the sketch that was released.

    Guarantee: post-processing; it costs nothing, whatever the network, the number of steps or how often it is called.
    Choose between generators by `sketch_distance`, never on real records.

    Every step's labels, noise and frequencies depend on the seed and the step alone, so that a training that goes on
    from a checkpoint ends at the parameters of one that was never stopped, on the same machine.

    Args:
        sketch: (cells, F + 1) noised numbers; see `release_sketch`, `pooled`.
        network: see `fedsw.models.labelled.Conditional`; on its device, in float32. It is changed in place;
            a `Proportioned` one is given the sketch's proportions.
        settings: how.
        sketcher: the sketch's law, drawn, if it is there already.
        weights: (cells,), of every cell's squared distance; see `Target.of`.
        proportions: (cells,), that a `Proportioned` network is given, in place of the sketch's.
        later: sketches of later stages, each with its law drawn: their squared distances are added to the first's.
            How often a cell is generated is read off the first.
        observer: called every `every` steps and after the last.
        checkpoint: a file that is written at the same times, and read first if it is there.

    Returns:
        The network, in evaluation mode.

    Raises:
        ValueError: if the network's cells or the sketcher are not the sketch's.
        CheckpointRefused: if the file is damaged, or of another training.

    Source: Harder, Adamczewski, Park 2021 (DP-MERF).
    """
    if every < 1:
        raise ValueError(f"every = {every}; it must be at least 1")
    like = next(network.parameters())
    drawn = _sketcher_of(sketch, sketcher, like)
    conditional = _conditional(network, sketch)
    if isinstance(network, Proportioned):
        network.proportions.copy_(sketch.proportions if proportions is None else proportions)
    target = Target.of(sketch, weights=weights, like=like)
    targets = [Compared(drawn, target)]
    for other, own in later:
        like_first = replace(Target.of(other, weights=weights, like=like), proportions=target.proportions)
        targets.append(Compared(_sketcher_of(other, own, like), like_first))
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    released = copy.deepcopy(network) if settings.averaging else network
    path = None if checkpoint is None else Path(checkpoint)
    mark = _mark([sketch, *(each for each, _ in later)], network, settings, target)
    done = 0 if path is None else _restored(path, mark, network, released, optimizer)
    cells = Cells.of(target, settings.batch)
    network.train()
    total, counted = torch.zeros((), dtype=torch.float64, device=target.blocks.device), 0
    for step in range(done + 1, settings.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 + math.cos(math.pi * (step - 1) / settings.steps)) / 2
        total += _step(step, conditional, targets, cells, settings, optimizer)
        counted += 1
        if released is not network:
            _follow(released, network, step, settings)
        if step % every == 0 or step == settings.steps:
            if released is not network:
                settled(released, cells.proportions, settings.batch, seed=settings.seed)
            if path is not None:
                _save(path, mark, step, network, released, optimizer)
            if observer is not None:
                observer(Progress(step, float(total) / counted, released))
                network.train()
            total, counted = torch.zeros_like(total), 0
    if released is not network:
        network.load_state_dict(released.state_dict())
    return network.eval()


def sketch_distance(
    sketch: NoisedSketch, features: Tensor, cells: Tensor, *, sketcher: Sketcher | None = None
) -> float:
    """Compute the squared distance of samples from a sketch's records, noise taken off: to choose generators by.

    Args:
        sketch: (cells, F + 1) noised numbers.
        features: (m, p) samples, two or more of every cell that the sketch has.
        cells: (m,) int64, theirs.
        sketcher: the sketch's law, drawn, if it is there already.
    """
    drawn = _sketcher_of(sketch, sketcher, features)
    target = Target.of(sketch, like=features.to(torch.float64))
    with torch.no_grad():
        parts = [
            drawn.by_cell(*each) for each in zip(torch.split(features, CHUNK), torch.split(cells, CHUNK), strict=True)
        ]
        sums, squares, counts = (
            torch.stack([getattr(part, name).to(torch.float64) for part in parts]).sum(dim=0)
            for name in ("sums", "squares", "counts")
        )
        return float(distance_of_sums(target, BatchSums(sums, squares, counts)))


def _step(
    step: int,
    network: Conditional,
    targets: Sequence[Compared],
    cells: Cells,
    settings: FitSettings,
    optimizer: torch.optim.Optimizer,
) -> Tensor:
    """One step; returns the batch's distance before it, summed over stages: a scalar that nobody waits for here."""
    generator = seeded_generator(settings.seed, "generator training", step)
    like = targets[0].target.blocks
    each = cells.drawn(generator, like.device)
    made = network(torch.randn(settings.batch, network.latent, generator=generator).to(like), each)
    estimate = drawn_distance_of_sums if cells.fixed is None else distance_of_sums
    loss = torch.zeros((), device=like.device)
    for stage in targets:
        module: Sketcher | SomeOfLaw = stage.drawn
        compared = stage.target
        if settings.fraction < 1:
            module, places, factors = stage.drawn.some(settings.fraction, generator)
            compared = compared.at(places, factors)
        loss = loss + estimate(compared, module.by_cell(made, each))
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach().to(torch.float64)


def _follow(average: nn.Module, network: nn.Module, step: int, settings: FitSettings) -> None:
    """Move an average of weights on: a mean at first, then exponential over a part of all steps."""
    length = min(float(step), max(1.0, settings.averaging * settings.steps))
    move = get_ema_multi_avg_fn(1 - 1 / length)  # type: ignore[no-untyped-call]
    move(list(average.parameters()), list(network.parameters()), step)


def _sketcher_of(sketch: NoisedSketch, sketcher: Sketcher | None, like: Tensor) -> Sketcher:
    """A sketcher of its own for training, where `like` is and of its precision."""
    drawn = sketch.law.drawn(like.dtype) if sketcher is None else copy.deepcopy(sketcher).to(like.dtype)
    if drawn.law != sketch.law or drawn.coordinates != sketch.coordinates:
        raise ValueError("the sketcher is not the sketch's: draw it from the same law, seed included")
    return drawn.to(like.device)


def _conditional(network: nn.Module, sketch: NoisedSketch) -> Conditional:
    cells = getattr(network, "cells", None)
    if cells != sketch.law.cells or not isinstance(getattr(network, "latent", None), int):
        raise ValueError(
            f"the network is for {cells} cells and the sketch has {sketch.law.cells}; a generator has the attributes "
            "`cells` and `latent`, see fedsw.models.labelled"
        )
    return cast(Conditional, network)


def _mark(sketches: Sequence[NoisedSketch], network: nn.Module, settings: FitSettings, target: Target) -> str:
    """What a checkpoint must agree with: sketches, laws, settings, weights and the network's shapes."""
    digest = hashlib.sha256()
    shapes = [(name, tuple(value.shape)) for name, value in network.state_dict().items()]
    laws = [repr(sketch.law) for sketch in sketches]
    for part in (*laws, repr(asdict(settings)), repr(shapes), repr(target.weights.cpu().tolist())):
        digest.update(part.encode() + b"\0")
    for sketch in sketches:
        digest.update(sketch.value.cpu().numpy().tobytes())
    return digest.hexdigest()


def _save(
    path: Path, mark: str, step: int, network: nn.Module, released: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    content = io.BytesIO()
    state = {"mark": mark, "step": step, "network": released.state_dict(), "optimizer": optimizer.state_dict()}
    if released is not network:
        state["last"] = network.state_dict()
    torch.save(state, content)
    title = _TITLE + hashlib.sha256(content.getbuffer()).hexdigest().encode() + b"\n"
    files.replace(path, title, content.getbuffer())


def _restored(path: Path, mark: str, network: nn.Module, released: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bring networks and optimizer to where the file is; returns the steps done, 0 if there is no file."""
    if not path.exists():
        return 0
    title, _, content = path.read_bytes().partition(b"\n")
    if title != _TITLE + hashlib.sha256(content).hexdigest().encode():
        raise CheckpointRefused(f"{path} is damaged, or no checkpoint of a generator; remove it to start again")
    state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    if state["mark"] != mark:
        raise CheckpointRefused(
            f"{path} is of another sketch, network or setting; go on with what it was made with, or give another file"
        )
    network.load_state_dict(state.get("last", state["network"]))
    released.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])
