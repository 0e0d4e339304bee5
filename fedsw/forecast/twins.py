"""Training on public twins with the noise that a run would have: free of charge, since nobody's record is in it.

The step is a run's own: the same objective, clips, sensitivity, noise and optimizer, on one machine. Where clients add
noise of their own it is the noise of all of them, and ranks come from noised histograms (`fedsw.forecast.tabled`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from fedsw.accounting import Charge
from fedsw.experiment import Experiment
from fedsw.forecast.law import PublicRecords
from fedsw.forecast.tabled import Tabled, summed_noise
from fedsw.models import flatten
from fedsw.objectives import Clip
from fedsw.privacy.release import release
from fedsw.runs.quality import quality_of_classes, quality_of_numbers
from fedsw.runs.trainer import Trainer
from fedsw.single.objective import Objective
from fedsw.single.plan import plan
from fedsw.tasks.compared import composite_of
from fedsw.tasks.problem import Problem


@dataclass(frozen=True)
class Score:
    """How good a model is on held-out twins, and the best constant: accuracy, or minus the mean squared error."""

    model: float
    constant: float

    @property
    def gain(self) -> float:
        """How much better than a constant it is."""
        return self.model - self.constant


class _Uncharged:
    """What a release of public twins is charged to: there is nobody whose budget it could take."""

    def spend(self, round: int, attempt: int, charges: Sequence[Charge], sigma: float) -> float:
        """Nothing."""
        return 0.0


def trained(
    problem: Problem,
    experiment: Experiment,
    twins: PublicRecords,
    held_out: PublicRecords,
    *,
    multiplier: float,
    seed: int,
) -> Score:
    """Train on twins with a noise multiplier, and measure.

    Args:
        problem: of the twins' columns; what it says of training and clips is not looked at.
        experiment: with every setting of training and of the clips.
        multiplier: sigma / Delta of every round, a client's own under `local-gradient`; 0 without noise.
        seed: of batches and noise.

    Raises:
        TypeError: for records that nobody said are public: what is released here is charged to nobody.
        ValueError: if a stratum of sampling has no record.
    """
    if not isinstance(twins, PublicRecords):
        raise TypeError(f"twins are public records, these are {type(twins).__name__}: nothing here is accounted for")
    settings, asked = experiment.training, experiment.clip
    objective = _objective(problem, experiment)
    clip = problem.clip if asked.open else Clip(asked.output, asked.jacobian, asked.loss)
    sizes = objective.composite.cell_of(twins.sensitive, twins.target).bincount(minlength=len(objective.strata))
    empty = [name for name, size in zip(objective.strata, sizes.tolist(), strict=True) if size == 0]
    if empty:
        raise ValueError(f"there are too few records: no twin is in {', '.join(empty)}")
    batches = (
        {"batch_size": settings.batch_size} if settings.batch_size else {"batch_fraction": settings.batch_fraction}
    )
    quiet = plan(
        objective,
        clip,
        sizes=sizes.tolist(),
        rounds=settings.rounds,
        epsilon=float("inf"),
        delta=1e-6,
        seed=seed,
        **batches,
    )
    noisy = replace(quiet, multiplier=multiplier)
    if multiplier and experiment.privacy.local:
        noise = summed_noise(problem, experiment, clip, quiet.batch, multiplier=multiplier)
        noisy = replace(quiet, multiplier=noise.gradient / max(each.value for each in quiet.sensitivities))
        if noise.count:
            objective = _objective(
                problem, experiment, partial(Tabled, bins=experiment.local.bins, deviation=noise.count, seed=seed)
            )
    model = problem.build_model()
    trainer = Trainer(flatten(model), settings)
    records = replace(twins, features=problem.inputs(twins).float())
    for batch in noisy.batches(records):
        problem.prepared(model, trainer.theta)
        trainer.step(release(objective.gradient(model, batch, clip), noisy, _Uncharged()).value)
    return _score(problem, problem.prepared(model, trainer.model), held_out)


def _objective(problem: Problem, experiment: Experiment, made: Callable[..., Objective] = Objective) -> Objective:
    slicing = experiment.slicing
    return made(
        problem.task,
        composite_of(experiment, problem.shape).penalties,
        classes=problem.classes,
        targets=problem.shape.targets,
        dimension=problem.dimension,
        directions=slicing.directions,
        scheme=slicing.scheme,
        direction_seed=slicing.seed,
        ties=slicing.ties,
        bound=experiment.privacy.bound,
        mode=experiment.clip.of_jacobians,
        micro_batch=experiment.training.micro_batch,
    )


def _score(problem: Problem, model: torch.nn.Module, held_out: PublicRecords) -> Score:
    batch = problem.given(held_out)
    with torch.no_grad():
        outputs = problem.task.outputs(model(batch.features), batch)
    if not bool(torch.isfinite(outputs).all()):
        return Score(float("-inf"), 0.0)
    if problem.classes:
        found = quality_of_classes(outputs, held_out, groups=len(problem.groups), classes=problem.classes)
        constant = found.constant["accuracy"]
    else:
        found = quality_of_numbers(outputs, held_out)
        constant = -found.constant["mean_squared_error"]
    assert found.gain is not None
    return Score(constant + found.gain[0], constant)
