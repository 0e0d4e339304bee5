"""The tables of docs/measured/own-data.md: who wins where, and whether plans are right."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.own_data.store import Row, rows_of
from fedsw._tools import text
from fedsw.desk.planning.forecast import FEASIBLE, promised_above

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "results" / "rivals"
LEAST_SEEDS = 3
REPLACED = ("descent", "adassp")
"""Rivals of the same relation: one record is replaced by another. Of the others one is added or removed, which costs
less noise."""
WIDE = 0.1
"""The part of its bounds that a column uses, as four standard deviations, or below the mean of numbers to predict."""
LITTLE, LITTLE_OF_SQUARES = 0.02, 0.04
"""What a model without privacy gains over a constant where columns tell little: accuracy, or R2."""
Scores = dict[str, list[float]]


def table(rows: list[Row]) -> str:
    """A line for each set and epsilon: means over seeds with standard errors, the best rival of each relation, and
    whether fedsw is ahead (+) of it or behind (-) by more than a standard error, or neither (=)."""
    lines = []
    for name, epsilon, own, scores in _cells(rows):
        mine, without = scores["fedsw"], [row for row in own if row["cell"][2] == "not-private"]
        chosen = [row.get("chosen", "") for row in own if row["cell"][2] == "fedsw"]
        plain = " / ".join(_mean([row[kind] for row in without]) for kind in ("linear", "boosted")) if without else "–"
        best = [_best(scores, which) for which in ("same", "other")]
        lines.append(
            [
                name,
                f"{own[0]['records']:,}",
                epsilon,
                _mean([row["constant"] for row in own if row["cell"][2] == "fedsw"]),
                _shown(mine),
                max(chosen, key=chosen.count),
                *(f"{_shown(scores[rival])} ({rival}) {sign(mine, scores[rival])}" if rival else "–" for rival in best),
                plain,
                len(mine),
            ]
        )
    head = ["data", "records", "ε", "a constant", "fedsw", "it chose", "best by replacement", "best by removal"]
    return text.table([*head, "not private", "seeds"], lines)


def probabilities(rows: list[Row]) -> str:
    """A line for each set of classes and epsilon: log loss beside the class shares', and AUC, each beside the best rival's
    and the better of two models without privacy; empty if no row has any."""
    lines = []
    for name, epsilon, own, losses in _cells(rows, "loss"):
        of_rows = {(row["cell"][2], row["cell"][3]): row for row in own}
        areas = next(areas for *cell, _, areas in _cells(rows, "auc") if cell == [name, epsilon])
        beside = []
        for by_rival, turned in ((losses, -1), (areas, 1)):
            mine, rival = by_rival["fedsw"], _best(by_rival, "all")
            best = f"{_shown(by_rival[rival], turned)} ({rival}) {sign(mine, by_rival[rival])}" if rival else "–"
            beside.append([_shown(mine, turned), best, _mean(by_rival.get("not-private", []), turned)])
        shares = [row["loss_of_shares"] for (rival, _), row in of_rows.items() if rival == "fedsw"]
        lines.append([name, epsilon, _mean(shares), *beside[0], *beside[1], len(shares)])
    head = ["data", "ε", "class shares", "log loss", "best rival", "not private", "AUC", "best rival", "not private"]
    return text.table([*head, "seeds"], lines) if lines else ""


def verdict(rows: list[Row]) -> str:
    """In how many cells fedsw is ahead of, or behind, the best rival by more than a standard error, by each measure, and
    where it is behind a constant.

    Cells of fewer than `LEAST_SEEDS` seeds have no standard error to speak of, and are not counted.
    """
    many, below = 0, []
    for name, epsilon, own, scores in _cells(rows):
        mine = scores["fedsw"]
        if len(mine) < LEAST_SEEDS:
            continue
        many += 1
        constant = statistics.fmean(row["constant"] for row in own if row["cell"][2] == "fedsw")
        if constant - statistics.fmean(mine) > _error(mine):
            below.append(f"{name} at ε = {text.upward(epsilon)}")
    if not many:
        return f"No cell has {LEAST_SEEDS} seeds yet, so nobody can say who is ahead."
    worse = [
        f"{name} {text.upward(epsilon)}"
        for name, epsilon, own, losses in _cells(rows, "loss")
        if -statistics.fmean(losses["fedsw"])
        > statistics.fmean(row["loss_of_shares"] for row in own if row["cell"][2] == "fedsw")
    ]
    said = [
        f"fedsw's default beside the best of rivals by replacement: {_counted(rows, 'score', 'same')}; "
        f"of all rivals: {_counted(rows, 'score', 'all')}. Below a constant by more than that: "
        f"{', '.join(below) or 'nowhere'}."
    ]
    if any("auc" in row for row in rows):
        said.append(
            f"By AUC beside the best of rivals by replacement: {_counted(rows, 'auc', 'same')}; of all rivals: "
            f"{_counted(rows, 'auc', 'all')}. By log loss: {_counted(rows, 'loss', 'same')}; "
            f"{_counted(rows, 'loss', 'all')}; above the class shares' in {len(worse)}"
            + (f" ({', '.join(worse)})." if worse else ".")
        )
    return " ".join(said)


ADDED = "fedsw-add-remove"
"""The default path for additions and removals, in rows of a folder apart."""


def removal(rows: list[Row], added: list[Row]) -> str:
    """Like with like: fedsw for additions and removals beside the best rival of the same relation, by each measure."""
    own = [{**row, "cell": [*row["cell"][:2], "fedsw", row["cell"][3]]} for row in added if row["cell"][2] == ADDED]
    both = own + [row for row in rows if row["cell"][2] not in ("fedsw", *REPLACED)]
    words = (f"by {name}: {_counted(both, measure, 'all')}" for name, measure in _MEASURES.items())
    return f"For additions and removals, beside the best of rivals by removal: {'; '.join(words)}." if own else ""


_MEASURES = {"accuracy or R²": "score", "AUC": "auc", "log loss": "loss"}


def _counted(rows: list[Row], measure: str, which: str) -> str:
    """In how many cells fedsw is ahead of the best rival by a measure, and where it is behind."""
    marks = {}
    for name, epsilon, _, scores in _cells(rows, measure):
        rival = _best(scores, which)
        if rival and min(len(scores[rival]), len(scores["fedsw"])) >= LEAST_SEEDS:
            marks[f"{name} {text.upward(epsilon)}"] = sign(scores["fedsw"], scores[rival])
    behind = [cell for cell, mark in marks.items() if mark == "-"]
    signs = list(marks.values())
    return (
        f"ahead in {signs.count('+')} of {len(signs)} cells by more than a standard error, level in {signs.count('=')}, "
        f"behind in {len(behind)}" + (f" ({', '.join(behind)})" if behind else "")
    )


@dataclass(frozen=True)
class Judged:
    """A plan beside what runs came to: the share that was said to be left, and the one that was.

    ``promises`` says whether the plan expects more than a constant of these data. ``constant``, ``best`` and ``score`` are
    a constant's, that of the better model without privacy, and fedsw's, in accuracy or R2.
    """

    name: str
    epsilon: float
    records: int
    constant: float
    best: float
    score: float
    said: float
    promises: bool

    @property
    def expected(self) -> float:
        """The share that is said to be left of these data: none where the plan's conditions do not hold for them."""
        return 0.0 if self.said >= FEASIBLE and not self.promises else self.said

    @property
    def gain(self) -> float:
        """How much better than a constant a model can be."""
        return max(self.best, self.score) - self.constant

    @property
    def kept(self) -> float:
        """The share of it that runs kept."""
        return (self.score - self.constant) / self.gain if self.gain > 0 else 0.0

    @property
    def verdict(self) -> str:
        """One of "right", "too cautious" and "too hopeful"."""
        if self.promises == (self.kept >= FEASIBLE):
            return "right"
        return "too hopeful" if self.promises else "too cautious"


def judged(rows: list[Row], told: list[Row]) -> list[Judged]:
    """Every plan of a cell that runs and models without privacy have scores of."""
    said, plans = {tuple(row["cell"]): row for row in told}, []
    for name, epsilon, own, scores in _cells(rows):
        without = [row["score"] for row in own if row["cell"][2] == "not-private"]
        if (name, epsilon) not in said or not without:
            continue
        plan, constant = (
            said[name, epsilon],
            statistics.fmean(row["constant"] for row in own if row["cell"][2] == "fedsw"),
        )
        plans.append(
            Judged(
                name=name,
                epsilon=epsilon,
                records=own[0]["records"],
                constant=constant,
                best=statistics.fmean(without),
                score=statistics.fmean(scores["fedsw"]),
                said=plan["kept"],
                promises=expects(plan, gain=statistics.fmean(without) - constant),
            )
        )
    return plans


def forecast_words(rows: list[Row], told: list[Row]) -> str:
    """How many plans were right, too cautious or too hopeful, and which were wrong."""
    plans = judged(rows, told)
    if not plans:
        return ""
    right = sum(plan.verdict == "right" for plan in plans)
    wrong = []
    for how in ("too cautious", "too hopeful"):
        cells = [f"{plan.name} {text.upward(plan.epsilon)}" for plan in plans if plan.verdict == how]
        wrong.append(f"{len(cells)} {how}" + (f" ({', '.join(cells)})" if cells else ""))
    return f"Of {len(plans)} plans from public numbers alone {right} are right, {wrong[0]} and {wrong[1]}."


def expects(said: Mapping[str, Any], *, gain: float) -> bool:
    """Whether a plan promises more than a constant of these data: what it says of the most frequent class's share, of
    columns that use a tenth of their bounds, of numbers mostly within a tenth of theirs and of how much a model without
    privacy gains holds for theirs."""
    others, constant_to = said.get("others"), said.get("constant_to")
    if others is not None and constant_to is not None and others < promised_above(constant_to):
        return False
    unknown = (
        (said.get("tight"), (said.get("used") or 0.0) > WIDE),
        (said.get("skewed"), (said.get("middle") or 0.0) > WIDE),
        (said.get("bare"), gain > (LITTLE if said.get("middle") is None else LITTLE_OF_SQUARES)),
    )
    holds = all(known for kept, known in unknown if kept is not None and kept < FEASIBLE)
    return bool(said["feasible"] or (said.get("depends") and holds))


def _cells(rows: list[Row], measure: str = "score") -> Iterable[tuple[str, float, list[Row], Scores]]:
    """Every set and epsilon that fedsw has a value of, with its rows and the values of each rival, by seed: the more the
    better, so that log losses are negative."""
    for name, epsilon in dict.fromkeys((row["cell"][0], row["cell"][1]) for row in rows):
        own = [row for row in rows if row["cell"][:2] == [name, epsilon]]
        scores: Scores = {}
        for row in own:
            if (value := row.get(measure)) is not None:
                scores.setdefault(row["cell"][2], []).append(-value if measure == "loss" else value)
        if "fedsw" in scores:
            yield name, epsilon, own, scores


def _best(scores: Mapping[str, list[float]], which: str) -> str:
    """The name of the best rival of the same relation, of the other one, or of all; empty if there is none."""
    rivals = {
        rival: statistics.fmean(values)
        for rival, values in scores.items()
        if rival not in ("fedsw", "not-private") and (which == "all" or (rival in REPLACED) == (which == "same"))
    }
    return max(rivals, key=lambda rival: rivals[rival]) if rivals else ""


def sign(mine: list[float], other: list[float]) -> str:
    """Who is ahead by more than a standard error: "+" for the first, "-" for the other, "=" for neither."""
    if min(len(mine), len(other)) < LEAST_SEEDS:
        return ""
    apart, error = statistics.fmean(mine) - statistics.fmean(other), math.hypot(_error(mine), _error(other))
    return "+" if apart > error else "-" if apart < -error else "="


def clearly(gains: list[float]) -> int:
    """1 for gains above 0 by more than two standard errors over seeds, -1 for as clear losses, 0 otherwise."""
    mean, error = statistics.fmean(gains), _error(gains)
    return 0 if abs(mean) <= 2 * error else 1 if mean > 0 else -1


def _shown(values: list[float], turned: int = 1) -> str:
    return f"{_mean(values, turned)} ± {text.number(_error(values), 1)}" if len(values) > 1 else _mean(values, turned)


def _mean(values: list[float], turned: int = 1) -> str:
    return text.number(turned * statistics.fmean(values)) if values else "–"


def _error(values: list[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def content(folder: Path = FOLDER) -> str:
    """Everything that is said of the rows of a folder."""
    rows: list[Any] = rows_of("scores", folder)
    parts = (
        table(rows),
        probabilities(rows),
        verdict(rows),
        removal(rows, rows_of("scores", folder / "added")),
        forecast_words(rows, rows_of("forecasts", folder)),
    )
    return "\n\n".join(part for part in parts if part)
