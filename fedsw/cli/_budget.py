"""`fedsw budget`: noise multiplier, epsilon and number of steps, whichever two are given; or a sketch's stages."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from fedsw.cli._modules import budgets, experiments, plan_words, public_rows, run_plan
from fedsw.cli.options import Json, Set, answer, changes_of, in_parts, say
from fedsw.runs.report.document import Document, named


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
    say(
        budgets.budget(
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            steps=steps,
            delta=delta,
            sampling_rate=sampling_rate,
            records=records,
            batch=batch,
            sampling=sampling,
            slices=slices,
            dimension=dimension,
            directions_scheme=directions_scheme,
            diameter=diameter,
            noise=noise,
            compare=compare,
        ),
        as_json=as_json,
    )


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
