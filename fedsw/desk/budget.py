"""`fedsw.budget`: noise multiplier, epsilon and steps, of which two are given, in words and beside others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from fedsw._tools.text import downward, upward
from fedsw.experiment import DEFAULT_DELTA, resolve_delta
from fedsw.privacy.accounting import Slicing, Step, budget_report, epsilon_by
from fedsw.runs.report.answer import Answer
from fedsw.runs.report.document import Document, Listed, named

_STEPS = 50
"""Steps that are assumed: the rounds of a drafted experiment."""
_SOLVED = {"epsilon": "ε", "noise_multiplier": "the noise multiplier", "steps": "the number of steps"}


def budget(
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    delta: float | None = None,
    sampling_rate: float | None = None,
    records: int | None = None,
    batch: int | None = None,
    sampling: Literal["without-replacement", "poisson"] = "without-replacement",
    slices: int | None = None,
    dimension: int | None = None,
    directions_scheme: Literal["iid", "orthogonal"] | None = None,
    diameter: float | None = None,
    noise: float | None = None,
    compare: bool = True,
) -> Answer:
    """Work out epsilon, noise multiplier or number of steps from the others.

    Args:
        epsilon, noise_multiplier, steps: two of them; sigma / Delta with Delta the full sensitivity under replacement.
        delta: of the guarantee, well below 1 / records; left out, "auto" of `records`.
        sampling_rate: share of a group's records in a batch, in (0, 1]; or `records`, and `batch` of them, all if it is
            left out. With `records` 50 steps are assumed where two numbers are not given.
        sampling: how batches are drawn.
        slices, dimension, directions_scheme: of features that are released through random directions.
        diameter, noise: the most that a replacement moves the features, and sigma in each slice, for a multiplier.
        compare: tell what other accountants say.

    Returns:
        The guarantee, the bracket it lies in, and the accountants, which are the rows of `to_frame()`.

    Raises:
        ValueError: naming the number that does not fit.
    """
    slicing = None
    if slices is not None and dimension is not None:
        slicing = Slicing(dimension, slices, directions_scheme or "iid")
    elif slices is not None or dimension is not None or directions_scheme is not None:
        raise ValueError(
            f"slices is {slices} and dimension is {dimension}; random slices need both, --slices K --dimension D."
        )
    multiplier = noise_multiplier
    if noise is not None:
        if noise_multiplier is not None or diameter is None:
            raise ValueError(f"noise is {noise}; give it with --diameter, and no --noise-multiplier beside it.")
        if not (0.0 < noise < math.inf and 0.0 < diameter < math.inf):
            raise ValueError(f"noise is {noise} and diameter is {diameter}; both must be positive and finite.")
        multiplier = noise / diameter
    known: dict[str, Any] = {"delta": delta, "batch": batch, "steps": steps}
    assumed: dict[str, float] = {}
    if records is not None and sampling_rate is None:
        assumed = _assumed(records, known, solvable=(epsilon is None) != (multiplier is None))
        known |= assumed
    if known["delta"] is None:
        raise ValueError("delta is not given; write --delta, well below 1 / records, or --records for 'auto'.")
    report: dict[str, Any] = budget_report(
        sampling_rate=_rate(sampling_rate, records, known["batch"]),
        delta=known["delta"],
        noise_multiplier=multiplier,
        epsilon=epsilon,
        steps=known["steps"],
        sampling=sampling,
        slicing=slicing,
        diameter=diameter,
    )
    if assumed:
        report = {**report, "assumed": assumed}
    if not compare:
        del report["accountants"]
    rows, cells = report.get("accountants", ()), list[tuple[str, ...]]()
    for row in rows:  # one that is not installed has no epsilon
        holds = "–" if row["epsilon"] is None else "yes" if row["guarantee"] else "no"
        cells.append((row["name"], upward(row["epsilon"], 5), holds, row["note"]))
    heads = ("accountant", "ε", "a guarantee?", "what it is")
    accountants = [Listed.of("Accountants", heads, cells, left=(heads[0], *heads[2:]), whole=heads[:3])] * compare
    return Answer(report, lambda: Document("", begins=(named(_rows(report)), *accountants)), rows)


def epsilon(
    noise_multiplier: float,
    delta: float,
    *,
    sampling_rate: float,
    steps: int,
    sampling: Literal["without-replacement", "poisson"] = "without-replacement",
    accountant: str = "pld",
) -> float:
    """Epsilon of so many releases at a noise multiplier, sigma / Delta; what `fedsw.noise_multiplier` inverts.

    Guarantee: they are (epsilon, delta)-differentially private together, for the replacement of a record within its
    stratum, or of Poisson batches for its addition or removal (docs/guarantees/accounting.md). ValueError for numbers
    out of range.
    """
    if not 0.0 < noise_multiplier < math.inf:
        raise ValueError(f"noise_multiplier is {noise_multiplier}; it is above 0 and finite")
    return epsilon_by(accountant, [(Step(sampling_rate, 1 / noise_multiplier, sampling), steps)], delta)


def _assumed(records: int, known: Mapping[str, float | None], *, solvable: bool) -> dict[str, float]:
    """Return what is assumed where nothing is given: 50 steps on all records, and δ, as `fedsw init` drafts them."""
    if records < 1:
        raise ValueError(f"records is {records}; it must be at least 1.")
    usual: dict[str, float] = (
        {} if known["delta"] is not None else {"delta": resolve_delta(DEFAULT_DELTA, records=records)}
    )
    usual |= {"batch": records}
    usual |= {"steps": _STEPS} if solvable else {}
    return {name: value for name, value in usual.items() if known[name] is None}


def _rate(sampling_rate: float | None, records: int | None, batch: int | None) -> float:
    if sampling_rate is not None and records is None and batch is None:
        return sampling_rate
    if sampling_rate is not None or records is None or batch is None:
        raise ValueError(
            f"give --sampling-rate, or both --records and --batch; sampling rate is {sampling_rate}, records is "
            f"{records}, batch is {batch}."
        )
    if not 1 <= batch <= records:
        raise ValueError(f"batch is {batch} of records {records}; it must be at least 1 and at most all records.")
    return batch / records


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    epsilon, lowest = upward(report["epsilon"], 5), downward(max(0.0, report["bracket"]["lower"]), 5)
    through = ""
    if (slicing := report.get("slicing")) is not None:
        through = f", features of dimension {slicing['d']} through {slicing['k']} {slicing['scheme']} directions"
        if "diameter" in slicing:
            through += f", diameter {slicing['diameter']:g} and σ = {slicing['sigma']:.6g}"
    yield (
        "guarantee",
        f"ε = {epsilon} at δ = {upward(report['delta'], 6)} for {report['relation']} neighbours, after "
        f"{report['steps']} steps of {report['sampling']} sampling at rate {report['sampling_rate']:g} with noise "
        f"multiplier {report['noise_multiplier']:.6g}{through}",
    )
    yield "solved for", _SOLVED[report["solved"]]
    if assumed := report.get("assumed"):
        words = {"delta": "δ = 'auto' = {}", "batch": "batches of all {} records", "steps": "{} steps"}
        numbers = ", ".join(
            words[name].format(upward(value, 3 if name == "delta" else 6)) for name, value in assumed.items()
        )
        yield "assumed", f"{numbers}; give --delta, --batch, --steps for others"
    yield "bracket", f"{lowest} ≤ ε ≤ {epsilon}: no accountant that knows only the rate and the multiplier can go below"
    yield "convention", str(report["convention"])
