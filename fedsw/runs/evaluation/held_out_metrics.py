"""Metrics from noised counts and sums over records that were kept out of training: post-processing of one release.

Metrics follow from the sums unchanged: impossible values, due to noise, are not clipped; intervals hold possible ones.
In order: the release on disk, metrics of classes (`_Table`), of numbers (`_Errors`), and intervals of noised numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw.data.sources import load_class_names
from fedsw.experiment.task_kinds import shipped_task
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import BINS, CHANCES, SCORED, Counts, Cut, RegressionSums, Tally
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation import intervals
from fedsw.runs.evaluation.evaluator import HeldOutMetrics
from fedsw.runs.evaluation.intervals import LEVEL, SURE, UNKNOWN, WHOLE, Gain, Interval, Rate
from fedsw.runs.evaluation.quality import (
    OF_SHARES,
    Answers,
    Bias,
    GroupTable,
    Measured,
    Quality,
    class_named,
    columns_of_groups,
    equal_impact,
    joined,
    metrics_of_tables,
    with_root,
    worst_of,
)
from fedsw.runs.run_files import RunFile, read_as, write_json

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OnceReleased:
    """The one release of a kind; everything computed from it is free.

    `values` are noised sums by group, (groups, t), each with noise of standard deviation `sigma`, of `records` by
    group, (groups,), at a number of `clients`; `attempt` was charged, `spent` is the run's epsilon after it.
    """

    values: NDArray[np.float64]
    sigma: float
    records: NDArray[np.int64]
    clients: int
    attempt: int
    spent: float

    def said(self) -> dict[str, Any]:
        """The summary's part about the release: without the sums themselves."""
        return {
            "sigma": self.sigma,
            "records": int(self.records.sum()),
            "clients": self.clients,
            "attempt": self.attempt,
        }

    def content(self) -> dict[str, Any]:
        """All of the release for its file, which `read_once` takes."""
        return {
            **self.said(),
            "values": self.values.tolist(),
            "records": self.records.tolist(),
            "epsilon": self.spent,
        }


def read_once(content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a release that a file holds; LookupError, TypeError, ValueError for one that is damaged."""
    return {
        "values": np.array(content["values"], dtype=np.float64),
        "sigma": float(content["sigma"]),
        "records": np.array(content["records"], dtype=np.int64),
        "clients": int(content["clients"]),
        "attempt": int(content["attempt"]),
        "spent": float(content["epsilon"]),
    }


@dataclass(frozen=True, eq=False)
class Tallied(OnceReleased):
    """The one release about kept records: `values` are noised sums for the model of a `round`.

    A regression's numbers were clipped at ``cut`` before they were summed.
    """

    round: int
    cut: Cut | None = None

    def said(self) -> dict[str, Any]:
        """The summary's part about the release: without the sums themselves."""
        return {
            **super().said(),
            "round": self.round,
            **({} if self.cut is None else {"cut": [list(part) for part in astuple(self.cut)]}),
        }


def keep(directory: RunDirectory, tallied: Tallied) -> None:
    """Put the release on disk: it cannot be paid for again."""
    write_json(directory.path / RunFile.HELD_OUT, tallied.content())


def kept(directory: RunDirectory) -> Tallied | None:
    """The release of a run; None before there is one."""

    def made(content: Mapping[str, Any]) -> Tallied:
        cut = content.get("cut")
        clips = None if cut is None else Cut.of_flat(torch.tensor(cut).reshape(-1))
        return Tallied(**read_once(content), round=int(content["round"]), cut=clips)

    return read_as(directory.path / RunFile.HELD_OUT, made)


def cut_in_words(task: Problem, cut: Cut | None) -> str:
    """The clipping of targets and answers in words, in the units of the predicted number; empty without a cut."""
    if cut is None or cut == Cut.whole(len(cut.centre)):
        return ""
    low, width = task.units or (0.0, 1.0)
    clips = []
    for number in range(min(len(cut.centre), _MOST_NAMED)):
        ends = [[f"{low + width * end:.3g}" for end in pair] for pair in cut.ends(number)]
        clips.append("targets beyond {} to {}, and answers beyond {} to {}".format(*ends[0], *ends[1]))
    more = ", and so on" if len(cut.centre) > _MOST_NAMED else ""
    return f"{'; '.join(clips)}{more} count as the nearer end, by the released mean and variance of targets"


_MOST_NAMED = 2
"""Targets with their clips in words."""


def held_out_of(task: Problem, tally: Tally, tallied: Tallied) -> HeldOutMetrics:
    """Metrics, a constant's beside them, intervals with the noise in them, and a table by group."""
    total = int(tallied.records.sum())
    size = {"records": total, "of": total}
    if total == 0:
        return HeldOutMetrics(measured_on=size)
    if isinstance(tally, Counts):
        return _of_classes(tally, tallied, task, size)
    if isinstance(tally, RegressionSums):
        return _of_numbers(tally, tallied, task, size)
    return HeldOutMetrics(measured_on=size)


def as_many(values: Array, records: NDArray[np.int64] | Array) -> Array:
    """Noised counts (..., groups, t), moved alike to add up to each group's records (groups,); 0 for an empty one."""
    moved = values + ((records - values.sum(-1)) / values.shape[-1])[..., None]
    wanted: Array = np.where((records != 0)[:, None], moved, 0.0)
    return wanted


class _Table(Answers):
    """Noised counts of every group, class and answer, (groups, classes, classes), and shares of them.

    `chances` (groups, classes, bins) are counts by the probability of a record's true class; `rest`, of the same shape,
    are counts by a class's probability for records of the other classes. `_sigmas` (groups,) are standard deviations of
    the noise in a count.
    """

    def __init__(
        self,
        tally: Counts,
        tallied: Tallied,
        positive: int | None,
        *,
        hidden: bool = False,
        merged: Array | None = None,
    ) -> None:
        """If the number of records is secret (`hidden`) it is the sum of the counts: shares have noise in both parts.

        Groups may be ``merged``, by a matrix (merged, groups) of 0 and 1.
        """
        merged = np.eye(tally.groups) if merged is None else merged
        self.groups, self.classes, self.positive, self.hidden = len(merged), tally.classes, positive, hidden
        answered, scored, *rest = np.split(tallied.values, np.cumsum(tally.lengths)[:-1], axis=1)
        seen = answered.sum(axis=1) if hidden else tallied.records
        self._sigmas = tallied.sigma * np.sqrt(merged @ (np.ones(tally.groups) if hidden else tallied.records > 0))
        self.records = (merged @ seen).round().astype(np.int64)
        if hidden:  # a group that noise hides counts as empty
            self.records = np.where(merged @ seen > _HIDES * tally.classes * self._sigmas, self.records, 0)
        shape = (self.groups, tally.classes, -1)
        self.counts = (merged @ as_many(answered, seen)).reshape(shape)
        self.chances = (merged @ as_many(scored / SCORED, seen)).reshape(shape)
        self._weights = (SCORED, tally.of_rest if rest else SCORED)
        if rest:
            self.rest = (merged @ as_many(rest[0] / tally.of_rest, seen * (tally.classes - 1))).reshape(shape)
        else:  # of two classes one's probability is 1 less the other's
            self.rest = self.chances[:, ::-1, ::-1]

    @property
    def total(self) -> float:
        """Number of records: the public one, or by the counts."""
        return float(self.counts.sum()) if self.hidden else float(self.records.sum())

    def _sigma(self, group: int | None = None) -> float:
        """Standard deviation of the noise in one count of a group, or of all groups together."""
        return float(np.linalg.norm(self._sigmas if group is None else self._sigmas[group]))

    def noise(self, weights: Array, group: int | None = None) -> float:
        """Standard deviation of the noise in a weighted sum (classes, classes) of a group's counts, or all groups'.

        If the number of records is public, a group's counts were moved to it, which takes the mean weight's part away.
        """
        moved = 0.0 if self.hidden else float(weights.sum()) ** 2 / weights.size
        squares = float(np.square(weights).sum()) - moved
        return self._sigma(group) * math.sqrt(max(0.0, squares))

    def share(self, cells: NDArray[np.bool_], group: int | None = None) -> Rate:
        """The share of all records, or of a group's, that are in these cells (classes, classes)."""
        rows = slice(None) if group is None else slice(group, group + 1)
        if self.hidden and self._sigma():
            hits, all_ = float(self.counts[rows, cells].sum()), float(self.counts[rows].sum())
            return noised_rate(
                hits, all_ - hits, lambda hit, miss: self.noise(np.where(cells, hit, miss), group), math.inf
            )
        noise = self.noise(cells.astype(np.float64), group)
        return intervals.counted(float(self.counts[rows, cells].sum()), int(self.records[rows].sum()), noise)

    def right(self, group: int) -> Rate:
        """See `Answers`."""
        return self.share(np.eye(self.classes, dtype=bool), group)

    def answered(self, group: int, answer: int, label: int | None = None) -> Rate:
        """See `Answers`."""
        if label is None:
            return self.share(_row(answer, self.classes).T, group)
        if not self.records[group]:
            return UNKNOWN
        row, width = self.counts[group, label], self.classes

        def spread(hit: float, miss: float) -> float:
            whole = 0.0 if self.hidden else hit + (width - 1) * miss
            squares = hit**2 + (width - 1) * miss**2 - (whole / width) ** 2
            return self._sigma(group) * math.sqrt(max(0.0, squares))

        hits, total = float(row[answer]), float(row.sum())
        if not self._sigma(group):
            return intervals.counted(hits, total)
        return noised_rate(hits, total - hits, spread, math.inf if self.hidden else int(self.records[group]))

    def table(self, group: int) -> Array:
        """See `Answers`."""
        counts: Array = self.counts[group]
        return counts

    def log_loss(self) -> tuple[float, Interval]:
        """The mean log loss of all records, if they are evenly spread in their bins."""
        ends = np.array(CHANCES)
        integrals = ends * (1 - np.log(np.maximum(ends, np.finfo(float).tiny)))  # of -log p
        return self._mean(self.chances.sum(axis=(0, 1)), np.diff(integrals) / np.diff(ends), self.classes / SCORED**2)

    def log_loss_of_shares(self) -> tuple[float, Interval]:
        """The log loss of the class shares of these records."""
        by_class = self.counts.sum(axis=(0, 2))
        shares = np.clip(by_class / by_class.sum(), 1 / max(2.0, by_class.sum()), 1.0)
        return self._mean(by_class, -np.log(shares), self.classes)

    def _mean(self, counts: Array, losses: Array, factor: float) -> tuple[float, Interval]:
        """The mean of losses (k,) by counts (k,), which have `factor` times the variance of the noise in a count."""
        n, centred = self.total, losses - losses.mean()
        value = float(counts @ losses) / n
        noise = self._sigma() * math.sqrt(factor)
        # Counts add up to n, so that their noise weighs centred losses; a deviation of it is added to the variance.
        square = float(counts @ np.square(losses - value)) + noise * float(np.linalg.norm(np.square(centred)))
        spread = math.hypot(noise * float(np.linalg.norm(centred)) / n, math.sqrt(max(0.0, square)) / n)
        if self.hidden:  # n is the noised sum, to which these counts were moved
            of_number = self.noise(np.ones((self.classes, self.classes)))
            spread = math.hypot(spread, abs(float(losses.mean()) - value) * of_number / n)
        reach = intervals.normal(LEVEL) * spread
        return value, Interval(max(0.0, value - reach), value + reach)

    def of_group(self, group: int) -> dict[str, tuple[float, Interval]]:
        """See `Answers`; also the area under the ROC curve and the calibration error."""
        if not self.records[group]:
            return super().of_group(group)
        return super().of_group(group) | self.of_probabilities(group)

    def of_probabilities(self, group: int | None = None) -> dict[str, tuple[float, Interval]]:
        """AUC and calibration error of a group's records, or of all; of several classes the means against the rest."""
        counted = slice(None)
        if self.classes == 2:
            counted = slice(1, 2) if self.positive is None else slice(self.positive, self.positive + 1)
        ones, rest = (
            (part.sum(axis=0) if group is None else part[group])[counted] for part in (self.chances, self.rest)
        )
        sigma, of_rest = (self._sigma(group) / weight for weight in self._weights)
        return {
            "auc": _area(ones, rest, sigma, of_rest),
            "calibration_error": _miscalibration(ones, rest, sigma, of_rest),
        }

    def by_group(self, names: Sequence[str]) -> GroupTable:
        """The table by group, under these names."""
        return _by_group(self.records, names, [self.of_group(group) for group in range(self.groups)])

    def margin(self, constant: int, level: float) -> Gain:
        """Accuracy of the model less that of a constant of that class."""
        better = np.eye(self.classes)
        better[constant] -= 1.0
        differ = np.abs(better)
        more, differing = (float((self.counts * weights).sum()) for weights in (better, differ))
        of_ratio = better - more / self.total if self.hidden else better  # to first order, with the noise in the total
        return noised_gain(more, differing + self.noise(differ), self.total, self.noise(of_ratio), level)


def _of_classes(tally: Counts, tallied: Tallied, task: Problem, size: Mapping[str, int]) -> HeldOutMetrics:
    names, groups = load_class_names(task.experiment.record_source), task.groups
    table = _Table(tally, tallied, task.positive, hidden=task.experiment.privacy.hides_sizes)
    if table.total <= _HIDES * table.noise(np.ones((tally.classes, tally.classes))):
        return HeldOutMetrics(missing="noise hides how many records were kept, and with it how good the model is")
    shares = [table.share(_row(c, tally.classes)) for c in range(tally.classes)]
    often = int(np.argmax([share.value for share in shares]))
    constant, right = {"accuracy": shares[often].value}, table.share(np.eye(tally.classes, dtype=bool))
    around = {"accuracy": right.at(LEVEL)}
    if tally.groups > 1:
        equal = {"demographic_parity_difference": 0.0, "equalized_odds_difference": 0.0}
        constant |= {**equal_impact(tally.classes), **equal}
        around |= table.between_groups()
    metrics = {key: float(value[0]) for key, value in metrics_of_tables(table.counts[None], table.positive).items()}
    constant_around = {"accuracy": shares[often].at(LEVEL)}
    if shipped_task(task.experiment.objective.task) is not None:  # its loss is the log loss of its outputs
        metrics["loss"], around["loss"] = table.log_loss()
        constant["loss"], constant_around["loss"] = table.log_loss_of_shares()
    for name, (value, interval) in table.of_probabilities().items():
        if math.isfinite(value):
            metrics[name], around[name], constant[name] = value, interval, OF_SHARES[name]
    quality = Quality(
        constant=constant,
        answer=f"always {class_named(often, names)}",
        intervals={key: value for key, value in around.items() if key in metrics},
        constant_intervals=constant_around,
        gain=worst_of([functools.partial(table.margin, c) for c in range(tally.classes)]),
        others=table.share(~_row(int(table.counts.sum((0, 1)).argmax()), tally.classes).T).at(LEVEL),
        noised=tallied.sigma > 0,
        impact_of=table.impact_of(names),
    )
    columns = []
    for name, values, places in columns_of_groups(task):
        merged = _Table(tally, tallied, task.positive, hidden=table.hidden, merged=_merging(places, len(values)))
        columns.append((name, merged.by_group(values), merged.gaps()))
    return HeldOutMetrics(metrics, table.by_group(groups), size, quality, by_column=joined(columns))


def _merging(places: NDArray[np.int64], values: int) -> Array:
    """A matrix (values, groups) of 0 and 1 that merges groups by the numbers of their values (groups,)."""
    matrix: Array = (places == np.arange(values)[:, None]).astype(np.float64)
    return matrix


def _area(ones: Array, others: Array, sigma: float, of_others: float) -> tuple[float, Interval]:
    """The mean area under ROC curves by noised counts (k, bins) of k classes and the rest; nan if noise hides them.

    Records of one bin are ties. The error of a mean is at most the mean of errors; noise is of separate counts.
    """
    areas, draws, noises = [], [], []
    for of_class, rest in zip(ones, others, strict=True):
        n1, n0, hides = float(of_class.sum()), float(rest.sum()), 3 * math.sqrt(ones.shape[1])
        if n1 <= max(1.0, hides * sigma) or n0 <= max(1.0, hides * of_others):
            return math.nan, WHOLE
        below, above = (np.cumsum(rest) - rest / 2) / n0, (n1 - np.cumsum(of_class) + of_class / 2) / n1
        area = float(of_class @ below) / n1
        by_part = ((sigma, below, n1), (of_others, above, n0))
        noises.append(math.hypot(*(noise * float(np.linalg.norm(side - area)) / n for noise, side, n in by_part)))
        possible = min(max(area, 0.0), 1.0)
        low, high = intervals.curve_area(possible, round(n1), round(n0))
        areas.append(area)
        draws.append((possible, possible - low, high - possible))
    possible, below_it, above_it = np.mean(draws, axis=0).tolist()
    reach = intervals.normal(LEVEL) * math.hypot(*noises) / len(ones)
    return float(np.mean(areas)), Interval(
        max(0.0, possible - math.hypot(below_it, reach)), min(1.0, possible + math.hypot(above_it, reach))
    )


def _miscalibration(ones: Array, others: Array, sigma: float, of_others: float) -> tuple[float, Interval]:
    """The mean calibration error by noised counts (k, bins) of k classes and the rest, for scores at a bin's middle.

    The noise's part is subtracted from each gap's square.
    """
    ends = np.array(CHANCES)
    middle, total = (ends[1:] + ends[:-1]) / 2, np.maximum(ones + others, 0.0)
    n = np.maximum(1.0, (ones + others).sum(axis=1, keepdims=True)) * len(ones)
    gaps = ((1 - middle) * ones - middle * others) / n
    drawn, within = total * middle * (1 - middle), total * np.diff(ends) / _WITHIN
    noise = np.square(sigma * (1 - middle)) + np.square(of_others * middle)
    around = intervals.sum_of_sizes(gaps.ravel(), (np.sqrt(noise + drawn + within**2) / n).ravel())
    value = float(np.sqrt(np.maximum(np.square(gaps) - noise / n**2, 0.0)).sum())
    return min(max(value, around.low), around.high), around


_HIDES = 3.0
"""Standard deviations of the noise in a secret number of records, up to which the noise hides it."""

_WITHIN = 6.0
"""A bin's width is this many standard deviations of its mean score about the middle."""


def _by_group(records: NDArray[np.int64] | Array, groups: Sequence[str], measures: Sequence[Measured]) -> GroupTable:
    """Table of each group's metrics, by its name, beside its records; empty for one group."""
    if len(measures) < 2:
        return GroupTable({}, {})
    counts = dict(zip(groups, records.astype(float).tolist(), strict=True))
    return GroupTable.of(counts, dict(zip(groups, measures, strict=True)))


def _row(label: int, classes: int) -> NDArray[np.bool_]:
    """The cells (classes, classes) of records of a true class."""
    cells = np.zeros((classes, classes), dtype=bool)
    cells[label] = True
    return cells


@dataclass(frozen=True)
class _Errors:
    """Squared error of the model and of the mean target, and their intervals.

    `spreads` are standard deviations of their difference: that of the noise, and an upper limit of the records' draw.
    """

    error: float
    constant: float
    around: tuple[Interval, Interval]
    spreads: tuple[float, float]

    @classmethod
    def of(cls, cut: Cut, values: Array, records: int, sigma: Array) -> _Errors:
        """Errors from the first sums (3 + t) in [0, 1] over `records`, with noise of deviations sigma (3 + t,).

        Sums are about the cut's centre: of the differences d of a record's squared errors (centre less model), of d^2,
        of squared targets, and of targets. The constant is the mean of the clipped targets: its error is that of the
        centre less the squared distance to the mean. With a target r and an answer v about the centre, d = v (2r - v),
        so d^2 <= b^2 (4 r^2 - 2 d) if |v| <= b (for several targets by Cauchy's inequality): a bound on the variance
        over draws of records, for every distribution. The sum of d^2 gives another; the smaller one is taken.
        """
        many, far = len(cut.centre), np.array(cut.targets)
        scale = far * 2 * math.sqrt(many)
        means, noise_of_means = scale * values[3 : 3 + many] / records - far, scale * sigma[3 : 3 + many] / records
        difference, square = cut.least + cut.width * values[0] / records, cut.square * values[2] / records
        apart, spread = cut.width * float(sigma[0]) / records, cut.square * float(sigma[2]) / records
        shift = float(np.square(means).sum() - np.square(noise_of_means).sum())  # noise makes squares larger on average
        moved = float(np.sum(4 * np.square(means * noise_of_means) + 2 * noise_of_means**4))
        constant, error = float(square) - shift, float(square - difference)
        top = float(np.square(far + np.minimum(np.abs(means), far)).sum())
        most = float(np.square(far + np.array(cut.answers)).sum())
        around = (
            bounded_mean(error, records, most, math.hypot(apart, spread)),
            bounded_mean(constant, records, top, math.sqrt(spread**2 + moved)),
        )
        squares = min(max(0.0, float(square)) + spread, cut.square)
        largest = max(0.0, 4 * squares - 2 * (float(difference) - apart)) * sum(b * b for b in cut.answers)
        summed = cut.least**2 * (max(0.0, float(values[1])) + float(sigma[1])) / records
        drawn = math.sqrt(min(largest, summed))
        drawn += 2 * math.sqrt(min(float(np.square(means).sum()), cut.square) * squares)
        return cls(error, constant, around, (math.sqrt(apart**2 + moved), drawn / math.sqrt(records)))

    def times(self, square: float) -> _Errors:
        """Rescale errors, intervals and spreads by `square`."""
        one, other = (Interval(square * low, square * high) for low, high in self.around)
        spreads = (square * self.spreads[0], square * self.spreads[1])
        return _Errors(square * self.error, square * self.constant, (one, other), spreads)

    @property
    def gain(self) -> Gain:
        """Reduction of the error by the model."""
        value, reach = self.constant - self.error, intervals.normal(SURE) * math.hypot(*self.spreads)
        return Gain(value, value - reach, value + reach)

    @property
    def explained(self) -> tuple[float, Interval]:
        """R squared, and its interval."""
        error, constant = (
            (low, min(max(value, low), high), high)
            for value, (low, high) in zip((self.error, self.constant), self.around, strict=True)
        )
        low, high = intervals.quotient(error, constant)
        value = 1 - self.error / self.constant if self.constant > 0 else math.nan
        return value, Interval(1 - high, 1 - low)


def _of_numbers(tally: RegressionSums, tallied: Tallied, task: Problem, size: Mapping[str, int]) -> HeldOutMetrics:
    groups, (low, width) = task.groups, task.units or (0.0, 1.0)
    t, count, present = tally.targets, size["records"], int((tallied.records > 0).sum())
    cut, weights = tally.cut_at if tallied.cut is None else tallied.cut, tally.weights.numpy()
    values, sigma = np.where((tallied.records > 0)[:, None], tallied.values, 0.0) / weights, tallied.sigma / weights
    whole = _Errors.of(cut, values.sum(0), count, sigma * math.sqrt(present)).times(width**2)
    far = np.array(cut.targets)
    means = np.array(cut.centre) + far * (2 * math.sqrt(t) * values[:, 3 : 3 + t].sum(0) / count - 1)
    metrics = with_root({"mean_squared_error": whole.error}, task.units)
    around = with_root({"mean_squared_error": whole.around[0]}, task.units)
    constant = with_root({"mean_squared_error": whole.constant}, task.units)
    if t == 1 and tally.groups > 1:
        bins = as_many(values[:, -BINS:], tallied.records)
        metrics["ks"], around["ks"] = _ks(bins, tallied.records, float(sigma[-1]))
        constant["ks"] = 0.0
    bias = None
    if t == 1:  # the mean answer, by counts in ten bins, beside the mean target: within half a bin, noise, and the draw
        middles = (np.arange(BINS) + 0.5) / BINS
        answers, truth = float(values.sum(0)[-BINS:] @ middles) / count, float(means[0])
        of_answers, of_truth = float(sigma[-1]) * float(np.linalg.norm(middles)), 2 * float(far[0]) * float(sigma[3])
        noise = math.sqrt(present) / count * math.hypot(of_answers, of_truth)
        # Two standard deviations of a mean of numbers in [0, 1] are at most 1 / sqrt(count).
        gap, margin = answers - truth, 0.5 / BINS + 2 * noise + 1 / math.sqrt(count)
        around_gap = Interval(width * (gap - margin), width * (gap + margin))
        bias = Bias(low + width * answers, low + width * truth, around_gap)
    quality = Quality(
        bias=bias,
        constant=constant,
        answer=f"always the mean, {', '.join(f'{low + width * value:.3g}' for value in means[:4])}",
        intervals=around,
        constant_intervals=with_root({"mean_squared_error": whole.around[1]}, task.units),
        gain=whole.gain,
        noised=tallied.sigma > 0,
    )

    def table(names: Sequence[str], merged: Array) -> GroupTable:
        """The table by group, of groups merged by a matrix (merged, groups) of 0 and 1."""
        measures: list[Measured] = []
        records: Array = merged @ tallied.records
        noises = np.sqrt(merged @ (tallied.records > 0))
        for sums, count, noise in zip(merged @ values, records, noises, strict=True):
            if not count:
                measures.append({})
                continue
            errors = _Errors.of(cut, sums, int(count), sigma * noise).times(width**2)
            measures.append({"mean_squared_error": (errors.error, errors.around[0]), "r2": errors.explained})
        return _by_group(records, names, measures)

    columns = joined(
        (name, table(of_column, _merging(places, len(of_column))), {})
        for name, of_column, places in columns_of_groups(task)
    )
    return HeldOutMetrics(metrics, table(groups, np.eye(tally.groups)), size, quality, by_column=columns)


def _ks(bins: Array, records: NDArray[np.int64], sigma: float) -> tuple[float, Interval]:
    """The KS distance at the ends of ten bins, of counts (groups, bins), and its interval."""
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.cumsum(bins, axis=-1)[:, :-1] / records[:, None]
    value = float((below.max(0) - below.min(0)).max())

    def rate(group: int, cells: int) -> Rate:
        noise = sigma * math.sqrt(cells * (1 - cells / BINS))
        return intervals.counted(float(bins[group, :cells].sum()), int(records[group]), noise)

    ends = [[rate(group, end) for group in range(len(bins))] for end in range(1, BINS)]
    return value, intervals.largest_gap(ends)


def noised_gain(more: float, differing: float, total: float, noise: float, level: float = SURE) -> Gain:
    """Difference of two models' accuracies, from counts with noise.

    `more` is the number of records that only the first has right, less those of the second, with the standard deviation
    of its `noise`; `differing` is the sum of both numbers, plus a deviation of its noise. The ends solve a quadratic
    equation (a score interval).
    """
    z, seen = intervals.normal(level), more / total
    spread = (min(max(differing, 0.0), total) + intervals.PSEUDO) / total
    possible = min(max(seen, -1.0), 1.0)  # noise may exceed possible values
    a, b = 1 + z * z / total, possible
    c = possible**2 - z * z * (spread + noise**2 / total) / total
    reach = math.sqrt(max(0.0, b * b - a * c))
    return Gain(seen, max(-1.0, (b - reach) / a), min(1.0, (b + reach) / a))


def bounded_mean(estimate: float, total: float, top: float, noise: float) -> Interval:
    """Interval of a mean of numbers in [0, top], with noise: of the largest variance that such numbers can have.

    An estimate outside [0, top] is clipped to its nearest end, as in `share`.
    """
    z = intervals.normal(LEVEL)
    seen = min(max(estimate, 0.0), top)
    a, b = 1 + z * z / total, seen + z * z * top / total / 2
    reach = math.sqrt(max(0.0, b * b - a * (seen**2 - z * z * noise**2)))
    return Interval(max(0.0, (b - reach) / a), min(top, (b + reach) / a))


def noised_rate(hits: float, misses: float, spread: Callable[[float, float], float], most: float) -> Rate:
    """A share with a noised number of records: all true shares that are not too unlikely (Fieller's method).

    The noise in u * hits + v * misses has the standard deviation `spread(u, v)`.
    """
    together = hits + misses
    size = min(most, max(0.0, together) + spread(1.0, 1.0))
    tried = np.linspace(0.0, 1.0, 1001)
    gaps = np.abs((1 - tried) * hits - tried * misses)
    # The variance of the noise is a quadratic form of the weights, here 1 - r and -r: three values of it say all.
    of_hits, of_misses, of_both = spread(1.0, 0.0) ** 2, spread(0.0, 1.0) ** 2, spread(1.0, 1.0) ** 2
    noise = (1 - tried) * of_hits + tried * of_misses - tried * (1 - tried) * of_both
    deviation = np.sqrt(size * tried * (1 - tried) + np.maximum(0.0, noise))

    def at(level: float) -> Interval:
        fitting = tried[gaps <= intervals.normal(level) * deviation]
        if not len(fitting):
            fitting = tried[[int(np.argmin(gaps / np.maximum(deviation, 1e-300)))]]
        return Interval(float(fitting[0]), float(fitting[-1]))

    return Rate(hits / together if together > 0 else math.nan, at)
