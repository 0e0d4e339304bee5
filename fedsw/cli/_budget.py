"""`fedsw budget`: noise multiplier, epsilon and number of steps, whichever two are given; or a sketch's stages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import typer

from fedsw._tools.text import downward, upward
from fedsw.cli._modules import accounting, experiments, plan_words, public_rows, run_plan
from fedsw.cli.options import Json, Set, answer, changes_of, in_parts
from fedsw.runs.report.document import Document, Listed, named

_STEPS = 50
"""Steps that are assumed: the rounds of a drafted experiment."""
_SOLVED = {"epsilon": "ε", "noise_multiplier": "the noise multiplier", "steps": "the number of steps"}


def budget_command(
    experiment: Annotated[
        str | None, typer.Argument(metavar="EXPERIMENT", help="Of a sketch: what each of its stages gets and costs.")
    ] = None,
    overrides: Set = None,
    delta: Annotated[
        float | None, typer.Option(help="δ of the guarantee, well below 1 / records; 'auto' of --records.")
    ] = None,
    sampling_rate: Annotated[
        float | None, typer.Option("--sampling-rate", "-p", help="Share of a group's records in a batch, in (0, 1].")
    ] = None,
    records: Annotated[int | None, typer.Option(help="Records of the group, instead of -p.")] = None,
    batch: Annotated[int | None, typer.Option(help="Records of the group in a batch; all of --records.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of noisy releases; 50 with --records.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="σ/Δ, with Δ the full sensitivity under replacement.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of the guarantee.")] = None,
    sampling: Annotated[
        Literal["without-replacement", "poisson"], typer.Option(help="How batches are drawn.")
    ] = "without-replacement",
    slices: Annotated[
        int | None, typer.Option(help="Number k of random directions through which features are released.")
    ] = None,
    dimension: Annotated[int | None, typer.Option(help="Dimension d of the features that are sliced.")] = None,
    directions_scheme: Annotated[
        Literal["iid", "orthogonal"] | None, typer.Option(help="Independent directions (the default), or orthonormal.")
    ] = None,
    diameter: Annotated[
        float | None, typer.Option(help="Most that a replacement moves the features; 2 for rows of norm 1.")
    ] = None,
    noise: Annotated[float | None, typer.Option(help="σ of the noise in each slice, with --diameter.")] = None,
    as_json: Json = False,
    compare: Annotated[bool, typer.Option(help="Show what other accountants say.")] = True,
) -> None:
    """Work out ε, noise multiplier or number of steps from the others.

    Prints the guarantee, the bracket it lies in, and what other accountants say, each marked as a guarantee or not.
    With --records what is left out is assumed, and printed: `fedsw budget --records 500 --epsilon 2` is a question.
    With --slices and --dimension the releases are features through random directions.
    With an EXPERIMENT on a sketch of records: each stage's share of the budget, its μ and its noise.
    """
    elsewhere = {
        "--sampling-rate": sampling_rate, "--batch": batch, "--steps": steps, "--slices": slices,
        "--dimension": dimension, "--directions-scheme": directions_scheme, "--diameter": diameter, "--noise": noise,
    }  # fmt: skip
    if experiment is not None:
        if extra := next((name for name, value in elsewhere.items() if value is not None), None):
            raise typer.BadParameter(f"{extra} is for releases without an EXPERIMENT, which has its own: leave it out")
        changes = changes_of(None, overrides, epsilon=epsilon)
        changes += [f"privacy.delta={delta!r}"] * (delta is not None)
        changes += [f"privacy.noise_multiplier={noise_multiplier!r}"] * (noise_multiplier is not None)
        _say_stages(experiment, changes, records, as_json=as_json)
        return
    if overrides:
        raise typer.BadParameter("--set changes settings of an EXPERIMENT: name one")
    in_parts("dp_accounting")  # its Rényi accountant alone: the other one takes scipy.signal and scipy.stats along
    slicing = None
    if slices is not None and dimension is not None:
        slicing = accounting.Slicing(dimension, slices, directions_scheme or "iid")
    elif slices is not None or dimension is not None or directions_scheme is not None:
        raise ValueError(
            f"slices is {slices} and dimension is {dimension}; random slices need both, --slices K --dimension D."
        )
    multiplier = _multiplier(noise_multiplier, noise, diameter)
    known: dict[str, Any] = {"delta": delta, "batch": batch, "steps": steps}
    assumed: dict[str, float] = {}
    if records is not None and sampling_rate is None:
        assumed = _assumed(records, known, solvable=(epsilon is None) != (multiplier is None))
        known |= assumed
    if known["delta"] is None:
        raise ValueError("delta is not given; write --delta, well below 1 / records, or --records for 'auto'.")
    report: dict[str, Any] = accounting.budget_report(
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
    accountants = [_accountants_table(report["accountants"])] if compare else []
    answer(report, lambda: Document("", begins=(named(_rows(report)), *accountants)), as_json=as_json)


def _say_stages(name: str, changes: list[str], records: int | None, *, as_json: bool) -> None:
    """Print what the stages of an experiment's sketch cost, from public numbers only."""
    experiment = experiments.load_experiment(name, changes)
    if not experiment.stages:
        raise experiments.ExperimentError(
            f"privacy.trust is {experiment.privacy.trust!r}, and stages are a sketch's: `fedsw plan {name}` says what "
            "rounds cost"
        )
    by_group, assumed = public_rows.sizes_by_group(experiment, None if records is None else str(records))
    plan = run_plan.planned(experiment, by_group, assumed=assumed)
    plain = plan_words.as_plain(plan)
    content = {key: plain[key] for key in ("experiment", "epsilon", "delta", "noise_multiplier", "stages")}
    shown = [(head, words) for head, words in plan_words.rows(plan) if head == "noise" or head.startswith("stage")]
    answer(content, lambda: Document("", begins=(named(shown),)), as_json=as_json)


def _assumed(records: int, known: Mapping[str, float | None], *, solvable: bool) -> dict[str, float]:
    """Return what is assumed where nothing is given: 50 steps on all records, and δ, as `fedsw init` drafts them."""
    if records < 1:
        raise ValueError(f"records is {records}; it must be at least 1.")
    usual: dict[str, float] = {"batch": records, **({"steps": _STEPS} if solvable else {})}
    if known["delta"] is None:  # asked for where it is needed alone: few records are warned of
        usual = {"delta": experiments.resolve_delta(experiments.DEFAULT_DELTA, records=records), **usual}
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


def _multiplier(noise_multiplier: float | None, noise: float | None, diameter: float | None) -> float | None:
    if noise is None:
        return noise_multiplier
    if noise_multiplier is not None or diameter is None:
        raise ValueError(f"noise is {noise}; give it with --diameter, and no --noise-multiplier beside it.")
    if not (0.0 < noise < math.inf and 0.0 < diameter < math.inf):
        raise ValueError(f"noise is {noise} and diameter is {diameter}; both must be positive and finite.")
    return noise / diameter


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    epsilon, lowest = upward(report["epsilon"], 5), downward(max(0.0, report["bracket"]["lower"]), 5)
    yield (
        "guarantee",
        f"ε = {epsilon} at δ = {upward(report['delta'], 6)} for {report['relation']} neighbours, after "
        f"{report['steps']} steps of {report['sampling']} sampling at rate {report['sampling_rate']:g} with noise "
        f"multiplier {report['noise_multiplier']:.6g}{_through(report.get('slicing'))}",
    )
    yield "solved for", _SOLVED[report["solved"]]
    if assumed := report.get("assumed"):
        words = {"delta": "δ = 'auto' = {}", "batch": "batches of all {} records", "steps": "{} steps"}
        said = ", ".join(
            words[name].format(upward(value, 3 if name == "delta" else 6)) for name, value in assumed.items()
        )
        yield "assumed", f"{said}; give --delta, --batch, --steps for others"
    yield "bracket", f"{lowest} ≤ ε ≤ {epsilon}: no accountant that knows only the rate and the multiplier can go below"
    yield "convention", str(report["convention"])


def _through(slicing: Mapping[str, Any] | None) -> str:
    if slicing is None:
        return ""
    words = f", features of dimension {slicing['d']} through {slicing['k']} {slicing['scheme']} directions"
    if "diameter" in slicing:
        words += f", diameter {slicing['diameter']:g} and σ = {slicing['sigma']:.6g}"
    return words


def _accountants_table(accountants: list[Mapping[str, Any]]) -> Listed:
    rows = []
    for accountant in accountants:  # one that is not installed has no epsilon
        holds = "–" if accountant["epsilon"] is None else "yes" if accountant["guarantee"] else "no"
        rows.append((accountant["name"], upward(accountant["epsilon"], 5), holds, accountant["note"]))
    headings = ("accountant", "ε", "a guarantee?", "what it is")
    return Listed.of("Accountants", headings, rows, left=(headings[0], *headings[2:]), whole=headings[:3])
