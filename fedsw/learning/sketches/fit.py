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

from fedsw._tools import files
from fedsw.learning.models.labelled import (
    Conditional,
    Proportioned,
    generate,
    proportions_of,
    seeded_generator,
    settled,
    stratified,
)
from fedsw.learning.sketches.drift import (
    Target,
    distance_of_sums,
    drawn_distance_of_sums,
    sketch_distance,
    sketcher_like,
)
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.sketch_law import DrawnParts, Sketcher

__all__ = ["CheckpointRefused", "Progress", "FitSettings", "fit_generator", "generate", "sketch_distance", "tried_in"]

_TITLE = b"fedsw generator 1 "
_TRIED = 4
"""Every restart takes this part of the steps; then the nearest to the sketch goes on."""
_JUDGED = 4000
"""Samples that restarts are compared by."""


@dataclass(frozen=True)
class FitSettings:
    """How a generator is trained; public, and part of a checkpoint. ValueError if a number is out of range.

    Attributes:
        steps: optimizer steps in all.
        batch: samples of a step.
        seed: of labels, noise and the frequencies of a step.
        learning_rate: of Adam at the first step; it falls to 0 along a cosine.
        fraction: of the frequencies that a step looks at, drawn anew every step; 1 for all. A half takes half the time,
            and its gradient has the whole's as its mean.
        averaging: of all steps, that an exponential average of the weights looks back on; the average is the trained
            network then, with BatchNorm's statistics for it. 0 for the weights of the last step.
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
    """Where training is, for an observer: steps done, and the network as it is now, averaged where weights are.

    The ``distance`` is the mean estimate of the squared distance to the sketch over the steps since the last call. All
    of it is post-processing of the sketch.
    """

    step: int
    distance: float
    network: nn.Module


class CheckpointRefused(ValueError):
    """A checkpoint file is damaged, or of another sketch, network or setting."""


@dataclass(frozen=True, eq=False)
class SketchTarget:
    """A sketch that a step compares generated samples with, its law, drawn, and its target."""

    sketch: NoisedSketch
    drawn: Sketcher
    target: Target

    def distance(self, samples: Tensor, cells: Tensor) -> float:
        """The squared distance of samples (m, p) of cells (m,) from the sketch."""
        return sketch_distance(self.sketch, samples, cells, sketcher=self.drawn)


@dataclass(frozen=True, eq=False)
class Cells:
    """Which cells the samples of a step are of: the same at every step, or, where a batch is too small, drawn.

    Proportions (cells,) are on the host; ``fixed`` (batch,) are there where a batch has two samples or more of every
    cell.
    """

    proportions: Tensor
    batch: int
    fixed: Tensor | None

    @classmethod
    def of(cls, target: Target, batch: int) -> Cells:
        """The cells of batches of that size, on the target's device."""
        proportions = target.proportions.cpu()
        cells = stratified(proportions, batch)
        whole = bool((torch.bincount(cells, minlength=len(proportions))[proportions > 0] >= 2).all())
        return cls(proportions, batch, cells.to(target.blocks.device) if whole else None)

    def drawn(self, generator: torch.Generator, device: torch.device) -> Tensor:
        """Return the cells of a step's samples, (batch,)."""
        if self.fixed is not None:
            return self.fixed
        return torch.multinomial(self.proportions, self.batch, replacement=True, generator=generator).to(device)


@dataclass(eq=False)
class _Training:
    """A generator on its way: the network that is trained, and what is released, the average of its weights or it."""

    network: nn.Module
    released: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0

    @classmethod
    def of(cls, network: nn.Module, settings: FitSettings) -> _Training:
        optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
        return cls(network, copy.deepcopy(network) if settings.averaging else network, optimizer)

    def state(self) -> dict[str, Any]:
        last = {} if self.released is self.network else {"last": self.network.state_dict()}
        return {
            "step": self.step,
            "network": self.released.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **last,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state.get("last", state["network"]))
        self.released.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])


def fit_generator(
    sketch: NoisedSketch,
    network: nn.Module,
    settings: FitSettings,
    *,
    sketcher: Sketcher | None = None,
    weights: Tensor | None = None,
    proportions: Tensor | None = None,
    later: Sequence[tuple[NoisedSketch, Sketcher]] = (),
    restarts: Sequence[nn.Module] = (),
    observer: Callable[[Progress], None] | None = None,
    every: int = 100,
    checkpoint: Path | str | None = None,
) -> nn.Module:
    """Train a class-conditional generator until its samples, with their labels, have the sketch that was released.

    Guarantee: post-processing; it costs nothing, whatever the network, the number of steps or how often it is called.
    Choose between generators by `sketch_distance`, never on real records.

    Every step's labels, noise and frequencies depend on the seed and the step only, so that a training that goes on
    from a checkpoint ends at the parameters of one that was never stopped, on the same machine.

    Args:
        sketch: (cells, F + 1) noised numbers; see `NoisedSketch`, `pooled`.
        network: see `labelled.Conditional`; on its device, in float32. It is changed in place, and
            returned in evaluation mode.
        settings: how.
        sketcher: the sketch's law, drawn, if it is there already.
        weights: (cells,), of every cell's squared distance; see `Target.of`.
        proportions: (cells,), that a `Proportioned` network is given, in place of the sketch's.
        later: sketches of later stages, each with its law drawn: their squared distances are added to the first's, off
            which it is read how often a cell is generated.
        restarts: the same network from other initial weights. With any, each of them and `network` take the first
            quarter of the steps, and the one with samples nearest to the sketches then continues, as `network`. What
            was not chosen yet when a training stopped is begun again, to the same end.
        observer: called every `every` steps and after the last; of restarts, only of the chosen one.
        checkpoint: a file that is written at the same times, and read first if it is there; see `tried_in`.

    ValueError if a network's cells or the sketcher are not the sketch's; CheckpointRefused if the file is damaged, or
    of another training.

    Source: Harder, Adamczewski, Park 2021 (DP-MERF).
    """
    if every < 1:
        raise ValueError(f"every = {every}; it must be at least 1")
    like = next(network.parameters())
    drawn = sketcher_like(sketch, sketcher, like)
    target = Target.of(sketch, weights=weights, like=like)
    targets = [SketchTarget(sketch, drawn, target)]
    for other, other_sketcher in later:
        like_first = replace(Target.of(other, weights=weights, like=like), proportions=target.proportions)
        targets.append(SketchTarget(other, sketcher_like(other, other_sketcher, like), like_first))
    for candidate in (network, *restarts):
        cells_of = getattr(candidate, "cells", None)
        if cells_of != sketch.law.cells or not isinstance(getattr(candidate, "latent", None), int):
            raise ValueError(
                f"the network is for {cells_of} cells and the sketch has {sketch.law.cells}; a generator has the "
                "attributes `cells` and `latent`, see fedsw.learning.models.labelled"
            )
        if isinstance(candidate, Proportioned):
            candidate.proportions.copy_(sketch.proportions if proportions is None else proportions)
    path = None if checkpoint is None else Path(checkpoint)
    mark = _mark([compared.sketch for compared in targets], network, settings, target, len(restarts))
    cells, training, tried = Cells.of(target, settings.batch), _Training.of(network, settings), list[float]()
    if path is not None and path.exists():
        state = read_training(path, mark)
        training.load(state)
        tried = state["tried"]
    elif restarts:
        tried = _choose(training, restarts, targets, cells, settings)
        if path is not None:
            _save(path, mark, training, tried)
    while training.step < settings.steps:
        until = min(settings.steps, training.step - training.step % every + every)
        mean = _advance(training, until, targets, cells, settings)
        if path is not None:
            _save(path, mark, training, tried)
        if observer is not None:
            observer(Progress(training.step, mean, training.released))
    if training.released is not network:
        network.load_state_dict(training.released.state_dict())
    return network.eval()


def tried_in(checkpoint: Path) -> list[float]:
    """Read by what a training's restarts were chosen: the squared distance of each, in their order; none without any.

    The first is that of the network itself; the one of the least distance went on. CheckpointRefused if the file is
    damaged.
    """
    return [float(distance) for distance in read_training(checkpoint)["tried"]]


def _choose(
    training: _Training,
    restarts: Sequence[nn.Module],
    targets: Sequence[SketchTarget],
    cells: Cells,
    settings: FitSettings,
) -> list[float]:
    """Bring a training to where the best of it and of its restarts is after their part of the steps."""
    tried, best, chosen = list[float](), math.inf, dict[str, Any]()
    for restart in (None, *restarts):
        one = training if restart is None else _Training.of(restart, settings)
        _advance(one, settings.steps // _TRIED, targets, cells, settings)
        made, where = generate(one.released, proportions_of(one.released), _JUDGED)
        off = sum(compared.distance(made, where) for compared in targets)
        tried.append(off if math.isfinite(off) else math.inf)
        if not chosen or tried[-1] < best:
            best, chosen = tried[-1], copy.deepcopy(one.state())
    training.load(chosen)
    return tried


def _advance(
    training: _Training, until: int, targets: Sequence[SketchTarget], cells: Cells, settings: FitSettings
) -> float:
    """Take the steps up to `until`; returns the mean of the batches' distances before them."""
    conditional, first = cast(Conditional, training.network), training.step
    total = torch.zeros((), dtype=torch.float64, device=targets[0].target.blocks.device)
    training.network.train()
    for step in range(first + 1, until + 1):
        for group in training.optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 + math.cos(math.pi * (step - 1) / settings.steps)) / 2
        total += _step(step, conditional, targets, cells, settings, training.optimizer)
        if training.released is not training.network:
            _follow(training.released, training.network, step, settings)
    training.step = until
    if training.released is not training.network:
        settled(training.released, cells.proportions, settings.batch, seed=settings.seed)
    return float(total) / max(1, until - first)


def _step(
    step: int,
    network: Conditional,
    targets: Sequence[SketchTarget],
    cells: Cells,
    settings: FitSettings,
    optimizer: torch.optim.Optimizer,
) -> Tensor:
    """One step; returns the batch's distance before it, summed over stages: a scalar that is not waited for here."""
    generator = seeded_generator(settings.seed, "generator training", step)
    like = targets[0].target.blocks
    sampled_cells = cells.drawn(generator, like.device)
    made = network(torch.randn(settings.batch, network.latent, generator=generator).to(like), sampled_cells)
    estimate = drawn_distance_of_sums if cells.fixed is None else distance_of_sums
    loss = torch.zeros((), device=like.device)
    for stage in targets:
        module: DrawnParts = stage.drawn
        compared = stage.target
        if settings.fraction < 1:
            module, places, factors = stage.drawn.some(settings.fraction, generator)
            compared = compared.at(places, factors)
        loss = loss + estimate(compared, module.by_cell(made, sampled_cells))
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    optimizer.step()
    return loss.detach().to(torch.float64)


def _follow(average: nn.Module, network: nn.Module, step: int, settings: FitSettings) -> None:
    """Move an average of weights on: a mean at first, then exponential over a part of all steps."""
    length = min(float(step), max(1.0, settings.averaging * settings.steps))
    move = get_ema_multi_avg_fn(1 - 1 / length)  # type: ignore[no-untyped-call]
    move(list(average.parameters()), list(network.parameters()), step)


def _mark(
    sketches: Sequence[NoisedSketch], network: nn.Module, settings: FitSettings, target: Target, restarts: int
) -> str:
    """Return the digest that a checkpoint must have: of sketches, laws, settings, weights, shapes, restarts."""
    digest = hashlib.sha256()
    shapes = [(name, tuple(value.shape)) for name, value in network.state_dict().items()]
    laws = [repr(sketch.law) for sketch in sketches]
    weights = target.weights.cpu().tolist()
    for part in (*laws, repr(asdict(settings)), repr(shapes), repr(weights), str(restarts)):
        digest.update(part.encode() + b"\0")
    for sketch in sketches:
        digest.update(sketch.value.cpu().numpy().tobytes())
    return digest.hexdigest()


def _save(path: Path, mark: str, training: _Training, tried: list[float]) -> None:
    content = io.BytesIO()
    torch.save({"mark": mark, "tried": tried, **training.state()}, content)
    title = _TITLE + hashlib.sha256(content.getbuffer()).hexdigest().encode() + b"\n"
    files.replace(path, title, content.getbuffer())


def read_training(path: Path, mark: str | None = None) -> dict[str, Any]:
    """Read the checkpoint of a training, of the one with that mark where one is given.

    CheckpointRefused if it is damaged, or of another training.
    """
    title, _, content = path.read_bytes().partition(b"\n")
    if title != _TITLE + hashlib.sha256(content).hexdigest().encode():
        raise CheckpointRefused(f"{path} is damaged, or no checkpoint of a generator; remove it to start again")
    state: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    if mark not in (None, state["mark"]):
        raise CheckpointRefused(
            f"{path} is of another sketch, network or setting; go on with what it was made with, or give another file"
        )
    return state
