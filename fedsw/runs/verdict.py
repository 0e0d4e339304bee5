"""What a run's numbers mean, in words: warnings that a reader must not miss, and signal against noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedsw.runs.quality import Quality
from fedsw.text import number, to_float

MOST_EPSILON = 10.0
"""Above it a guarantee says little: a reader's odds about a record may move by e^10, and more."""

_FAIR = 0.8
_SURE = 3.0
"""Standard deviations of pure noise beyond which a signal is believed to be there."""
_CHANCE = 1.96


def warnings_of(
    *,
    metrics: Mapping[str, float],
    quality: Quality,
    records: int,
    start: float | None,
    epsilon: float,
    noisy: bool,
    completed: bool = True,
    at_clients: bool = False,
) -> tuple[str, ...]:
    """What a reader of a run must know before its metrics, the worst first.

    Args:
        metrics: held-out ones by name.
        records: how many held-out records they are of.
        start: held-out loss of the initial model; None where there is none.
        epsilon: of the guarantee.
        noisy: whether there is a guarantee.
        at_clients: whether clients keep records to measure on, whose metrics their operators see.
    """
    found = [
        *_of_loss(metrics, start),
        *_of_constant(metrics, quality, records),
        *_of_fairness(metrics, quality, records),
    ]
    if noisy and epsilon > MOST_EPSILON:
        found.append(f"ε = {number(epsilon)} is above {MOST_EPSILON:g}: it protects a record in name only")
    if completed and records == 0 and at_clients:
        found.append(
            "how good the model is, only clients can see: `fedsw evaluate` measures it on the records that each keeps "
            "out of training, at its operator's screen"
        )
    elif completed and records == 0:
        found.append(
            "nobody knows how good the model is: there are no held-out records. Name a table that holds nobody's "
            "private record with data.held_out, or keep a part of clients' records out of training with "
            "data.held_out_fraction"
        )
    return tuple(found)


def signal_to_noise(history: Sequence[Mapping[str, Any]], parameters: int) -> dict[str, Any]:
    """The ratio of signal to noise over a run, from released vectors alone, and what it means; empty without noise.

    ||released||^2 / sigma^2 - r has mean ||signal||^2 / sigma^2 in every round, and its mean over rounds is less noisy:
    it reads nothing private. Of pure noise that mean has standard deviation sqrt(2 r / rounds); up to three of these
    there is no signal to speak of, and that of the run is 0.

    Args:
        history: the lines of a run's metrics, with sigma and gradient_norm.
        parameters: r, the length of a released vector.
    """
    pairs = [(to_float(row.get("gradient_norm")), to_float(row.get("sigma"))) for row in history]
    excess = [norm**2 / sigma**2 - parameters for norm, sigma in pairs if norm is not None and sigma]
    if not excess or not all(math.isfinite(value) for value in excess):
        return {}
    mean, chance = sum(excess) / len(excess), math.sqrt(2 * parameters / len(excess))
    ratio = math.sqrt(max(0.0, mean) / parameters)
    whole = ratio * math.sqrt(len(excess)) if mean > _SURE * chance else 0.0
    if whole >= 5:
        words = "the signal is well above the noise"
    elif whole >= 1.5:
        words = "the noise is felt: more records, a larger ε or fewer parameters would help"
    else:
        words = (
            "mostly noise: the model may have learnt nothing; more records, a larger ε or fewer parameters would help"
        )
    return {"a_round": ratio, "the_run": whole, "rounds": len(excess), "words": words}


def _of_loss(metrics: Mapping[str, float], start: float | None) -> Iterator[str]:
    loss = metrics.get("loss")
    if loss is None:
        return
    if not math.isfinite(loss):
        yield "the loss is not finite: training failed. Lower training.learning_rate"
    elif start is not None and math.isfinite(start) and loss > start:
        yield (
            f"the loss rose from {number(start)} before training to {number(loss)}: the run made the model worse. "
            "Lower training.learning_rate, or add records or ε"
        )


def _of_constant(metrics: Mapping[str, float], quality: Quality, records: int) -> Iterator[str]:
    name = "accuracy" if "accuracy" in quality.constant else "mean_squared_error"
    if quality.gain is None or name not in metrics or name not in quality.constant:
        return
    shown, constant = number(metrics[name]), number(quality.constant[name])
    what = name.replace("_", " ")
    if quality.one_answer:
        yield (
            f"the model answers the same for every record: its {what} {shown} is a constant's, and groups are equal "
            "for that reason alone"
        )
    elif quality.below_constant:
        yield f"worse than a constant: {what} {shown}, where {quality.answer} scores {constant}"
    if quality.within_chance and not quality.one_answer:
        gap = number(abs(quality.gain[0]))
        yield (
            f"too few held-out records: {records} cannot tell {what} {shown} from the {constant} of {quality.answer} "
            f"(difference {gap} ± {number(_CHANCE * quality.gain[1])})"
        )


def _of_fairness(metrics: Mapping[str, float], quality: Quality, records: int) -> Iterator[str]:
    """A disparate impact on one side of the 4/5 rule that chance could put on the other."""
    impact, error = to_float(metrics.get("disparate_impact")), quality.standard_errors.get("disparate_impact")
    if impact is None or error is None or not math.isfinite(impact) or quality.one_answer:
        return
    if abs(impact - _FAIR) < _CHANCE * error:
        yield (
            f"too few held-out records: {records} cannot tell disparate impact {number(impact)} from the {_FAIR:g} of "
            f"the 4/5 rule (± {number(_CHANCE * error)})"
        )
