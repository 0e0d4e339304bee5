"""Held-out metrics' intervals, also by group, and the scores of the best constant.

All of it is of held-out records, outside the guarantee.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsw._tools.later import Later, torch
from fedsw.data import Records
from fedsw.data.sources import second_of_two
from fedsw.runs.evaluation import intervals
from fedsw.runs.evaluation.intervals import WHOLE, Gain, Interval, Rate

if TYPE_CHECKING:
    from torch import Tensor

    from fedsw.learning.tasks import metrics as metrics
    from fedsw.learning.tasks.problem import Problem
else:
    metrics = Later("fedsw.learning.tasks.metrics")  # screens of a run's warnings load no torch

Array = NDArray[Any]
Places = NDArray[np.int64]
Measured = Mapping[str, tuple[float, Interval]]

_BINS = 10


class Bias(NamedTuple):
    """Mean of a regression's answers, mean of the targets, and the interval of their difference, 95 %."""

    answers: float
    truth: float
    around: Interval


@dataclass(frozen=True)
class Quality:
    """Uncertainty of held-out metrics: `intervals` of 95 % over draws of units, which include the noise of releases.

    Attributes:
        constant, answer: metrics of the best predictor without inputs, the most frequent class or the mean target of
            these records; and that predictor in words.
        best_threshold: of two classes the threshold with the highest accuracy on these records, and that accuracy: an
            upper limit for other thresholds.
        gain: difference of the model's first metric to the best constant's, 98 %.
        others: interval of the share of answers other than the most frequent one.
        noised: True if noise is in the sums.
        impact_of: the class of the disparate impact, by its name.
        bias: means of a regression of one number.
    """

    constant: Mapping[str, float] = field(default_factory=dict)
    answer: str = ""
    best_threshold: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    constant_intervals: Mapping[str, Interval] = field(default_factory=dict)
    gain: Gain | None = None
    others: Interval | None = None
    noised: bool = False
    impact_of: str = ""
    bias: Bias | None = None

    @property
    def one_answer(self) -> bool:
        """True if the model may answer the same class for every record."""
        return self.others is not None and self.others.low <= 0

    @property
    def standard_errors(self) -> dict[str, float]:
        """Standard errors of held-out metrics, of normal distributions with these intervals."""
        errors = {name: intervals.standard_error(interval) for name, interval in self.intervals.items()}
        return {name: error for name, error in errors.items() if math.isfinite(error)}


def units_of(records: Records) -> Places:
    """The unit of each record (n,): rows of one unit have one number."""
    if records.unit is None:
        return np.arange(len(records))
    return records.unit.cpu().numpy()


def quality_of_classes(
    outputs: Tensor,
    records: Records,
    *,
    groups: int,
    classes: int,
    names: Sequence[str] = (),
    positive: int | None = None,
) -> Quality:
    """Intervals around a classifier's held-out metrics, of probabilities (n, 1) of class 1 of two, or (n, d) of d.

    The constant's loss is that of the class shares as probabilities. Ratios and the best threshold are of the class
    ``positive``, by default the second of two; of more classes without a positive one, ratios are the worst class's.
    """
    answers = AnswersByRecord(outputs, records, groups, classes, positive)
    predicted, target = metrics.predictions(outputs).cpu(), records.target.cpu()
    most = int(torch.bincount(target, minlength=classes).argmax())
    always = torch.full_like(predicted, most)
    units, right = units_of(records), (predicted == target).numpy()
    shares = torch.bincount(target, minlength=classes).double() / len(target)
    surprise = -shares[target].log().numpy()
    often, often_right = (target == most).numpy(), intervals.rate_of(right, units).at(intervals.LEVEL)
    rates = {"accuracy": often_right} | answers.between_groups()
    if outputs.shape[1] == 1 and groups > 1:
        rates["ks"] = _of_ks(outputs, records, groups)
    return Quality(
        constant={
            "loss": float(surprise.mean()),
            "accuracy": metrics.accuracy(always, target),
            **equal_impact(classes),
            "demographic_parity_difference": 0.0,
            "equalized_odds_difference": 0.0,
        },
        answer=f"always {class_named(most, names)}",
        best_threshold={} if answers.positive is None or classes > 2 else _best_threshold(outputs, answers),
        intervals=rates,
        constant_intervals={
            "loss": intervals.mean(surprise, units),
            "accuracy": intervals.rate_of(often, units).at(intervals.LEVEL),
        },
        gain=_gain_of_classes(right, target.numpy(), units, most, classes),
        others=_others(predicted, units),
        impact_of=answers.impact_of(names),
    )


def equal_impact(classes: int) -> dict[str, float]:
    """The disparate impact of a constant, by name; of more than two classes that of each, too."""
    return {"disparate_impact": 1.0} | {f"disparate_impact_{c}": 1.0 for c in range(classes if classes > 2 else 0)}


def class_named(number: int, names: Sequence[str]) -> str:
    """A class by its declared name, or by its number if undeclared."""
    return repr(names[number]) if names else f"class {number}"


def quality_of_numbers(outputs: Tensor, records: Records, units_of_one: tuple[float, float] | None = None) -> Quality:
    """Intervals around a regression's held-out squared error, of predictions (n, t) of targets (n, t).

    Of one declared number, by its lower bound and width, it is in that number's own units.
    """
    predicted, target = (in_units(values.double().cpu(), units_of_one) for values in (outputs, records.target))
    units = units_of(records)
    squares = (predicted - target).square().reshape(len(target), -1).sum(dim=1).numpy()
    mean = target.mean(dim=0, keepdim=True)
    always = (target - mean).square().reshape(len(target), -1).sum(dim=1).numpy()
    errors = with_root({"mean_squared_error": intervals.positive_mean(squares, units)}, units_of_one)
    groups = int(records.sensitive.max()) + 1
    if outputs.shape[1] == 1 and groups > 1:
        errors["ks"] = _of_ks(outputs, records, groups)
    shown = ", ".join(f"{value:.3g}" for value in mean.flatten().tolist()[:4])
    bias = None
    if predicted.numel() == target.numel() == len(target):  # one number
        around = intervals.mean((predicted.flatten() - target.flatten()).numpy(), units)
        bias = Bias(float(predicted.mean()), float(target.mean()), around)
    return Quality(
        constant=with_root({"mean_squared_error": float(always.mean()), "w2_squared": 0.0}, units_of_one),
        answer=f"always the mean, {shown}",
        intervals=errors,
        constant_intervals=with_root({"mean_squared_error": intervals.positive_mean(always, units)}, units_of_one),
        gain=intervals.paired_mean(always - squares, units),
        bias=bias,
    )


def in_units(values: Tensor, units_of_one: tuple[float, float] | None) -> Tensor:
    """Numbers (n,) or (n, t) in [0, 1] in the units of the one declared number; unchanged without one."""
    if units_of_one is None:
        return values
    low, width = units_of_one
    return low + width * values


Measure = TypeVar("Measure", float, Interval)


def with_root(errors: dict[str, Measure], units_of_one: tuple[float, float] | None) -> dict[str, Measure]:
    """Errors with the root of the squared error, in the units of the one declared number; unchanged without one."""
    if units_of_one is None:
        return errors
    square = errors["mean_squared_error"]
    if isinstance(square, Interval):
        root = Interval(math.sqrt(max(0.0, square.low)), math.sqrt(max(0.0, square.high)))
    else:
        root = math.sqrt(max(0.0, square))
    return {**errors, "root_mean_squared_error": root}


def worst_of(margins: Sequence[Callable[[float], Gain]]) -> Gain:
    """Gain over the best of several constants, from the gains over each.

    A model is better than the best constant if it is better than each: an intersection-union test, each at the level
    itself. The upper end is Bonferroni's, over all constants.
    """
    usual = [margin(intervals.SURE) for margin in margins]
    sure = [margin(1 - (1 - intervals.SURE) / len(margins)) for margin in margins]
    return Gain(min(gain.value for gain in usual), min(gain.low for gain in usual), min(gain.high for gain in sure))


def _gain_of_classes(right: NDArray[np.bool_], target: Places, units: Places, most: int, classes: int) -> Gain:
    def margin(label: int) -> Callable[[float], Gain]:
        gained = right.astype(np.float64) - (target == label)
        return lambda level: intervals.gain(gained, units, level)

    often = np.bincount(target, minlength=classes)
    return worst_of([margin(label) for label in range(classes) if often[label] or label == most])


def _others(predicted: Tensor, units: Places) -> Interval:
    """Interval of the share of answers other than the most frequent one; 0 to 0 if there are none."""
    other = (predicted != torch.bincount(predicted).argmax()).numpy()
    if not other.any():
        return Interval(0.0, 0.0)
    others = intervals.rate_of(other, units).at(intervals.LEVEL)
    return Interval(max(others.low, 1 / len(other) ** 2), others.high)


class Answers(abc.ABC):
    """How often groups get the answers of a classifier, from records or from noised counts.

    Ratios between groups are of the class `positive`, or of each class if that is None.
    """

    groups: int
    classes: int
    positive: int | None

    @abc.abstractmethod
    def right(self, group: int) -> Rate:
        """The share of a group's records with a correct answer."""

    @abc.abstractmethod
    def answered(self, group: int, answer: int, label: int | None = None) -> Rate:
        """The share of a group's records, or of its records of one class, that get an answer."""

    @abc.abstractmethod
    def table(self, group: int) -> Array:
        """A group's records by class and answer (classes, classes)."""

    def of_group(self, group: int) -> dict[str, tuple[float, Interval]]:
        """One group's row of the table by group: each rate by its name, with its interval."""
        return {name: (rate.value, rate.at(intervals.LEVEL)) for name, rate in self._rates(group).items()}

    def _rates(self, group: int) -> dict[str, Rate]:
        rates = {"accuracy": self.right(group)}
        if self.classes > 2 or self.positive is None:
            rates |= {f"selection_rate_{c}": self.answered(group, c) for c in range(self.classes)}
        else:
            rates["selection_rate"] = self.answered(group, self.positive)
            rates["true_positive_rate"] = self.answered(group, self.positive, label=self.positive)
            rates["false_positive_rate"] = self.answered(group, self.positive, label=1 - self.positive)
        return rates

    def between_groups(self, groups: Sequence[int] | None = None) -> dict[str, Interval]:
        """Intervals of all comparisons of groups, of all or of these; empty for one group."""
        groups = range(self.groups) if groups is None else groups
        if len(groups) < 2:
            return {}
        judged = list(range(self.classes)) if self.positive is None else [self.positive]
        every = judged if self.classes == 2 else list(range(self.classes))  # of two classes one's rates are enough

        def rates(label: int | None = None) -> dict[int, list[Rate]]:
            return {c: [self.answered(group, c, label) for group in groups] for c in every}

        def ratio(shares: Mapping[int, list[Rate]], of: Sequence[int]) -> Interval:
            return intervals.smallest_ratio([shares[c] for c in of])

        selected, odds = rates(), [rates(label) for label in range(self.classes)]
        ratios = {"disparate_impact": ratio(selected, judged)}
        if self.classes > 2:
            ratios |= {f"disparate_impact_{c}": ratio(selected, [c]) for c in every}
        gaps = {
            "demographic_parity_difference": intervals.largest_gap(list(selected.values())),
            "equalized_odds_difference": intervals.largest_gap(
                [shares for by_answer in odds for shares in by_answer.values()]
            ),
        }
        return ratios | gaps | {f"eo_{y}": ratio(shares, judged) for y, shares in enumerate(odds)}

    def gaps(self) -> dict[str, tuple[float, Interval]]:
        """Comparisons of the groups with records: the largest gap of each rate of `of_group`, ratios and gaps of all.

        Empty for one group.
        """
        present = [group for group in range(self.groups) if math.isfinite(self.right(group).value)]
        rows = [self._rates(group) for group in present]
        if len(rows) < 2:
            return {}
        gaps = {}
        for name in rows[0]:
            rates = [row[name] for row in rows if math.isfinite(row[name].value)]
            if len(rates) > 1:
                values = [rate.value for rate in rates]
                gaps[name] = (max(values) - min(values), intervals.largest_gap([rates]))
        tables = np.array([self.table(group) for group in present])
        values_of_all, around = metrics_of_tables(tables[None], self.positive), self.between_groups(present)
        return gaps | {name: (float(values_of_all[name][0]), around[name]) for name in around if name in values_of_all}

    def impact_of(self, names: Sequence[str]) -> str:
        """The class of the disparate impact, by its name: the positive one, or the one with the lowest ratio."""
        if self.groups < 2:
            return ""
        if self.positive is not None:
            return class_named(self.positive, names)
        every = range(self.groups)
        rates = np.array([[self.answered(group, c).value for group in every] for c in range(self.classes)])
        ratios = rates.min(axis=1) / np.where(rates.max(axis=1) == 0, np.inf, rates.max(axis=1))
        ratios = np.where(rates.max(axis=1) == 0, 1.0, ratios)
        return "" if np.isnan(ratios).any() else class_named(int(ratios.argmin()), names)


class AnswersByRecord(Answers):
    """The answers to n records one by one, by outputs (n, d): rows of a unit count once."""

    def __init__(
        self, outputs: Tensor, records: Records, groups: int, classes: int, positive: int | None = None
    ) -> None:
        columns = (metrics.predictions(outputs), records.target, records.sensitive)
        self.predicted, self.target, self.sensitive = (column.cpu().numpy() for column in columns)
        self.units, self.groups, self.classes = units_of(records), groups, classes
        self.positive = second_of_two(classes) if positive is None else positive

    def right(self, group: int) -> Rate:
        """See `Answers`."""
        return self._rate(self.predicted == self.target, self.sensitive == group)

    def answered(self, group: int, answer: int, label: int | None = None) -> Rate:
        """See `Answers`."""
        rows = self.sensitive == group
        return self._rate(self.predicted == answer, rows if label is None else rows & (self.target == label))

    def table(self, group: int) -> Array:
        """See `Answers`."""
        counts = np.zeros((self.classes, self.classes))
        rows = (self.sensitive == group) & (self.predicted >= 0)
        np.add.at(counts, (self.target[rows], self.predicted[rows]), 1.0)
        return counts

    def _rate(self, hits: NDArray[np.bool_], rows: NDArray[np.bool_]) -> Rate:
        return intervals.rate_of(hits[rows], self.units[rows])


def _of_ks(outputs: Tensor, records: Records, groups: int) -> Interval:
    """Interval of the KS distance between groups; a unit counts once, with any number of rows."""
    sensitive, units = records.sensitive.cpu().numpy(), units_of(records)
    value = metrics.kolmogorov_smirnov(outputs.cpu(), records.sensitive.cpu(), groups=groups)
    counts = [len(np.unique(units[sensitive == group])) for group in range(groups)]
    return intervals.largest_cdf_gap(value, counts)


def _best_threshold(outputs: Tensor, answers: AnswersByRecord) -> dict[str, float]:
    """`best_threshold` of the positive one of two classes, from outputs (n, 1) of the second, with an interval."""
    scores = outputs[:, 0].double().cpu()
    scores = 1 - scores if answers.positive == 0 else scores
    target = torch.from_numpy((answers.target == answers.positive).astype(np.int64))
    threshold = best_threshold(scores, target)
    right = ((scores > threshold["threshold"]).long() == target).numpy()
    low, high = intervals.rate_of(right, answers.units).at(intervals.LEVEL)
    return threshold | {"low": low, "high": high}


def best_threshold(outputs: Tensor, target: Tensor) -> dict[str, float]:
    """The threshold for class 1 with the highest accuracy, and that accuracy; outputs, target: (n,)."""
    order = torch.argsort(outputs)
    ranked, positive = outputs[order], target[order].double()
    below = torch.cat([torch.zeros(1, dtype=torch.float64), torch.cumsum(1 - positive, 0)])
    above = torch.cat([torch.flip(torch.cumsum(torch.flip(positive, (0,)), 0), (0,)), torch.zeros(1).double()])
    possible = torch.ones(len(below), dtype=torch.bool)
    possible[1:-1] = ranked[1:] > ranked[:-1]  # no threshold is between equal outputs
    right = torch.where(possible, below + above, -1.0)
    cut = int(right.argmax())
    if cut == 0:
        threshold = float(ranked[0]) - 1.0
    elif cut == len(ranked):
        threshold = float(ranked[-1])
    else:
        low, high = float(ranked[cut - 1]), float(ranked[cut])
        middle = (low + high) / 2
        threshold = middle if middle < high else low  # of neighbouring numbers the middle may be rounded up
    return {"threshold": threshold, "accuracy": float(right[cut]) / len(ranked)}


def metrics_of_tables(tables: NDArray[np.float64], positive: int | None = None) -> dict[str, NDArray[np.float64]]:
    """Metrics (D,) of counts by group, class and answer, (D, groups, classes, classes); nan if undefined.

    Ratios are of the class ``positive`` as in `fedsw.learning.tasks.metrics.classification`.
    """
    classes = tables.shape[-1]
    positive = second_of_two(classes) if positive is None else positive
    values = {"accuracy": np.trace(tables.sum(1), axis1=1, axis2=2) / tables.sum((1, 2, 3))}
    if tables.shape[1] > 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = tables.sum(2) / tables.sum((2, 3))[:, :, None]
            ratios = np.where(rates.max(1) == 0, 1.0, rates.min(1) / rates.max(1))
            values["disparate_impact"] = ratios.min(1) if positive is None else ratios[:, positive]
            if classes > 2:
                values |= {f"disparate_impact_{c}": ratios[:, c] for c in range(classes)}
            values["demographic_parity_difference"] = (rates.max(1) - rates.min(1)).max(1)
            odds = tables / tables.sum(3)[:, :, :, None]
            values["equalized_odds_difference"] = (odds.max(1) - odds.min(1)).max((1, 2))
    return values


class GroupTable(NamedTuple):
    """Metrics by group and name, and their intervals, 95 %, over draws of units."""

    numbers: dict[str, dict[str, float]]
    around: dict[str, dict[str, Interval]]

    @classmethod
    def of(cls, counts: Mapping[str, float], measures: Mapping[str, Measured]) -> GroupTable:
        """Make a table of each group's number of records and metrics, nan for a missing one; empty for one group."""
        if len(measures) < 2:
            return cls({}, {})
        columns = dict.fromkeys(column for measured in measures.values() for column in measured)
        numbers = {
            name: {"count": counts[name], **{column: measured.get(column, (math.nan, WHOLE))[0] for column in columns}}
            for name, measured in measures.items()
        }
        return cls(
            numbers,
            {name: {key: around for key, (_, around) in measured.items()} for name, measured in measures.items()},
        )


def columns_of_groups(task: Problem) -> Iterator[tuple[str, tuple[str, ...], Array]]:
    """Yield each column of combined groups: its name, its values, and the number of each group's value (g,).

    The group of all other combinations has no value: -1.
    """
    columns = task.experiment.data.columns
    group = None if columns is None else columns.sensitive
    if group is None or len(task.groups) < 2:
        return
    for position, part in enumerate(group.of):
        values = [None if name == group.other else group.parts_of(at)[position] for at, name in enumerate(task.groups)]
        yield (
            part.name,
            tuple(part.values),
            np.array([-1 if value is None else part.values.index(value) for value in values]),
        )


def joined(tables: Iterable[tuple[str, GroupTable, Measured]]) -> GroupTable:
    """One table of several columns' tables, with a row for the gaps between each column's values."""
    numbers: dict[str, dict[str, float]] = {}
    around: dict[str, dict[str, Interval]] = {}
    for name, table, gaps in tables:
        numbers |= {f"{name} = {value}": dict(row) for value, row in table.numbers.items()}
        around |= {f"{name} = {value}": dict(row) for value, row in table.around.items()}
        numbers[f"{name}: largest gap"] = {metric: value for metric, (value, _) in gaps.items()}
        around[f"{name}: largest gap"] = {metric: interval for metric, (_, interval) in gaps.items()}
    return GroupTable(numbers, around)


def by_column(task: Problem, outputs: Tensor, records: Records) -> GroupTable:
    """As `by_group`, by each column of combined groups, and the largest gap of every rate.

    Held-out outputs are (n, d). Records in the group of other combinations are left out. Empty for groups of one
    column.
    """
    facts, tables = task.task.facts, list[tuple[str, GroupTable, Measured]]()
    for name, values, places in columns_of_groups(task) if facts.supervised else ():
        value_of = torch.from_numpy(places)[records.sensitive.cpu()]
        known = value_of >= 0
        some, answered = replace(records.to(value_of.device), sensitive=value_of).take(known), outputs.cpu()[known]
        gaps: dict[str, tuple[float, Interval]] = {}
        if facts.classifies and len(some):
            gaps = AnswersByRecord(answered, some, len(values), task.classes, task.positive).gaps()
        tables.append((name, by_group(task, answered, some, values), gaps))
    return joined(tables)


def by_group(task: Problem, outputs: Tensor, records: Records, groups: Sequence[str] | None = None) -> GroupTable:
    """Number of records and metrics of every group, the task's or these; empty for one group, and for other tasks.

    Held-out outputs are (n, d). By group: `count`; for classification `accuracy`, and `selection_rate`,
    `true_positive_rate`, `false_positive_rate`, `auc` and `calibration_error` of the positive class (for more than two
    classes `selection_rate_c` of every class c, and the means of each against the rest); for regression
    `mean_squared_error` and `mean_absolute_error`, of Euclidean distances, and `r2`. Undefined metrics are nan; so are
    all of a group with an output that is not finite.
    """
    facts, groups = task.task.facts, task.groups if groups is None else groups
    if not facts.supervised or len(groups) < 2:
        return GroupTable({}, {})
    answers = None
    if facts.classifies:
        answers = AnswersByRecord(outputs, records, len(groups), task.classes, task.positive)
    counts: dict[str, float] = {}
    measures: dict[str, Measured] = {}
    for group, name in enumerate(groups):
        rows = (records.sensitive == group).cpu().numpy()
        counts[name] = int(rows.sum())
        if not counts[name] or not bool(outputs[rows].isfinite().all()):
            measures[name] = {}
        elif answers is None:
            measures[name] = _numbers_of_group(outputs, records, rows, task.units)
        else:
            measures[name] = {**answers.of_group(group), **_of_probabilities(outputs[rows], answers, rows)}
    return GroupTable.of(counts, measures)


def of_probabilities(task: Problem, outputs: Tensor, records: Records) -> Measured:
    """AUC and calibration error of a classifier's held-out outputs (n, d), all groups together.

    Of more than two classes they are the means of each class against the rest, with the mean of their intervals: the
    error of a mean is at most the mean of errors. Empty for other tasks, and outputs that are not finite; undefined
    ones are left out.
    """
    facts = task.task.facts
    if not (facts.supervised and facts.classifies and bool(outputs.isfinite().all())):
        return {}
    answers = AnswersByRecord(outputs, records, len(task.groups), task.classes, task.positive)
    measured = _of_probabilities(outputs, answers, np.ones(len(outputs), dtype=bool))
    return {name: (value, around) for name, (value, around) in measured.items() if math.isfinite(value)}


OF_SHARES = {"auc": 0.5, "calibration_error": 0.0}
"""Scores of the class shares as probabilities."""


def _of_probabilities(outputs: Tensor, answers: AnswersByRecord, rows: Array) -> Measured:
    """AUC and calibration error of the outputs (m, d) of these rows of all records."""
    scores, target, units = outputs.detach().double().cpu().numpy(), answers.target[rows], answers.units[rows]
    measures: list[tuple[float, float]] = []
    around: list[tuple[Interval, Interval]] = []
    for column, label in ((0, 1),) if scores.shape[1] == 1 else [(label, label) for label in range(scores.shape[1])]:
        of_class, chances = (target == label).astype(np.int64), scores[:, column]
        counts = [len(np.unique(units[of_class == of_it])) for of_it in (1, 0)]
        measures.append((area_under_curve(of_class, chances), calibration_error(of_class, chances)))
        area = intervals.curve_area(measures[-1][0], *counts)
        # The calibration error is a sum of sizes, of the mean gap within every bin.
        bins, gaps = _bins(chances), chances - of_class
        within = [np.where(bins == one, gaps, 0.0) for one in range(_BINS)]
        errors = np.array([intervals.mean_error(gaps_of_bin, units) for gaps_of_bin in within])
        around.append((area, intervals.sum_of_sizes(np.array([one.mean() for one in within]), errors)))
    names, means, ends = ("auc", "calibration_error"), np.mean(measures, axis=0), np.mean(around, axis=0)
    return {name: (float(means[at]), Interval(*map(float, ends[at]))) for at, name in enumerate(names)}


def _numbers_of_group(
    outputs: Tensor, records: Records, rows: Array, units_of_one: tuple[float, float] | None
) -> Measured:
    pair = (outputs.detach(), records.target)
    predicted, target = (in_units(values.double().cpu(), units_of_one).numpy()[rows] for values in pair)
    gaps = (predicted - target).reshape(len(target), -1)
    squares, units, wide = np.square(gaps).sum(axis=1), units_of(records)[rows], target.reshape(len(target), -1)
    spread = np.square(wide.astype(np.float64) - wide.mean(axis=0, dtype=np.float64)).sum(axis=1)
    low, high = intervals.ratio_of_means(squares, spread, units)
    explained = float(1 - squares.sum() / spread.sum()) if spread.sum() > 0 else math.nan
    return {
        "mean_squared_error": (float(squares.mean()), intervals.positive_mean(squares, units)),
        "mean_absolute_error": (float(np.sqrt(squares).mean()), intervals.positive_mean(np.sqrt(squares), units)),
        "r2": (explained, Interval(1 - high, 1 - low)),
    }


def calibration_error(target: Array, scores: Array) -> float:
    """Expected calibration error: the mean gap between scores (n,) and shares of class 1 in ten bins of equal width."""
    gaps = np.bincount(_bins(scores), weights=scores - target, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(target))


def _bins(scores: Array) -> Array:
    bins: Array = np.clip((scores * _BINS).astype(int), 0, _BINS - 1)
    return bins


def area_under_curve(target: Array, scores: Array) -> float:
    """The area under the ROC curve of scores (n,) for the class 1 of a target (n,) of 0 and 1; equal scores count half.

    nan if one class is absent, or a score is not finite. It is Mann and Whitney's share of pairs in their order: ranks
    take a sort, where to load the library that has it takes longer than a small run.
    """
    ones = int(np.count_nonzero(target))
    others = len(target) - ones
    if not ones or not others or not np.isfinite(scores).all():
        return math.nan
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return float((ranks[places][target == 1].sum() - ones * (ones + 1) / 2) / (ones * others))
