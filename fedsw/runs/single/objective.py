"""`Objective`, a task loss and penalties on one machine, with its clipped gradient; `Batch`, a secret sample."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsw._tools.randomness import KEY_BYTES, Stream, below_rate, smallest_keys
from fedsw._tools.settings import whole
from fedsw._tools.text import Short
from fedsw.data import DeclaredRecords, Records, within_reach
from fedsw.data.made_up import made_up_inputs
from fedsw.data.sources import Shape
from fedsw.data.units import Units
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import TASKS, shipped_task
from fedsw.learning.objectives import Clip, WeightedSum
from fedsw.learning.objectives.penalties import NoPenalty, Penalty, expanded
from fedsw.learning.tasks.compared import compared_by
from fedsw.learning.tasks.objective import ClippedObjective, Learnt, OutputSlices, in_pieces
from fedsw.learning.tasks.own_task import MADE_UP, made_up_features, made_up_targets, require_per_record
from fedsw.learning.tasks.score_counts import COARSE, ScoreCounts, usual
from fedsw.learning.tasks.task import Inputs, Raw, Task
from fedsw.mathematics.clipping import unchanged
from fedsw.mathematics.clipping.clip import Mode
from fedsw.mathematics.transport.sliced import DEFAULT_MEMORY_LIMIT, Scheme, Ties
from fedsw.privacy.accounting import Charge
from fedsw.privacy.relations import RELATIONS
from fedsw.privacy.release import Bounded, Sample
from fedsw.privacy.sensitivity import SIZES, SLACK, Bound, Sensitivity, worst


class PlainLoss(Task):
    """The task of a network as others train it: cross-entropy of its outputs for classes, squared error for numbers.

    A loss is of one record, whatever the batch: a record may come and go (docs/guarantees/sampling.md).
    """

    def dimension(self, shape: Shape, model: Model) -> int:
        """One output for each class, or each number."""
        return shape.classes or shape.targets

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """Probabilities (n, classes), or the numbers (n, t)."""
        outputs: Tensor = raw.softmax(dim=1) if batch.shape.classes else raw
        return outputs

    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Cross-entropy or squared error (n,)."""
        if batch.shape.classes:
            return nn.functional.cross_entropy(raw, batch.target, reduction="none")
        squares: Tensor = (raw - batch.target) ** 2
        return squares.sum(dim=1)


@dataclass(frozen=True, eq=False)
class Batch:
    """One attempt's records, stratum by stratum. Which they are is secret; size and sampling rate of each are public.

    Round and attempt together name the batch; a ledger takes each pair once. What is computed from it leaves once, for
    the plan that drew it and the ledger that it was drawn for (`fedsw.privacy.release.Sample`).
    """

    round: int
    attempt: int
    records: Records
    sizes: tuple[int, ...]
    rates: tuple[float, ...]
    sample: Sample = field(default_factory=Sample)

    def __len__(self) -> int:
        """Number of records."""
        return len(self.records)


def draw_batch(
    records: Records,
    strata: Sequence[NDArray[np.int64]],
    sizes: Sequence[int],
    *,
    seed: int | None,
    round_: int,
    attempt: int,
    sample: Sample | None = None,
    poisson: float | None = None,
) -> Batch:
    """A uniform sample without replacement of the asked size of every stratum: units, and one row of each.

    With a rate of `poisson` sampling every unit of the one stratum joins independently, and sums are divided by the
    sizes.

    The sample comes from the operating system's entropy, and none of it is kept. With a seed it is that of a seeded
    federation of the same records with any number of clients; of units, of one client. A stratum's numbers (n_s,) are
    those of its units; if no unit is declared, rows of the records.
    """
    # Every unit has a 64-bit word. Of a fixed size those with the smallest words of their stratum are drawn; a Poisson
    # sample has those below the rate, which are the smallest, too.
    units = Units.of(records)
    if seed is None:
        stream = Stream(os.urandom(KEY_BYTES))
        keys = [stream.words(len(numbers)) for numbers in strata]
    else:
        stream = Stream(Stream.seeded(seed, "batch", round_, attempt).words(4).tobytes())
        words = stream.words(int(units.ids.max()) + 1)
        keys = [words[units.ids[numbers]] for numbers in strata]
    taken = list(sizes)
    if poisson is not None:
        taken = [int(below_rate(words_of_one, np.array([len(words_of_one)]), poisson)[0]) for words_of_one in keys]
    chosen = [
        numbers[smallest_keys(words_of_stratum, size)]
        for numbers, words_of_stratum, size in zip(strata, keys, taken, strict=True)
    ]
    rows = units.one_row_each(np.concatenate(chosen), stream.child("rows"), seeded=seed is not None)
    rates: tuple[float, ...] = () if poisson is None else (poisson,)
    if poisson is None:
        rates = tuple(size / len(numbers) for numbers, size in zip(strata, sizes, strict=True))
    return Batch(round_, attempt, records.take(rows), tuple(sizes), rates, Sample() if sample is None else sample)


class Deciding(ABC):
    """A part of a training with values that decide what is trained and promised: a plan, an objective."""

    @abstractmethod
    def decisive(self) -> dict[str, Any]:
        """These values by name: a training in a folder is resumed only with the same ones."""


_NOT_DECISIVE = frozenset({"micro_batch", "memory_limit", "composite", "learnt", "_tried"})
"""Fields of an objective that do not change what is trained, or follow from its other fields."""
_LEAST = {"classes": 0, "targets": 0, "directions": 1, "direction_seed": 0, "micro_batch": 1, "memory_limit": 1}
"""Whole numbers of an objective, and the least that each may be."""
_MOST_NAMED = 6
_DECLARED_ROWS = 8
"""Made-up rows of declared columns that a model is tried on, beside rows of numbers in [0, 1]."""


@dataclass(frozen=True, eq=False, repr=False)
class Objective(Short, Deciding):
    """(1 - sum of weights) * task loss + sum of weight * penalty, with its clipped gradient.

    Attributes:
        task: the name of a shipped task ("classification", "regression"), or an object with outputs and a loss, see
            `Learnt`.
        penalties: what is compared; one of parts is replaced by its parts. None for the task loss only, of all records
            in one stratum.
        classes: number of classes; 0 if targets are numbers.
        targets: number of targets; 0 if they are classes.
        dimension: d of the task's outputs; a `fedsw.Task` knows it, for anything else it is 1 unless it is given.
        directions, scheme, direction_seed: of the slices; public. One direction where d is 1.
        ties, bound, mode: as in an experiment's settings.
        micro_batch: most records that pass through the model at once.
        relation: adjacency: "replace-one", or "add-remove", the addition or removal of a record, a weaker promise that
            hides the number of records; of a task loss without penalties.
    """

    task: Learnt | str
    penalties: Sequence[Penalty]
    classes: int = 2
    targets: int = 0
    dimension: int | None = None
    directions: int = 50
    scheme: Scheme = "orthogonal"
    direction_seed: int = 0
    ties: Ties = "shared"
    bound: Bound = "auto"
    mode: Mode = "spectral"
    micro_batch: int = 65_536
    memory_limit: int = DEFAULT_MEMORY_LIMIT
    relation: Literal["replace-one", "add-remove"] = "replace-one"
    composite: WeightedSum = field(init=False)
    learnt: Learnt = field(init=False)
    _tried: WeakSet[nn.Module] = field(init=False, repr=False, default_factory=WeakSet)

    def _facts(self) -> Mapping[str, object]:
        task = self.task if isinstance(self.task, str) else type(self.task).__name__
        compared = ", ".join(f"{type(one).__name__} {one.weight:g}" for one in self.penalties if one.weight) or "none"
        of = {"classes": self.classes} if self.classes else {"targets": self.targets}
        return {"task": task, "penalties": compared, **of, "strata": len(self.strata), "relation": self.relation}

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            object.__setattr__(self, name, whole(getattr(self, name), name, least=least))
        if self.relation not in ("replace-one", "add-remove"):
            raise ValueError(f"relation is {self.relation!r}; choose 'replace-one' or 'add-remove'")
        if self.hides_sizes:
            self._require_terms_of_one_record()
        object.__setattr__(self, "penalties", expanded(self.penalties) or (NoPenalty(),))
        object.__setattr__(self, "composite", WeightedSum(tuple(self.penalties)))
        learnt = _shipped(self.task) if isinstance(self.task, str) else self.task
        object.__setattr__(self, "learnt", learnt)
        if self.dimension is None:
            known = learnt.dimension(self._shape(0), Model()) if isinstance(learnt, Task) else 1
            object.__setattr__(self, "dimension", known)
        for penalty, d in zip(self.penalties, self.dimensions, strict=True):
            if d < 1:
                raise ValueError(f"dimension = {d}; outputs that are compared have at least 1")
            penalty.require_width(d)

    def _require_terms_of_one_record(self) -> None:
        """Refuse, for additions and removals, objectives in which a record's term may depend on the other records.

        A custom loss may depend on the number of records in a batch, which a replacement does not change.
        """
        kind = shipped_task(self.task) if isinstance(self.task, str) else None
        if not (type(self.task) is PlainLoss or (kind is not None and kind.facts.supervised)):
            able = ", ".join(repr(name) for name, kind in TASKS.items() if kind.facts.supervised)
            raise ValueError(f"relation 'add-remove' is proven of the losses of {able}: use one, or 'replace-one'")
        if self.penalties:
            raise ValueError("relation 'add-remove' has no bound for penalties between records: leave penalties out")

    @property
    def hides_sizes(self) -> bool:
        """True if a guarantee is for additions and removals, so that sizes are secret."""
        return self.relation == "add-remove"

    @property
    def strata(self) -> tuple[str, ...]:
        """Names of the strata of sampling, in the order of all sequences by stratum; public."""
        return self.composite.cells

    @property
    def dimensions(self) -> tuple[int, ...]:
        """d of every penalty's outputs."""
        assert self.dimension is not None
        return tuple(self.dimension if p.dimension is None else p.dimension for p in self.penalties)

    @property
    def scores(self) -> ScoreCounts | None:
        """Counts out of which probabilities are corrected; None if outputs are not the usual ones of logits."""
        if self.classes < 2 or self.targets:
            return None
        try:
            if not usual(self.learnt.outputs, self._shape(1)):
                return None
        except (LookupError, TypeError, ValueError, RuntimeError):  # a task that takes something else than one tensor
            return None
        return ScoreCounts(1, 1 if self.classes == 2 else None, COARSE, self.classes)

    def count_scores(self, model: nn.Module, batch: Batch) -> Bounded:
        """Counts of a batch of all records by class and bin of the model's probability: (1, width).

        Guarantee: the replacement of one record moves them by at most the stated sensitivity, whatever the model's
        parameters are (docs/guarantees/calibration.md). Raises UnsupportedModule for a model that mixes records, and
        ValueError if `scores` is None.
        """
        counts, weights = self.scores, _weights_of(model)
        if counts is None:
            raise ValueError("scores are of a classifier with the usual probabilities of its logits as outputs")
        self._require_per_record(model, weights, batch.records)
        total = torch.zeros((1, counts.width), dtype=torch.int64)
        for chunk in in_pieces(batch.records, self.micro_batch):
            inputs = self._inputs(weights, chunk)
            with torch.no_grad(), unchanged(model, self.learnt):
                outputs = self.learnt.outputs(model(inputs.features), inputs).cpu()
            total += counts.of(outputs, chunk.target.cpu(), torch.zeros(len(chunk), dtype=torch.int64))
        sensitivity = SLACK * Sensitivity(counts.moved, "counts of scores", public=(SIZES,))
        charges = [Charge(name, 1.0, sensitivity.value) for name in self.strata]
        return Bounded(total.double(), sensitivity, round=batch.round, attempt=batch.attempt, charges=charges)

    def require_labels(self, records: Records) -> None:
        """Refuse records with other classes or targets than the objective's, when they are loaded.

        Raises:
            ValueError: naming the first record's label, or the declared classes, and what the objective has.
        """
        width = 0 if records.is_classification else records.target.shape[1]
        if (self.classes, self.targets) != (0, 0) and width != self.targets:
            theirs = f"{width} target numbers" if width else "classes"
            ours = f"{self.targets} target numbers" if self.targets else f"{self.classes} classes"
            raise ValueError(
                f"the records have {theirs} and the objective {ours}; make it with classes=0 and "
                f"targets={width or 't'} for numbers, and with classes= alone for classes"
            )
        if not (self.classes and records.is_classification):
            return
        if isinstance(records, DeclaredRecords) and len(declared := records.columns.classes) not in (0, self.classes):
            raise ValueError(
                f"the records declare {len(declared)} classes ({', '.join(map(repr, declared[:_MOST_NAMED]))}) and the "
                f"objective has {self.classes}; make it with classes={len(declared)}"
            )
        within_reach(records.target, self.classes, "the class", "the objective", "classes=")

    def planned_sensitivities(self, sizes: Sequence[int], clip: Clip) -> tuple[Sensitivity, ...]:
        """Delta of every stratum before directions are drawn, safety factor included."""
        planned = self.of(clip, torch.zeros(0))
        return planned.sensitivities(sizes, planned.planned_spreads())

    def decisive(self) -> dict[str, Any]:
        """See `Deciding`: all fields but those of memory, and those that follow from others."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _NOT_DECISIVE}
        if not self.hides_sizes:  # folders of trainings before this setting lack it
            del values["relation"]
        return values | {"task": self.task if isinstance(self.task, str) else self.learnt}

    def __getstate__(self) -> dict[str, Any]:
        """All fields but the models that were tried in this process."""
        return {name: value for name, value in vars(self).items() if name != "_tried"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state, _tried=WeakSet())

    def gradient(self, model: nn.Module, batch: Batch, clip: Clip) -> Bounded:
        """The clipped gradient (r,) of the objective on a batch, in the order of `model.parameters()`.

        Guarantee: replacing one record of a stratum moves it by at most that stratum's sensitivity, safety factor
        included, whatever the records and the model hold; no Jacobian is formed. Protects every record of the batch;
        its stratum and all sizes are public.

        The batch is from `Plan.batches`, the model in the mode it is trained in.

        Raises:
            UnsupportedModule: naming the layer and what to write instead.
            ValueError: if outputs or losses have another shape than was said, or mix records.
        """
        weights = _weights_of(model)
        self._require_per_record(model, weights, batch.records)
        clipped = self.of(clip, weights)
        total, bounds = clipped.gradient(model, batch.records, batch.sizes, batch.round, batch.attempt)
        charges = [
            Charge(stratum, rate, bound.value, RELATIONS.get(bound.relation).sampling)
            for stratum, rate, bound in zip(self.strata, batch.rates, bounds, strict=True)
        ]
        numbers = {"round": batch.round, "attempt": batch.attempt}
        return Bounded(total, worst(bounds), **numbers, charges=charges, sample=batch.sample)

    def of(self, clip: Clip, weights: Tensor) -> ClippedObjective:
        """The objective with clips, on the device and in the precision of weights (n, ...) of a model."""
        assert self.dimension is not None
        return ClippedObjective(
            self.composite,
            compared_by(self.composite, self.dimension, clip),
            clip,
            self.learnt,
            partial(self._inputs, weights),
            OutputSlices(self.directions, self.scheme, self.direction_seed, self.ties, self.memory_limit),
            self.mode,
            self.bound,
            self.micro_batch,
            weights.device,
            hides_sizes=self.hides_sizes,
        )

    def _require_per_record(self, model: nn.Module, weights: Tensor, records: Records) -> None:
        """Try made-up records, once for every model; of the private ones only the shapes are looked at."""
        if model in self._tried:
            return
        width, targets = records.features.shape[1], 0 if records.target.ndim == 1 else records.target.shape[1]
        features, target = made_up_features(0, width), made_up_targets(self.classes, targets)
        target = target.float() if targets else target
        made_up = Records(features, torch.zeros(MADE_UP, dtype=torch.int64), target, torch.arange(MADE_UP))

        clipped = self.of(Clip(1.0, 1.0, 1.0), weights)  # neither outputs nor losses are clipped

        def made(raw: Raw, inputs: Inputs) -> list[Tensor]:
            return [clipped.heads(raw, inputs), clipped.losses(raw, inputs)]

        columns = records.columns if isinstance(records, DeclaredRecords) else None
        declared = (
            None if columns is None or columns.inputs != width else made_up_inputs(columns, _DECLARED_ROWS, seed=0)
        )
        require_per_record(
            model, clipped.inputs_of(made_up), made, None if declared is None else torch.from_numpy(declared)
        )
        self._tried.add(model)

    def _inputs(self, weights: Tensor, records: Records) -> Inputs:
        features = records.features.to(weights.device, weights.dtype)
        return Inputs(features, records.target.to(weights.device), self._shape(features.shape[1]))

    def _shape(self, features: int) -> Shape:
        groups = max((getattr(penalty, "groups", 1) for penalty in self.penalties), default=1)
        return Shape(features, tuple(map(str, range(groups))), self.classes, self.targets)


def _weights_of(model: nn.Module) -> nn.Parameter:
    """The first of a model's trainable weights, which say where and how precisely it computes."""
    for weights in model.parameters():
        if weights.requires_grad:
            return weights
    raise ValueError(f"{type(model).__name__} has no trainable parameter: there is nothing to learn")


def _shipped(name: str) -> Learnt:
    task = shipped_task(name)
    if task is None:
        raise ValueError(f"task {name!r} is none of {', '.join(TASKS)}; name one of these, or give an object")
    return task() if isinstance(task, type) else task  # type: ignore[return-value]
