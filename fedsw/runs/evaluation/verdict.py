"""A run's numbers in words: warnings that a reader must not miss, and signal against noise.

The verdict of a page is `verdict` in `fedsw.runs.report.facts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedsw._tools.text import apart, between, measured, number, to_float, upward
from fedsw.runs.evaluation.intervals import Gain, Interval
from fedsw.runs.evaluation.quality import Quality

MOST_EPSILON = 10.0
"""Above it a guarantee means little: an adversary's odds about a record may move by e^10, and more."""

SHARES_ALONE = "every record gets the class shares as its probabilities"
"""For a run with a model that is not above the noise of the counts of scores."""

STARTED = (
    "the start came from the released moments, which did the learning; the rounds added little that can be told from "
    "noise"
)
"""For a signal below `FELT` in a run that began from released moments."""

FELT = 1.5
"""Signal to noise of a whole run below which rounds are mostly noise."""

_CLEAR = 5.0
"""Signal to noise of a whole run from which noise is small."""
_FAIR = 0.8
"""The 4/5 rule's disparate impact."""
_SURE = 3.0
"""Standard deviations of pure noise above which there is a signal."""


def warnings_of(
    *,
    metrics: Mapping[str, float],
    quality: Quality,
    records: int,
    start: float | None,
    epsilon: float | None,
    completed: bool = True,
    at_clients: bool = False,
    rise: Gain | None = None,
    calibration: Mapping[str, Any] | None = None,
    groups: Mapping[str, float] | None = None,
    alpha: float = 0.0,
) -> tuple[str, ...]:
    """List the warnings that come before a run's metrics, the worst first; `records` are held out.

    Without noise `epsilon` is infinite; it is None if a model is measured again. The held-out loss was `start`
    before training, and is larger by `rise`, record by record. Clients may keep records to measure on (`at_clients`),
    with metrics for their operators. The `calibration` is the summary's entry on it.
    """
    warnings = [
        *_of_loss(metrics, start, rise),
        *_of_constant(metrics, quality, records, alpha),
        *_of_bias(quality),
        *_of_probabilities(metrics, quality, calibration),
        *_of_fairness(metrics, quality, records, groups or {}),
    ]
    if MOST_EPSILON < (epsilon or 0.0) < math.inf:
        warnings.append(f"ε = {upward(epsilon)} is above {upward(MOST_EPSILON)}: it protects a record in name only")
    if completed and records == 0 and at_clients:
        warnings.append(
            "how good the model is, only clients can see: `fedsw evaluate` measures it on the records that each keeps "
            "out of training, at its operator's screen"
        )
    elif completed and records == 0:
        warnings.append(
            "the model's quality is unknown: there are no held-out records. Name a table without private records with "
            "data.held_out, or keep a part of clients' records out of training with data.held_out_fraction"
        )
    return tuple(warnings)


def signal_to_noise(history: Sequence[Mapping[str, Any]], parameters: int) -> dict[str, Any]:
    """The ratio of signal to noise over a run, from released vectors only, with its meaning; empty without noise.

    ||released||^2 / sigma^2 - r has mean ||signal||^2 / sigma^2 in every round, and its mean over rounds is less noisy.
    It reads nothing private. Of pure noise that mean has standard deviation sqrt(2 r / rounds); up to three of these
    the run's signal counts as 0. The ratio is one of released sums, not of model quality: random labels have gradients,
    too.

    Lines of a run's metrics have sigma and gradient_norm; `parameters` is r, the length of a released vector.
    """
    pairs = [(to_float(row.get("gradient_norm")), to_float(row.get("sigma"))) for row in history]
    excess = [norm**2 / sigma**2 - parameters for norm, sigma in pairs if norm is not None and sigma]
    if not excess or not all(math.isfinite(value) for value in excess):
        return {}
    mean, chance = sum(excess) / len(excess), math.sqrt(2 * parameters / len(excess))
    ratio = math.sqrt(max(0.0, mean) / parameters)
    whole = ratio * math.sqrt(len(excess)) if mean > _SURE * chance else 0.0
    if whole >= _CLEAR:
        words = "what was summed is well above its noise; whether the model is of use, only held-out metrics say"
    elif whole >= FELT:
        words = "the noise is felt: more records, a larger ε or fewer parameters would help"
    else:
        words = (
            "mostly noise: the rounds may have taught the model nothing; more records, a larger ε or fewer parameters "
            "would help"
        )
    return {"a_round": ratio, "the_run": whole, "rounds": len(excess), "words": words}


def _of_loss(metrics: Mapping[str, float], start: float | None, rise: Gain | None) -> Iterator[str]:
    """A loss that is not finite, or that rose by more than the draw of held-out records explains."""
    loss = metrics.get("loss")
    if loss is None:
        return
    if not math.isfinite(loss):
        yield "the loss is not finite: training failed. Lower training.learning_rate"
    elif start is not None and rise is not None and rise.above:
        before, after = apart(start, loss)
        yield (
            f"the loss rose from {before} before training to {after}, by {measured(rise.value, rise[1:])}: the run "
            "made the model worse. Lower training.learning_rate, or add records or ε"
        )


def _of_constant(metrics: Mapping[str, float], quality: Quality, records: int, alpha: float) -> Iterator[str]:
    weight = ""
    if alpha > 0:  # the noise of its gradient depends on the smallest group
        weight = (
            f". The penalty (objective.alpha = {number(alpha, 3)}) weighs on accuracy, the more the smaller a group "
            "is: compare with objective.alpha=0"
        )
    names = ("accuracy", "root_mean_squared_error", "mean_squared_error")
    name = next((metric for metric in names if metric in quality.constant), names[-1])
    if quality.gain is None or name not in metrics or name not in quality.constant:
        return
    shown = measured(metrics[name], quality.intervals.get(name))
    constant = measured(quality.constant[name], quality.constant_intervals.get(name))
    what = name.replace("_", " ")
    if quality.one_answer and not quality.noised:
        yield (
            f"the model answers the same for every record: its {what} {shown} is a constant's, and groups are equal "
            "for that reason alone"
        )
    elif quality.one_answer:
        assert quality.others is not None
        yield (
            "the model may answer the same for every record: the share of other answers than the most frequent cannot "
            f"be told from 0 ({between(quality.others)}); rates of groups and classes then are noise"
        )
    if quality.gain.below:
        yield f"worse than a constant: {what} {shown}, where {quality.answer} scores {constant}{weight}"
    elif not quality.gain.above and (quality.noised or not quality.one_answer):
        noise = " and the noise in what was counted of them" if quality.noised else ""
        gap = measured(quality.gain.value, quality.gain[1:]) + " in squared error" * name.startswith("root_")
        yield (
            f"cannot be told from a constant: {what} {shown}, where {quality.answer} scores {constant}; the "
            f"difference, {gap}, is within what {records} held-out records{noise} allow{weight}"
        )


_BIASED = 0.1
"""A difference of means is reported if it is above this part of the targets' mean."""


def _of_bias(quality: Quality) -> Iterator[str]:
    """A regression with biased answers, as clipped losses of skewed counts cause."""
    if quality.bias is None:
        return
    answers, truth, around = quality.bias
    surely = around.low > 0 or around.high < 0
    if surely and abs(answers - truth) > _BIASED * abs(truth):
        yield (
            f"biased: answers are {number(answers, 3)} on average, where {number(truth, 3)} is so (difference "
            f"{measured(answers - truth, around)}): sums and means of predictions are off by as much"
        )


def _of_probabilities(
    metrics: Mapping[str, float], quality: Quality, calibration: Mapping[str, Any] | None
) -> Iterator[str]:
    """Probabilities that are worse than the class shares only, on held-out records or by the counts of calibration."""
    said = calibration or {}
    if missing := said.get("missing"):
        yield str(missing)
    if said.get("scale") == 0:
        yield (
            f"{SHARES_ALONE}: what the model learnt is not above the noise of the counts of scores; more records or a "
            "larger ε would help"
        )
        return
    loss, around, shares = metrics.get("loss"), quality.intervals.get("loss"), quality.constant.get("loss")
    if loss is None or around is None or shares is None:
        if "log_loss" not in said:
            return
        loss, shares = said["log_loss"]["value"], said["log_loss_of_shares"]
        around = Interval(said["log_loss"]["low"], said["log_loss"]["high"])
    if around.low > shares:
        more = "more records or a larger ε would help" if said else "set calibration.share, as in 0.1"
        yield (
            f"probabilities are worse than the class shares alone: log loss {measured(loss, around)}, the class "
            f"shares' {number(shares, 3)}. Read which class is more probable, and not how probable; {more}"
        )


def _of_fairness(
    metrics: Mapping[str, float], quality: Quality, records: int, groups: Mapping[str, float]
) -> Iterator[str]:
    """A disparate impact that cannot be told from the 4/5 rule's 0.8, and how many more records could."""
    impact, interval = to_float(metrics.get("disparate_impact")), quality.intervals.get("disparate_impact")
    if impact is None or interval is None or quality.one_answer:
        return
    if interval.low < _FAIR < interval.high:
        of = f" of {quality.impact_of}" if quality.impact_of else ""
        shown = f"disparate impact{of} {measured(impact, interval)} from the {_FAIR:g} of the 4/5 rule"
        sizes = {name: size for name, size in groups.items() if size == size}
        if not sizes:
            yield f"too few held-out records: {records} cannot tell {shown}"
            return
        least = min(sizes, key=lambda name: sizes[name])
        # An interval narrows with the square root of the smallest group's records.
        aside = interval.low if impact < _FAIR else interval.high
        towards = interval.high if impact < _FAIR else interval.low
        wide, gap = abs(towards - impact) or abs(aside - impact), abs(impact - _FAIR)
        wanted = sizes[least] * (wide / gap) ** 2 if gap > 0.01 else math.inf
        more = (
            f", and about {float(number(wanted - sizes[least], 2)):,.0f} more of it would"
            if wanted < _MOST_WANTED
            else ""
        )
        yield (
            f"too few held-out records of {least!r}: about {number(sizes[least], 3)} of {records} cannot tell {shown}"
            f"{more}"
        )


_MOST_WANTED = 1e7
"""Most records of a group that are named as enough; beyond, the ratio is 0.8 itself."""
