"""Penalties that a user composes: between groups, within classes, to a prior or a public sample, by weight.

Settings find them by `fedsw.experiment.penalty_names.PENALTIES`; `fedsw.learning.tasks.compared` makes them. Bounds are
added up in `weighted_sum`, and planned for in `fedsw.runs.single.training_plan` and
`fedsw.federation.trust.round_plan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedsw._tools.registry import Word
from fedsw.learning.objectives._weighted_penalty import Clip, OtherSide, WeightedPenalty
from fedsw.learning.objectives.distances import GROUP, BetweenGroups, Matching, TaskAlone
from fedsw.mathematics.transport.sliced import DEFAULT_MEMORY_LIMIT, Ties, public_directions, spread
from fedsw.privacy.sensitivity import SIZES, STATED, Bound, Sensitivity, loss_sensitivity

Outputs = Callable[[Any, Any], Tensor]
"""From a model's raw outputs and a batch to the compared outputs (n, d)."""


@dataclass(frozen=True)
class Penalty:
    """Base of all penalties; one of your own derives from it.

    It has `parts`, penalties with proven bounds that it is the sum of; or `pull` and `bound`, a derivative and how
    far one record moves it, which the record then names as stated by you. `require_bound` looks for a counterexample.

    Weights of an objective add up to at most 1. ``outputs`` names what is compared: the task's own (None), one of the
    model's by name, or a function of (raw outputs, batch) that gives (n, d); ``dimension`` and ``clip`` are theirs,
    the ``centre`` a public constant that is subtracted before they are bounded.
    """

    weight: float = 0.5
    outputs: str | Outputs | None = None
    dimension: int | None = None
    clip: Clip | None = None
    centre: float = 0.0
    shipped: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.shipped = cls.__module__ == __name__ and cls.bound is Penalty.bound  # `Stated` alone has another

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise ValueError(f"a penalty's weight is {self.weight}; it lies between 0 and 1")
        if self.outputs is not None and self.dimension is None:
            raise ValueError("a penalty on outputs of its own needs their dimension: Parity(..., dimension=3)")

    def parts(self) -> Sequence[Penalty]:
        """The penalties, with proven bounds, that this one is a weighted sum of; itself if it is none."""
        return (self,)

    def pull(self, outputs: Sequence[Tensor], directions: Tensor) -> Sequence[Tensor]:
        """The derivative in every group's outputs, each (n_j, d) in the ball of M; see `Stated`."""
        raise TypeError(f"{type(self).__name__} is no penalty yet: it has `parts`, or `pull` and `bound`")

    def bound(self, sizes: Sequence[int], clip: Clip) -> float:
        """Sensitivity of the clipped gradient to one replaced record, as you state it; see `Stated`."""
        raise TypeError(f"{type(self).__name__} is no penalty yet: it has `parts`, or `pull` and `bound`")

    def between(self) -> WeightedPenalty:
        """The penalty as a part of an objective, with its weight."""
        if type(self) is Penalty:
            raise TypeError("Penalty is no penalty; use Parity, EqualizedOdds, ToSample, Stated, or derive one")
        groups = getattr(self, "groups", 2)  # `compared.objective_of` refuses another number than the data's
        return StatedPart(groups, self.weight, self.pull, self.bound)

    def require_width(self, columns: int) -> None:
        """Refuse another number of output columns than the penalty's sample has; ValueError names both."""

    def sample_of(self, uniform: Callable[[float], Tensor]) -> Tensor:
        """The public sample (m, d) about the centre, which `uniform` may draw from a ball; TypeError without one."""
        raise TypeError(f"a {type(self).__name__} compares with no sample")

    def selected(self, raw: Any, batch: Any, task_outputs: Callable[[Any, Any], Tensor]) -> Tensor:
        """The compared outputs (n, d), centred and unprojected; ``task_outputs`` makes the task's own."""
        if self.outputs is None:
            selected = task_outputs(raw, batch)
        elif isinstance(self.outputs, str):
            if not isinstance(raw, dict) or self.outputs not in raw:
                known = ", ".join(raw) if isinstance(raw, dict) else f"one {type(raw).__name__}"
                raise ValueError(f"the penalty compares the output {self.outputs!r}; the model returns {known}")
            selected = raw[self.outputs]
        else:
            selected = self.outputs(raw, batch)
        return selected - self.centre


@dataclass(frozen=True)
class Parity(Penalty):
    """Sliced W_p^p between the outputs of every two groups (statistical parity), p the order, at least 2.

    A larger order weighs the tails of the distributions more. Source: RLL, Section 5.
    """

    groups: int = 2
    order: float = 2.0

    def between(self) -> BetweenGroups:
        """The penalty as a part of an objective, with its weight."""
        return BetweenGroups("statistical-parity", self.groups, 1, self.weight, self.order)


@dataclass(frozen=True)
class EqualizedOdds(Penalty):
    """Sliced W_p^p between the outputs of every two groups within every class, see `Parity`. Source: RLL, Section 5."""

    groups: int = 2
    classes: int = 2
    order: float = 2.0

    def between(self) -> BetweenGroups:
        """The penalty as a part of an objective, with its weight."""
        return BetweenGroups("equality-of-odds", self.groups, self.classes, self.weight, self.order)


@dataclass(frozen=True)
class NoPenalty(Penalty):
    """Nothing is compared: the task loss only, of all records in one stratum; `Objective(task, [])` has it."""

    weight: float = 0.0

    def __post_init__(self) -> None:
        if self.weight:
            raise ValueError(f"no penalty has the weight {self.weight:g}; it is 0, and the task loss has all of it")
        Penalty.__post_init__(self)

    def between(self) -> TaskAlone:
        """No term beside the task loss."""
        return TaskAlone()


@dataclass(frozen=True)
class ToSample(Penalty):
    """Sliced W_p^p between the outputs of all private records and a public sample, p the order, at least 2.

    The points (m, d) are fixed in advance, or drawn for every attempt from the uniform law on a ball of ``radius`` A
    about the centre (the prior of an autoencoder, RLL Section 6).
    """

    sample: Tensor | None = field(default=None, compare=False)
    radius: float = 1.0
    order: float = 2.0

    def __post_init__(self) -> None:
        Penalty.__post_init__(self)
        if self.sample is None:
            return
        if self.sample.ndim != 2 or 0 in self.sample.shape or not bool(torch.isfinite(self.sample).all()):
            raise ValueError(f"the public sample has shape {tuple(self.sample.shape)}; give finite points (m, d)")
        longest = float(torch.linalg.vector_norm(self.sample.double() - self.centre, dim=1).max())
        if longest > self.radius * (1 + 1e-9):
            raise ValueError(
                f"a point of the public sample is {longest:.6g} from the centre, beyond its radius {self.radius:g}; "
                "give the radius of a ball that holds all of them"
            )

    def between(self) -> Matching:
        """The penalty as a part of an objective, with its weight."""
        return Matching("prior", self.weight, self.radius, order=self.order)

    def require_width(self, columns: int) -> None:
        """Refuse another number of output columns than the sample has; ValueError names both."""
        if self.sample is not None and self.sample.shape[1] != columns:
            raise ValueError(f"the public sample has {self.sample.shape[1]} columns and the outputs {columns}")

    def sample_of(self, uniform: Callable[[float], Tensor]) -> Tensor:
        """The points (m, d) less the centre, float64, or fresh ones of `uniform` where there are none."""
        return uniform(self.radius) if self.sample is None else self.sample.detach().double() - self.centre


@dataclass(frozen=True)
class ToModel(Penalty):
    """Sliced W2^2 between the outputs of all private records and those of a generator, or of a public domain.

    See `distances.Matching` for the fields. It is made of the settings of tasks that have such another side, and is the
    only penalty of their objectives; the server has the sample.
    """

    other_side: OtherSide = "generator"
    radius: float = 1.0
    both: bool = False
    fixed: bool = False

    def between(self) -> Matching:
        """The penalty as a part of an objective, with its weight."""
        return Matching(self.other_side, self.weight, self.radius, both=self.both, fixed=self.fixed)


Pull = Callable[[Sequence[Tensor], Tensor], Sequence[Tensor]]
Bounding = Callable[[Sequence[int], Clip], float]


@dataclass(frozen=True)
class StatedPart(WeightedPenalty):
    """A penalty between groups by a user's own derivative, with its weight."""

    groups: int
    alpha: float
    pull: Pull
    bounding: Bounding
    drawn_by: tuple[str, ...] = ("group",)
    word: Word = "stated"
    other_side = None

    def owner(self, stratum: int) -> int:
        """Which of its groups a stratum of the finest penalty is in."""
        return stratum % self.groups

    @property
    def cells(self) -> tuple[str, ...]:
        """Names of the groups."""
        return tuple(f"A={group}" for group in range(self.groups))

    def cell_of(self, sensitive: Tensor, target: Tensor) -> Tensor:
        """The group of every record (n,), int64."""
        return BetweenGroups("statistical-parity", self.groups, 1, 0.0).cell_of(sensitive, target)

    def cotangents(
        self,
        outputs: Sequence[Tensor],
        directions: Tensor,
        *,
        ties: Ties = "shared",
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> list[Tensor]:
        """The user's cotangents times the weight, group by group (n_j, d), float64."""
        cotangents = [self.alpha * rows.to(torch.float64) for rows in self.pull(outputs, directions)]
        if [rows.shape for rows in cotangents] != [rows.shape for rows in outputs]:
            raise ValueError(
                f"the penalty's pull gave shapes {[tuple(rows.shape) for rows in cotangents]} for outputs "
                f"{[tuple(rows.shape) for rows in outputs]}; it gives a derivative of each group's outputs"
            )
        return cotangents

    def pulled(
        self,
        cells: Sequence[Tensor],
        directions: Tensor,
        sample: Callable[[int], Tensor],
        *,
        ties: Ties = "shared",
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> tuple[list[Tensor], None]:
        """The `cotangents` (n, d) of every group; no sample is asked for."""
        return self.cotangents(cells, directions, ties=ties, memory_limit=memory_limit), None

    def sensitivities(
        self,
        sizes: Sequence[int],
        clip: Clip,
        *,
        d: int,
        spread: float | None = None,
        bound: Bound = "auto",
        alone: bool = False,
    ) -> tuple[Sensitivity, ...]:
        """The user's stated bound times the weight, the same for every group; with the task loss, or `alone`."""
        stated = float(self.bounding(sizes, clip))
        if not (math.isfinite(stated) and stated > 0):
            raise ValueError(f"the penalty's stated bound is {stated} for sizes {list(sizes)}; it is finite, above 0")
        penalty = self.alpha * Sensitivity(stated, STATED, public=(GROUP, SIZES))
        whole = penalty if alone else (1 - self.alpha) * loss_sensitivity(clip.loss, sum(sizes)) + penalty
        return (whole,) * self.groups


def part_of(penalty: Penalty) -> WeightedPenalty:
    """A penalty as a part of an objective, with its weight.

    Guarantee: a bound that is called proven is of the code that the proof is of. A derived class that changes what a
    proof rests on is refused, and a check of its base class that it left out is made here.

    Raises:
        TypeError: naming what the class changes, and what to write instead.
        ValueError: for values that the base class refuses.
    """
    _require_penalty(penalty)
    kinds = (kind for kind in type(penalty).__mro__ if issubclass(kind, Penalty))
    base = next(kind for kind in kinds if kind.__module__ == __name__)
    # Beside a shipped derivative a custom one, and the bound that is stated for it, would never be asked.
    rests_on = ("between", "sample_of", *(("pull", "bound") if base.shipped else ()))
    changed = [name for name in rests_on if getattr(type(penalty), name) is not getattr(base, name)]
    if changed:
        raise TypeError(
            f"{type(penalty).__name__} changes {', '.join(changed)} of {base.__name__}, and no proof covers that. "
            "Derive it from fedsw.Penalty, with `parts`, or with `pull` and a `bound` that you state"
        )
    base.__post_init__(penalty)
    return penalty.between()


def fields_of(thing: object) -> frozenset[str]:
    """Names of the fields of a penalty's class, or of an object of one; TypeError for anything else."""
    kind = thing if isinstance(thing, type) else type(thing)
    if not issubclass(kind, Penalty):
        raise TypeError(f"a {type(thing).__name__} is no class derived from fedsw.Penalty, nor an object of one")
    return frozenset(one.name for one in fields(kind))


def made_of(thing: Any, arguments: Mapping[str, Any]) -> Penalty:
    """The penalty that a class makes of the arguments, or an object changed to them; see `fields_of`."""
    is_object = is_dataclass(thing) and not isinstance(thing, type)
    made: Penalty = replace(thing, **arguments) if is_object else thing(**arguments)
    return made


def _require_penalty(thing: object) -> None:
    if not isinstance(thing, Penalty):
        raise TypeError(f"{type(thing).__name__} is no penalty; use Parity, EqualizedOdds, ToSample, Stated")


def expanded(penalties: Sequence[Penalty]) -> tuple[Penalty, ...]:
    """The penalties, those of parts replaced by their parts; the weights are 1 together at most."""
    flat: list[Penalty] = []
    for penalty in penalties:
        _require_penalty(penalty)
        parts = penalty.parts()
        if len(parts) == 1 and parts[0] is penalty:
            flat.append(penalty)
            continue
        if (total := sum(part.weight for part in parts)) > 1 + 1e-12:
            raise ValueError(f"the parts of {type(penalty).__name__} have the weights {total:g} together; at most 1")
        flat += expanded([replace(part, weight=penalty.weight * part.weight) for part in parts])
    return tuple(flat)


def _nothing(*arguments: object) -> float:
    raise TypeError("a Stated penalty needs pull= and bound=: the derivative and how far one record moves it")


@dataclass(frozen=True)
class Stated(Penalty):
    """A penalty between groups by a user's own derivative, with a bound of their own.

    Guarantee: that of the other penalties *if the statement is true*; nothing here checks it, and the guarantee in
    words names it.

    ``pull`` takes the outputs of every group, each (n_j, d) in the ball of M, and the directions (d, k) to the
    derivative in each of them, which must not depend on records beyond these outputs; ``bound`` the groups' batch sizes
    and the clip to the most, in l2 norm, that replacing one record moves the sum of clipped Jacobians applied to it.
    """

    pull: Pull = _nothing  # type: ignore[assignment]
    bound: Bounding = _nothing  # type: ignore[assignment]
    groups: int = 2


def require_bound(
    penalty: Penalty, sizes: Sequence[int], clip: Clip, *, dimension: int = 1, tries: int = 2000, seed: int = 0
) -> float:
    """Look for outputs of neighbouring batches that break a penalty's bound; they may be invented.

    Given outputs before and after a replacement, the worst Jacobians are known: all of spectral norm L, and aligned, so
    that the gradient moves by L times the norms of the record's own derivatives, before and after, and of the changes
    of all others. Outputs are searched for: drawn at random in the ball and at its ends, then improved point by point.

    Guarantee: none; a search that finds nothing proves nothing. What it finds is a counterexample.

    The bound is for these ``sizes`` of groups, few enough to be searched, and ``tries`` pairs of neighbouring batches.
    The largest movement is returned, as a part of the bound; ValueError if it is above.
    """
    clip, part = penalty.clip or clip, part_of(penalty)
    if part.other_side is not None:
        raise TypeError(f"{type(penalty).__name__} has a bound that is proven, and other outputs beside the records'")
    theta = public_directions(dimension, 50, "orthogonal", seed, "challenge")
    bounds = part.sensitivities(sizes, clip, d=dimension, spread=spread(theta), alone=True)
    draw, most = torch.Generator().manual_seed(seed), 0.0
    for start in range(max(1, tries // _CLIMB)):
        group = start % len(sizes)
        pair, reached = _neighbours(sizes, group, clip.output, dimension, draw, ends=start % 4), 0.0
        for _ in range(_CLIMB):
            other = _changed(pair, group, clip.output, draw) if reached else pair
            moved = clip.jacobian * _moved(part, other, group, theta) / bounds[group].value
            if not moved <= 1 + 1e-9:
                raise ValueError(
                    f"{type(penalty).__name__}: one record of group {group} moves the gradient by "
                    f"{moved * bounds[group].value:.6g}, and its bound is {bounds[group].value:.6g} for sizes "
                    f"{list(sizes)}: {moved:.3f} times as far"
                )
            if moved >= reached:
                pair, reached = other, moved
        most = max(most, reached)
    return min(1.0, most)


_CLIMB = 50
"""Neighbouring batches that are looked at from one start."""

_Pair = tuple[list[Tensor], Tensor]
"""The outputs of every group (n_j, d), and what takes the place of the last one of the group with the replacement."""


def _neighbours(sizes: Sequence[int], group: int, radius: float, d: int, draw: torch.Generator, *, ends: int) -> _Pair:
    """Outputs in the ball: at random, at its surface, each group at an end of its own, or all at one."""

    def points(count: int) -> Tensor:
        drawn: Tensor = torch.randn(count, d, generator=draw, dtype=torch.float64)
        drawn *= radius / torch.linalg.vector_norm(drawn, dim=1, keepdim=True)
        if not ends:
            drawn *= torch.rand(count, 1, generator=draw, dtype=torch.float64) ** (1 / d)
        return drawn

    if ends < 2:
        return [points(size) for size in sizes], points(1)[0]
    one = points(1)
    outputs = [one.repeat(size, 1) * (-1 if ends == 2 and index % 2 else 1) for index, size in enumerate(sizes)]
    return outputs, -outputs[group][-1]


def _changed(pair: _Pair, group: int, radius: float, draw: torch.Generator) -> _Pair:
    """One point elsewhere: anywhere on the surface, or close to where it was."""
    outputs, other = [points.clone() for points in pair[0]], pair[1].clone()
    index = int(torch.randint(sum(map(len, outputs)) + 1, (1,), generator=draw))
    rows = [row for points in outputs for row in points] + [other]
    step = torch.randn(len(other), generator=draw, dtype=torch.float64)
    step *= 10.0 ** -float(3 * torch.rand(1, generator=draw))
    moved = radius * step if index % 2 else rows[index] + radius * step
    rows[index].copy_(moved * min(1.0, radius / max(float(torch.linalg.vector_norm(moved)), 1e-300)))
    return outputs, other


def _no_sample(count: int) -> Tensor:
    raise TypeError(f"a sample of {count} points is asked for, and groups alone are compared here")


def _moved(part: WeightedPenalty, pair: _Pair, group: int, theta: Tensor) -> float:
    """How far the gradient moves under Jacobians of norm 1 that point as badly as they can."""
    before, last = pair
    after = [points.clone() for points in before]
    after[group][-1] = last
    old, new = (part.pulled(cells, theta, _no_sample)[0] for cells in (before, after))
    replaced = torch.linalg.vector_norm(old[group][-1]) + torch.linalg.vector_norm(new[group][-1])
    old[group], new[group] = old[group][:-1], new[group][:-1]
    others = sum(torch.linalg.vector_norm(a - b, dim=1).sum() for a, b in zip(old, new, strict=True))
    return float(replaced + others)
