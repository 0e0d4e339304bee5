"""Thresholds by group, from noised counts of scores: post-processing of one release, for every rule.

A model's scores are counted by group, label and bin (`fedsw.learning.tasks.score_counts`); a group's records of a bin
count as evenly spread in it. No randomness: the same counts give the same thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw.learning.tasks import metrics
from fedsw.learning.tasks.calibration import LogitCalibration
from fedsw.learning.tasks.score_counts import BINS, BOTH, ScoreCounts
from fedsw.runs.evaluation.held_out_metrics import OnceReleased, as_many, read_once
from fedsw.runs.run_files import RunFile, read_as, write_json
from fedsw.runs.view import HeldOutOutputs

Array = NDArray[np.float64]

RULES: Mapping[str, str] = {
    "best": "one threshold, right most often",
    "parity": "a threshold for each group, all groups selected alike",
    "opportunity": "a threshold for each group, records of {} selected alike in all groups",
    "odds": "a threshold for each group, records of each class selected as alike as one threshold a group can",
}
"""The rules by name, in words with a place for the positive class."""

FEWEST = 20
"""Least records of a group with its own threshold."""

_MOST_BAND = 0.25
"""A group has its own threshold only if two standard deviations of noise move its selected share by at most this."""

_EDGES = np.linspace(0.0, 1.0, BINS + 1)
# Candidates: four thresholds in a bin, within which counts are interpolated, and selected shares in steps of 0.5 %.
_TRIED = np.linspace(0.0, 1.0, 4 * BINS + 1)
_RATES = np.linspace(0.0, 1.0, 201)


@dataclass(frozen=True, eq=False)
class Scores(OnceReleased):
    """The one release of scores: `values` are noised counts, (groups, width), in the order of `ScoreCounts`.

    ``calibration`` is the correction of probabilities by them, if any. A single number of records for several groups is
    the declared one: the groups' own are secret.
    """

    calibration: LogitCalibration | None = None


def keep(folder: Path, scores: Scores) -> None:
    """Put the release on disk, in a run's folder: it cannot be paid for again."""
    calibrated = {} if scores.calibration is None else {"calibration": scores.calibration.said()}
    write_json(folder / RunFile.SCORES, scores.content() | calibrated)


def kept(folder: Path) -> Scores | None:
    """The release in a run's folder; None before there is one, ValueError if its file is damaged."""

    def made(content: Mapping[str, Any]) -> Scores:
        calibrated = content.get("calibration")
        calibration = None if calibrated is None else LogitCalibration.read(calibrated)
        scores = Scores(**read_once(content), calibration=calibration)
        if scores.values.ndim != 2 or len(scores.records) not in (1, len(scores.values)):
            raise ValueError(f"its values are of shape {scores.values.shape}")
        return scores

    return read_as(folder / RunFile.SCORES, made)


@dataclass(frozen=True)
class Cuts:
    """A threshold for every group, with its expected results.

    Attributes:
        by_group: thresholds of the probability of the positive class, above which it is predicted.
        selected: the share of each group for which it is predicted, by the noised counts.
        bands: two standard deviations of the noise in these shares.
        accuracy: share of correct predictions, by the noised counts.
        few: groups, by number, with the threshold of all records together, as noise hides theirs.
    """

    by_group: tuple[float, ...]
    selected: tuple[float, ...]
    bands: tuple[float, ...]
    accuracy: float
    few: tuple[int, ...] = ()


def band_of(sigma: float, records: float, numbers: int = 2 * BINS) -> float:
    """Two standard deviations of the noise in a share above a threshold, at most 1; the worst is half of the counts.

    All counts are moved alike to add up to the public number of records, which takes away half of the variance of a sum
    of half of them: a quarter of ``numbers`` times sigma² is left.
    """
    return min(1.0, sigma * math.sqrt(numbers) / records) if records >= 1 else 1.0


class _Curves:
    """Shares of one group's records, or of all groups', above every threshold, of all labels and of each."""

    def __init__(self, counts: Array, records: float, sigma: float) -> None:
        """From noised counts (BINS, 2) by bin and label, the number of records, and the noise's standard deviation."""
        self.records, self._sigma = float(records), sigma
        self.above = np.concatenate([np.cumsum(counts[::-1], axis=0)[::-1], np.zeros((1, 2))])  # at every edge
        self._labels = self.above[0]

    def share(self, label: int | None) -> Array:
        """The share (BINS + 1,) of records, of a label or all, above every edge: from 1 to 0, and never rising."""
        above = self.above.sum(axis=1) if label is None else self.above[:, label]
        share = above / max(1.0, self.records if label is None else self._labels[label])
        share[0], share[-1] = 1.0, 0.0
        share = np.clip(share, 0.0, 1.0)
        # Noise makes it rise somewhere: take the middle of the largest falling curve below, the smallest above.
        falling = (np.minimum.accumulate(share) + np.maximum.accumulate(share[::-1])[::-1]) / 2
        return falling

    def band(self, label: int | None) -> float:
        """Upper limit of two standard deviations of the noise in a share; infinite for too few records."""
        many = self.records if label is None else float(self._labels[label])
        numbers = 2 * BINS if label is None else BINS
        return band_of(self._sigma, many, numbers) if many >= FEWEST else math.inf

    def right(self, cut: float | Array) -> Any:
        """Number of correct predictions at thresholds."""
        positive, negative = (np.interp(cut, _EDGES, self.above[:, label]) for label in (1, 0))
        return positive + self._labels[0] - negative


def cuts_of(scores: Scores, rule: str, positive: int = 1) -> Cuts:
    """Thresholds by a rule of `RULES`; of all that a rule admits, those with the highest accuracy by the counts.

    They are of the probability of the class ``positive``, which is calibrated if the release has a calibration.

    A group with fewer than `FEWEST` records, or too much noise in its shares, gets the threshold of all records
    together; if those have too much noise, too, every group gets 1/2.
    """
    if rule not in RULES:
        raise ValueError(f"rule {rule!r} is unknown: choose {', '.join(map(repr, RULES))}")
    groups, bins = len(scores.values), scores.values.shape[1] // 2
    sizes, sigma = scores.records, scores.sigma
    if len(sizes) < groups:  # secret: sizes are sums of noised counts, and noise is in a share's numerator and size
        sizes, sigma = np.maximum(0.0, scores.values.sum(axis=1)), 2 * sigma
    counts = as_many(scores.values, sizes).reshape(groups, bins, 2)
    if bins > BINS:  # calibration has finer bins at both ends
        counts = np.add.reduceat(counts, np.searchsorted(np.array(BOTH), _EDGES[:-1]), axis=1)
    apart = [_Curves(counts[group], sizes[group], sigma) for group in range(groups)]
    together = _Curves(counts.sum(axis=0), float(sizes.sum()), sigma * math.sqrt(max(1, int((sizes > 0).sum()))))
    if scores.calibration is not None and not scores.calibration.scale:
        # Every record has the class shares as probabilities: one answer for all.
        share = float(scores.calibration.of_positive(np.array(0.5), positive))
        alike = ((0.5,) * groups, (float(share > 0.5),) * groups, (0.0,) * groups)
        return Cuts(*alike, max(share, 1 - share), tuple(range(groups)))
    label = {"opportunity": 1}.get(rule)
    judged: tuple[int | None, ...] = (0, 1) if rule == "odds" else (label,)
    few = tuple(g for g, curves in enumerate(apart) if max(map(curves.band, judged)) > _MOST_BAND)
    used = [together if group in few else curves for group, curves in enumerate(apart)]
    if max(map(together.band, judged)) > _MOST_BAND:
        few, chosen = tuple(range(groups)), np.full(groups, 0.5)
    elif rule == "best":
        few, chosen = (), np.full(groups, _TRIED[int(np.argmax(together.right(_TRIED)))])
    elif rule == "odds":
        chosen = _odds(apart, used, together)
    else:
        tried = np.array([[_cut(curves.share(label), rate) for curves in used] for rate in _RATES])
        chosen = tried[int(np.argmax([_right(apart, cuts) for cuts in tried]))]
    selected = [float(np.interp(cut, _EDGES, curves.share(None))) for curves, cut in zip(apart, chosen, strict=True)]
    bands = [band_of(sigma, count, 2 * bins) for count in sizes.tolist()]
    accuracy = _right(apart, chosen) / max(1.0, together.records)
    if scores.calibration is not None:
        chosen = scores.calibration.of_positive(chosen, positive)
    return Cuts(tuple(map(float, chosen)), tuple(selected), tuple(bands), float(accuracy), few)


def _right(apart: list[_Curves], cuts: Array) -> float:
    """Number of correct predictions in all groups at thresholds (groups,)."""
    return float(sum(curves.right(cut) for curves, cut in zip(apart, cuts, strict=True)))


def _cut(share: Array, rate: float) -> float:
    """The threshold with that share of records above it, by shares (BINS + 1,) above the edges; of ties the highest."""
    if rate <= 0:
        return 1.0
    if rate >= 1:
        return 0.0
    bin_ = int(np.flatnonzero(share >= rate)[-1])  # the last edge with at least that share above it
    within = (share[bin_] - rate) / (share[bin_] - share[bin_ + 1])
    return float(_EDGES[bin_] + within / BINS)


def _odds(apart: list[_Curves], used: list[_Curves], together: _Curves) -> Array:
    """Thresholds (groups,) that maximise accuracy less the largest gap in a class's selected share.

    One threshold for each group cannot equalise both rates. Candidates are, for every point of a group's ROC curve, the
    nearest points of the other groups' curves.
    """

    def rates(curves: _Curves) -> Array:
        return np.stack([np.interp(_TRIED, _EDGES, curves.share(label)) for label in (0, 1)], axis=1)

    points = [rates(curves) for curves in used]
    best, chosen = -math.inf, np.full(len(used), 0.5)
    for reference in np.concatenate([rates(together), *points]):
        places = [int(np.abs(curve - reference).max(axis=1).argmin()) for curve in points]
        reached = np.array([curve[position] for curve, position in zip(points, places, strict=True)])
        cuts = _TRIED[places]
        value = _right(apart, cuts) / max(1.0, together.records) - float(np.ptp(reached, axis=0).max())
        if value > best:
            best, chosen = value, cuts
    return chosen


def scores_of_outputs(outputs: HeldOutOutputs, *, groups: int, positive: int) -> Scores:
    """Counts of held-out outputs in the form of a release, without noise: for holders of these records."""
    counts, sensitive = ScoreCounts(groups, positive), outputs.sensitive
    places = counts.places(torch.from_numpy(outputs.values), torch.from_numpy(outputs.target)).numpy()
    values = np.zeros((groups, counts.width))
    np.add.at(values, (sensitive, places[:, 0]), 1.0)
    return Scores(values, 0.0, np.bincount(sensitive, minlength=groups), 0, 0, 0.0)


def metrics_at(cuts: Cuts, outputs: HeldOutOutputs, *, positive: int) -> dict[str, float]:
    """Accuracy and fairness of thresholds on held-out outputs, for a run's summary."""
    probabilities, groups = outputs.values[:, 0], len(cuts.by_group)
    scores = probabilities if positive == 1 else 1 - probabilities
    above = scores > np.array(cuts.by_group)[outputs.sensitive]
    predicted = torch.from_numpy(np.where(above, positive, 1 - positive))
    target, sensitive = torch.from_numpy(outputs.target).long(), torch.from_numpy(outputs.sensitive).long()
    report = metrics.classification(
        torch.from_numpy(outputs.values), predicted, target, sensitive, groups=groups, positive=positive
    )
    return {name: report[name] for name in _MEASURED}


_MEASURED = ("accuracy", "disparate_impact", "demographic_parity_difference", "equalized_odds_difference")
