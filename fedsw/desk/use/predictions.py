"""From a table to answers: read and written alike, cut at a threshold chosen by group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.text import number
from fedsw.data import BadRecords
from fedsw.data.cells import as_list
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature
from fedsw.data.containers import tabulated
from fedsw.data.encoding import CellFault, Encoder
from fedsw.data.formats import Chunk, format_of, readable
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.task_kinds import task_facts
from fedsw.runs.evaluation.group_thresholds import FEWEST, RULES, Cuts, Scores, cuts_of, scores_of_outputs
from fedsw.runs.evaluation.quality import best_threshold
from fedsw.runs.view import HeldOutOutputs


@dataclass(frozen=True)
class Given:
    """A table as a model takes it: encoded features (n, p), float32, and numbers of groups (n,), zeros if not asked.

    The `rows` (n,) are as its container counts, in words `counted`; `beside` are cells of columns to keep, by name.
    """

    features: Tensor
    groups: Tensor
    rows: NDArray[np.int64]
    beside: dict[str, list[Any]]
    counted: str


OnFaults = Literal["refuse", "leave-out", "nearest", "missing"]
"""What becomes of rows with cells that do not fit: see `read_given`."""
_MOST_TOLD = 20


def read_given(
    source: object, columns: Columns, *, grouped: bool = False, keep: Sequence[str] = (), faults: OnFaults = "refuse"
) -> Given:
    """The records of a file or of whatever `fedsw.as_records` takes, every cell checked as in training.

    The column of the groups is read if `grouped`, or where it is an input; further ones to `keep` as they are. Cells
    that do not fit are all named and refused; or their rows are left out; or numbers and days outside their bounds
    count as the nearest one; or they count as missing: as the column's missing cells do, else as the middle of the
    bounds, or as none of the categories.

    Raises:
        FileNotFoundError: if there is no such file.
        BadRecords: naming rows and columns of all faults, up to 20, their values and what is declared.
    """
    used = columns.model_copy(
        update={"target": None, "targets": (), "sensitive": columns.sensitive if grouped else None}
    )
    if faults == "nearest":
        cut = [one.model_copy(update={"outside": "cut"}) if one.bounded else one for one in used.features]
        used = used.model_copy(update={"features": tuple(cut)})
    beside = tuple(Feature(name=name) for name in keep if name not in used.names)
    reading = used.model_copy(update={"features": (*used.features, *beside)})
    where, counted, chunks = _opened(source, reading, keep)
    rows: list[NDArray[np.int64]] = []
    inputs: list[NDArray[np.float32]] = []
    groups: list[NDArray[np.int64]] = []
    beside_cells: dict[str, list[Any]] = {name: [] for name in keep}
    bad_cells: list[CellFault] = []
    try:
        with readable(where):
            for chunk in chunks:
                features, group, taken, refused = inputs_of(chunk, used, faults)
                bad_cells += refused
                rows.append(chunk.first_row + np.flatnonzero(taken))
                inputs.append(features[taken])
                groups.append(group[taken])
                for name, cells in beside_cells.items():
                    listed = as_list(chunk.cells[name])
                    cells += [cell for cell, is_taken in zip(listed, taken, strict=True) if is_taken]
    except BadRecords as fault:
        words = str(fault)
        if any(f"has no column {name!r}," in words for name in keep):  # which only `keep` names
            words = words.replace("which data.columns declares", "which is to be kept")
        raise BadRecords(words) from None
    if bad_cells:
        in_order = sorted(bad_cells, key=lambda fault: fault.row)
        more = f"\nand {len(in_order) - _MOST_TOLD} more" if len(in_order) > _MOST_TOLD else ""
        lines = "\n".join(f"row {fault.row} ({counted}), {fault.words}" for fault in in_order[:_MOST_TOLD])
        raise BadRecords(
            f"{where}: {lines}{more}\nMend these cells, or say what becomes of them: --faults leave-out, nearest or "
            "missing"
        )
    if not any(map(len, rows)):
        raise BadRecords(f"{where} holds no records; there is nothing to predict")
    features_ = torch.from_numpy(np.concatenate(inputs).astype(np.float32))
    return Given(features_, torch.from_numpy(np.concatenate(groups)), np.concatenate(rows), beside_cells, counted)


def inputs_of(
    chunk: Chunk, columns: Columns, faults: OnFaults
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_], list[CellFault]]:
    """Inputs (n, p) and groups (n,) of some rows, which of them (n,) are taken, and the faults that are refused."""
    encoder = Encoder(chunk, columns, every=True)
    features, group = encoder.features(columns.features), encoder.group(columns.sensitive)
    labels = set() if columns.sensitive is None else {*columns.sensitive.columns}
    taken, refused = np.ones(encoder.rows, dtype=bool), list[CellFault]()
    for fault in encoder.faults:
        row = fault.row - chunk.first_row
        if faults == "leave-out":
            taken[row] = False
        elif faults == "missing" and fault.column not in labels:
            features[row] = _without(features[row], fault.column, columns)
        else:
            refused.append(fault)
    return features, group, taken, refused


def _without(inputs: NDArray[np.float32], column: str, columns: Columns) -> NDArray[np.float32]:
    """The inputs (inputs,) of a record with a missing cell in a column."""
    start, changed = 0, inputs.copy()
    for feature in columns.features:
        part = changed[start : start + feature.inputs]
        if column in feature.columns:
            fill = feature.fill if isinstance(feature.fill, int | float) else feature.reader.fill(feature)
            if feature.reader.listing:
                part[:] = 0.0
                if feature.filled_category is not None:
                    part[feature.filled_category] = 1.0
            else:
                filling = np.array([0.0 if fill is None else float(fill)])
                part[feature.columns.index(column)] = feature.reader.inputs(filling, feature)[0, 0]
            if feature.missing:
                part[-1] = 1.0
        start += feature.inputs
    return changed


def _opened(source: object, reading: Columns, keep: Sequence[str]) -> tuple[str, str, Iterator[Chunk]]:
    """Return the name of a source, how its rows are counted, and its chunks."""
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        kind = format_of(path)
        return str(path), kind.counted, kind.read(path, reading, beside=frozenset(keep).__contains__)
    table = tabulated(source() if callable(source) else source)
    return table.kind, "the first record is row 0", table.chunks(reading)


Asked = float | Mapping[str, float] | str | None
"""One threshold, one for each group by name, or a rule: "best", "parity", "opportunity" or "odds"."""

_RATES = np.linspace(0.0, 1.0, 101)

Array = NDArray[Any]


_MORE_PROBABLE = "the more probable class"


@dataclass(frozen=True)
class Thresholds:
    """The positive of two classes is answered where its probability is above the threshold of its group, or the one.

    The `source` says in words where the numbers come from, `of` which class is the positive one.
    """

    by_group: Mapping[str, float] = field(default_factory=dict)
    one: float = 0.5
    source: str = _MORE_PROBABLE
    of: str = ""

    def __str__(self) -> str:
        by_group = ", ".join(f"{group} {number(value, 4)}" for group, value in self.by_group.items())
        of = f" of {self.of!r}" if self.of else ""
        return f"threshold {by_group or number(self.one, 4)}{of} ({self.source})"

    @property
    def given(self) -> bool:
        """True if these thresholds were asked for."""
        return self.source != _MORE_PROBABLE


def settle(
    wanted: Asked,
    experiment: Experiment,
    outputs: HeldOutOutputs | None,
    *,
    groups: tuple[str, ...],
    classes: tuple[str, ...],
    positive: int | None = None,
    scores: Scores | None = None,
) -> Thresholds:
    """The thresholds that were asked for, by names of groups and classes.

    They are of the probability of the class ``positive``, by default the second of two. Rules read the noised counts of
    ``scores`` that the run released, where it did (post-processing), and held-out outputs elsewhere.

    Raises:
        ExperimentError: if the run has no two classes, a number is not in [0, 1], groups are missing, or there are no
            held-out records that rules could be found on without a look at private ones.
    """
    index = 1 if positive is None else positive
    of = classes[index] if len(classes) == 2 else ""
    if wanted is None:
        return Thresholds(of=of)
    facts = task_facts(experiment.objective.task)
    if not (facts.supervised and facts.classifies) or len(classes) != 2:
        raise ExperimentError(
            f"a threshold is for a classifier of two classes; the run {experiment.name!r} is "
            f"{experiment.objective.task} with {len(classes)} classes: leave it out"
        )
    if isinstance(wanted, str):
        if wanted not in RULES:
            raise ExperimentError(
                f"threshold is {wanted!r}; give a number from 0 to 1, GROUP=NUMBER for every group, or one of "
                f"{', '.join(map(repr, RULES))}"
            )
        if scores is not None:
            return _of_scores(wanted, scores, groups, of, index)
        return _by_rule(wanted, experiment, outputs, groups, index, of)
    if not isinstance(wanted, Mapping):
        return Thresholds({}, _probability(wanted), "as given", of)
    if set(wanted) != set(groups):
        raise ExperimentError(
            f"thresholds are given for {', '.join(map(repr, wanted)) or 'no group'}; the run's groups are "
            f"{', '.join(map(repr, groups))}, and each needs one"
        )
    return Thresholds({group: _probability(wanted[group]) for group in groups}, source="as given", of=of)


def _of_scores(rule: str, scores: Scores, groups: tuple[str, ...], positive: str, index: int) -> Thresholds:
    """Thresholds by a rule from noised counts of a run's records: no record is looked at again."""
    cuts, words = cuts_of(scores, rule, index), RULES[rule].format(repr(positive))
    source = f"{words}: read off noised counts of {int(scores.records.sum())} records, within the run's guarantee"
    if rule == "best":
        return Thresholds({}, cuts.by_group[0], source, positive)
    few = ", ".join(groups[group] for group in cuts.few)
    source += f"; noise leaves {few} the threshold of all" if few else ""
    return Thresholds(_named(cuts, groups), source=f"{source}; the group is read of every record", of=positive)


def _named(cuts: Cuts, groups: tuple[str, ...]) -> dict[str, float]:
    return dict(zip(groups, cuts.by_group, strict=True))


def _by_rule(
    rule: str,
    experiment: Experiment,
    outputs: HeldOutOutputs | None,
    groups: tuple[str, ...],
    favourable: int,
    positive: str,
) -> Thresholds:
    held_out = _measured(rule, experiment, outputs)
    second, right, sensitive = held_out.values[:, 0], held_out.target == favourable, held_out.sensitive
    scores = second if favourable == 1 else 1 - second
    words = RULES[rule].format(repr(positive))
    source = f"{words}: found on {len(scores)} held-out records, which the guarantee does not cover"
    if rule == "best":
        best = best_threshold(torch.from_numpy(scores), torch.from_numpy(right.astype(np.int64)))
        return Thresholds({}, best["threshold"], source, positive)
    if rule == "odds":
        cuts_of_odds = cuts_of(scores_of_outputs(held_out, groups=len(groups), positive=favourable), rule)
        return Thresholds(_named(cuts_of_odds, groups), source=source, of=positive)
    judged = right if rule == "opportunity" else np.ones(len(scores), dtype=bool)
    apart = [scores[judged & (sensitive == index)] for index in range(len(groups))]
    for group, group_scores in zip(groups, apart, strict=True):
        if len(group_scores) < FEWEST:
            kind = f" of {positive!r}" if rule == "opportunity" else ""
            raise ExperimentError(
                f"there are {len(group_scores)} held-out records{kind} of the group {group!r}, and a threshold of its "
                f"own needs {FEWEST} or more; give numbers, or more held-out records"
            )
    cuts = np.array([[_above(group_scores, rate) for group_scores in apart] for rate in _RATES])
    agreement = [((scores > cut[sensitive]) == right).mean() for cut in cuts]
    chosen = cuts[int(np.argmax(agreement))]
    return Thresholds(dict(zip(groups, map(float, chosen), strict=True)), source=source, of=positive)


def _measured(rule: str, experiment: Experiment, outputs: HeldOutOutputs | None) -> HeldOutOutputs:
    """The held-out outputs that a rule may look at."""
    if outputs is None and experiment.data.held_out_released:
        raise ExperimentError(
            f"the threshold {rule!r} is found on single held-out records, and of those that clients of the run "
            f"{experiment.name!r} kept out of training counts were released, once, at the threshold 0.5: give numbers, "
            "or train with data.held_out or [thresholds]"
        )
    if outputs is None:
        raise ExperimentError(
            f"the threshold {rule!r} is found on held-out records, and the run {experiment.name!r} has none; give "
            "numbers, or train with data.held_out, or with [thresholds], which counts scores within the guarantee"
        )
    if experiment.data.shows_private_rows:
        raise ExperimentError(
            f"the threshold {rule!r} would be found on held-out records that may be private ones "
            "(data.held_out_overlap = 'allow'), outside any guarantee; give numbers"
        )
    return outputs


def _above(scores: Array, rate: float) -> float:
    """A threshold that this share of the scores (n,) is above, as nearly as their number and ties allow."""
    ordered = np.sort(scores)[::-1]
    count = round(rate * len(ordered))
    if count == 0:
        return 1.0
    if count == len(ordered):
        return 0.0
    return float((ordered[count - 1] + ordered[count]) / 2)


def _probability(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ExperimentError(f"threshold is {value!r}; it must be a number from 0 to 1")
    return float(value)
