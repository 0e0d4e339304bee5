"""A run as tables and sentences, for screens, cards and pages: functions of its view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fedsw._tools.text import gained, measured, number, to_float, upward
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature, Number
from fedsw.experiment import Experiment
from fedsw.privacy.accountants import GAUSSIAN, LAPLACE
from fedsw.runs.group_names import UNNAMED, Names
from fedsw.runs.report.metric_names import group_table, metric_name, ordered_metrics, says_nothing, scores
from fedsw.runs.view import RunView


class FactTable(NamedTuple):
    """A table: headings, and rows of as many texts."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, headings: Iterable[str], rows: Iterable[Iterable[object]]) -> FactTable:
        """Make one of anything that can be written."""
        return cls(tuple(headings), tuple(tuple(map(str, row)) for row in rows))


def description(view: RunView) -> str:
    """Describe in one or two sentences the model, its data and its training."""
    experiment, summary = view.experiment, view.summary
    ended = "" if view.completed else f" It did not complete: {summary.get('status')}."
    article = "An" if experiment.model.kind[0] in "aeiou" else "A"
    return (
        f"{article} {experiment.model.kind} model for {experiment.objective.task}, trained on {experiment.data.label} "
        f"data of {summary.get('clients')} clients, {rounds_of(view)}, with "
        f"weight α = {number(experiment.objective.alpha)} on the penalty {experiment.objective.penalty}. "
        f"{summary.get('date')}.{ended}"
    )


def target_epsilon(experiment: Experiment) -> str:
    """The ε asked for; a noise multiplier when ε follows from it."""
    privacy = experiment.privacy
    if privacy.noise_multiplier is not None:
        return f"σ/Δ = {number(privacy.noise_multiplier)}"
    return upward(privacy.epsilon)


def rounds_of(view: RunView) -> str:
    """How many of the planned rounds are over, and whether all learn from one release or sketch: 12 of 200 rounds."""
    return view.experiment.privacy.model.by_release(rounds=_rounds_over, once=_steps_over)(view)


def _rounds_over(view: RunView) -> str:
    rounds, over = view.experiment.training.rounds, len(view.history)
    once = view.experiment.releases < rounds
    gone = over if once else int(view.summary.get("released_rounds", over))
    words = f"{rounds} rounds" if gone == rounds else f"{gone} of {rounds} rounds"
    return f"{words} on one release" if once else words


def _steps_over(view: RunView) -> str:
    """The steps of a generator, which are made at every stage of a sketch."""
    rounds, over, stages = view.experiment.training.rounds, int(view.last.get("round", 0)), view.experiment.stages
    gone = over if rounds > 1 else int(view.summary.get("released_rounds", over))
    steps, on = rounds * stages, "one sketch" if stages == 1 else f"a sketch of {stages} stages"
    return f"{gone} of {steps} steps on {on}" if gone < steps else f"{steps} steps on {on}"


def noise_ratio(guarantee: Mapping[str, Any]) -> str:
    """Name of the ratio of a guarantee's noise to its sensitivity."""
    mechanism = guarantee.get("mechanism")
    by_name = f"scale of {mechanism} noise/Δ" if mechanism else "scale of the noise/Δ"
    return {GAUSSIAN: "noise multiplier σ/Δ", LAPLACE: "scale b/Δ"}.get(str(mechanism), by_name)


_WORDS = {"proven": "proven", "stated": "stated by the user, of a penalty of their own; nothing proves it"}


def promise(summary: Mapping[str, Any]) -> FactTable:
    """The guarantee, part by part."""
    guarantee = summary["guarantee"]
    other = guarantee.get("epsilon_of_replacement")
    doubt = "" if guarantee.get("accountant_is_guarantee") else ", which gives no guarantee"
    return FactTable.of(
        ("", ""),
        [
            ("ε, δ", f"{upward(summary.get('epsilon'), 4)}, {upward(summary.get('delta'))}"),
            ("protects", guarantee.get("protects")),
            ("against", guarantee.get("against")),
            ("neighbouring data sets", guarantee.get("relation")),
            *([("ε for the replacement of a record", upward(other, 4))] if other is not None else []),
            ("public", ", ".join(guarantee.get("public", ())) or "–"),
            ("trust model", guarantee.get("trust")),
            ("whose word the bound is", _WORDS[guarantee.get("word", "proven")]),
            (noise_ratio(guarantee), number(guarantee.get("noise_multiplier"), 4)),
            ("accountant", f"{guarantee.get('accountant')}{doubt}"),
            ("reproducible from a seed", "yes: the ε is nominal" if summary.get("nominal") else "no"),
            ("ε for a reader of the run's record", upward(summary.get("epsilon_of_reader"), 4)),
        ],
    )


def sizes(view: RunView) -> FactTable:
    """Public numbers of private records by group; no rows where they are not public."""
    groups = view.plan.get("groups", {})
    return FactTable.of(("group", "records"), [(view.names.cell(name), f"{count:,}") for name, count in groups.items()])


def measured_on(summary: Mapping[str, Any]) -> str:
    """Which records the metrics are of."""
    on = summary.get("held_out_measured_on") or {}
    count = f"{on['records']} of {on['of']} held-out records: " if on else ""
    counted = (summary.get("held_out_release") or {}).get("counted_as")
    return f"Measured on {count}{summary.get('measured_on')}{f'; {counted}' if counted else ''}."


def worth(summary: Mapping[str, Any], called: Names = UNNAMED) -> FactTable:
    """Every held-out metric with its interval, the constant's beside it; those of a class say which by its name."""
    model, constant = scores(summary), scores(summary, "constant")
    names = ordered_metrics(summary.get("held_out") or {}, called)
    known = (name for name, (_, around) in model.items() if around is not None and not says_nothing(name, called))
    names += [name for name in known if name not in names]
    return FactTable.of(
        ("held out, with intervals of 95 %", "the model", "a constant"),
        [
            (
                metric_name(key, called),
                measured(*model[key]) + ("" if model[key][1] is not None else " (no interval is known)"),
                measured(*constant[key]) if key in constant else "–",
            )
            for key in names
        ],
    )


def gain(summary: Mapping[str, Any]) -> str:
    """Compare the model with the constant in a sentence; empty where there is none."""
    gained_by = summary.get("gain")
    if not gained_by:
        return ""
    by = gained(gained_by["value"], [gained_by["low"], gained_by["high"]]) + in_squares(summary)
    return (
        f"The model is {by}."
        if gained_by["claim"] in ("better", "worse")
        else f"The model cannot be told from it: {by}."
    )


def in_squares(summary: Mapping[str, Any]) -> str:
    """Unit of a gain where errors have units: squares of them."""
    return " in squared error" if "root_mean_squared_error" in (summary.get("held_out") or {}) else ""


_POWERS = {"mean_squared_error": 2, "w2_squared": 2, "root_mean_squared_error": 1, "mean_absolute_error": 1}
"""How errors and distances of a number grow with its unit."""


def coded(view: RunView) -> RunView:
    """The same run with errors as training has them, of a number that its bounds map to [0, 1]."""
    columns = view.experiment.data.columns
    if columns is None or columns.units is None:
        return view
    width = columns.units[1]

    def divided(value: Any, power: int) -> Any:
        if isinstance(value, list | tuple):
            return [divided(item, power) for item in value]
        known = to_float(value)
        return value if known is None else known / width**power

    def of(values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: of(value) if isinstance(value, Mapping) else divided(value, _POWERS.get(name, 0))
            for name, value in values.items()
        }

    summary = {
        name: of(value) if isinstance(value, Mapping) and name.startswith(("held_out", "constant")) else value
        for name, value in view.summary.items()
    }
    if gain := summary.get("gain"):
        summary["gain"] = {name: value if name == "claim" else divided(value, 2) for name, value in gain.items()}
    summary["constant_answers"] = "always the mean"
    return replace(view, summary=summary, names=replace(view.names, predicted=""))


def by_group(summary: Mapping[str, Any], called: Names = UNNAMED) -> FactTable:
    """A row for each group: its held-out records, and each metric on them with its interval."""
    groups, around = summary.get("held_out_by_group") or {}, summary.get("held_out_by_group_intervals") or {}
    names, rows = group_table(groups, around, called=called)
    return FactTable.of(("group", *names), rows)


def coefficients(summary: Mapping[str, Any]) -> FactTable:
    """A row for each coefficient that released moments tell, the surest first; none where they tell none."""
    seen = sorted(_told(summary)["seen"], key=lambda one: -abs(float(one["value"])) / max(float(one["error"]), 1e-300))
    several = len({one["target"] for one in seen}) > 1
    rows = []
    for one in seen:
        value, error, low, high = (number(one[name]) for name in ("value", "error", "low", "high"))
        rows.append((one["name"], *[one["target"]] * several, value, error, f"{low} to {high}"))
    return FactTable.of(("input", *["of"] * several, "coefficient", "standard error", "95 %"), rows)


def coefficient_sentences(summary: Mapping[str, Any]) -> list[str]:
    """Sentences on what coefficients are of, and which inputs have none; [] if moments are not of a run's columns."""
    told = _told(summary)
    names = list(dict.fromkeys(one["name"] for one in told["seen"]))
    if not told["seen"]:
        return [f"Noise hides how each of {len(told['hidden'])} inputs moves the answer."] if told["hidden"] else []
    targets = ", ".join(dict.fromkeys(one["target"] for one in told["seen"]))
    words = [
        f"By how much {targets} moves with one unit of a column, the others held: "
        f"least squares on {len(names)} inputs, by the released moments and at no further cost. A category is compared "
        "with its column's first, a class counts as 1 where it is and 0 elsewhere. Errors are of sample and noise "
        "together, each interval by itself.",
    ]
    if told["hidden"]:
        words.append(f"Noise hides, and the fit is without: {', '.join(told['hidden'])}.")
    return words


def _told(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    return (summary.get("moments") or {}).get("coefficients") or {"seen": (), "hidden": ()}


def probabilities(summary: Mapping[str, Any]) -> str:
    """The log loss of a classifier's probabilities beside that of the class shares, and how they were corrected.

    Empty for another task; on held-out records where there are any, elsewhere by the counts of calibration.
    """
    model, constant, said = scores(summary), scores(summary, "constant"), summary.get("calibration") or {}
    words = ""
    if "loss" in model and "loss" in constant:
        words = f"log loss {measured(*model['loss'])}, the class shares' {measured(*constant['loss'])}"
    elif "log_loss" in said:
        loss = said["log_loss"]
        shown, shares = measured(loss["value"], (loss["low"], loss["high"])), number(said["log_loss_of_shares"], 3)
        words = f"log loss {shown} by the counts that calibrated them, the class shares' {shares}"
    if "scale" in said:
        from fedsw.runs.evaluation.verdict import SHARES_ALONE  # late: it computes

        scaled = f"logits are {number(said['scale'], 3)} times the rounds'"
        words += (
            f"; {scaled if said['scale'] else SHARES_ALONE}, by noised counts of scores of {said['records']:,} records "
            f"for {100 * said['share']:.3g} % of the budget (of μ²)"
        )
    return words


def thresholds(summary: Mapping[str, Any], called: Names = UNNAMED) -> FactTable:
    """A row for each group: its threshold, and the share that it selects with the noise's band; none without any."""
    by_group = (summary.get("thresholds") or {}).get("by_group") or {}
    rows = [(called.cell(group), number(entry["threshold"], 3), shared_out(entry)) for group, entry in by_group.items()]
    return FactTable.of(("group", "threshold", "selected, ± noise"), rows)


def shared_out(group: Mapping[str, Any]) -> str:
    """The share of a group that its threshold selects, by noised counts, with two standard deviations of the noise."""
    return f"{100 * group['selected']:.1f} ± {100 * group['band']:.1f} %"


def threshold_sentences(summary: Mapping[str, Any], called: Names = UNNAMED) -> list[str]:
    """How thresholds by group came about, what they do on held-out records, and who reads the group; or why none are.

    Nothing where the run asked for none.
    """
    said = summary.get("thresholds")
    if not said:
        return []
    if missing := said.get("missing"):
        return [f"{missing}."]
    words = [
        f"Rule {said['rule']}, of the probability of {said['positive']}, by noised counts of {said['records']:,} "
        f"records for {100 * said['share']:.0f} % of the budget (of μ²).",
        f"`fedsw predict --threshold {said['rule']}` reads the group of every record; a penalty (α) reads it in "
        "training alone.",
    ]
    if said["few"]:
        few = ", ".join(called.cell(group) for group in said["few"])
        words.append(f"Too few records beside the noise, so the threshold of all: {few}.")
    if held_out := summary.get("held_out_at_thresholds"):
        shown = ", ".join(
            f"{metric_name(name, called)} {number(held_out[name], 3)}" for name in ordered_metrics(held_out)
        )
        words.append(f"With these thresholds, on held-out records: {shown}.")
    return words


def declared(columns: Columns) -> FactTable:
    """The declared columns: name, role, kind and bounds."""
    rows = [(feature.name, "input", "; ".join(_words(feature))) for feature in columns.features]
    if columns.sensitive is not None:
        rows.append((columns.sensitive.name, "group", ", ".join(columns.groups)))
    if columns.target is not None:
        positive = "" if columns.positive is None else f"; positive: {columns.classes[columns.positive]}"
        rows.append((columns.target.name, "predicted", f"{', '.join(columns.classes)}{positive}"))
    rows += [(target.name, "predicted", "; ".join(_words(target))) for target in columns.targets]
    return FactTable.of(("column", "role", "declared"), rows)


def _words(column: Number) -> Iterator[str]:
    yield column.reader.words(column) + (f" {column.units}" if column.units else "")
    if column.outside == "cut":
        yield "cut at these bounds"
    if isinstance(column, Feature) and column.count is not None:
        yield f"{column.count} columns {column.name}0, {column.name}1, ..."
    if isinstance(column, Feature) and column.missing:
        known = ", ".join(repr(text) if text else "empty" for text in column.missing)
        yield f"may be missing ({known})"


def settings(experiment: Experiment) -> dict[str, Any]:
    """Settings that differ from the defaults, without columns and without folders of the machine that ran it."""
    changed = experiment.model_dump(mode="json", exclude_defaults=True)
    for name in ("columns", "data_dir", "held_out"):
        changed.get("data", {}).pop(name, None)
    return changed


def plain(view: RunView) -> dict[str, Any]:
    """A run as plain values, for JSON: its summary, folder and plots; what there is of one that has not ended."""
    summary = view.summary or {
        "name": view.experiment.name,
        "status": "not finished",
        "rounds": view.experiment.training.rounds,
        "released_rounds": len(view.history),
        "epsilon_spent": view.last.get("epsilon", 0.0),
    }
    plots = [str(view.directory / "plots" / name) for name in view.plots]
    return {**summary, "directory": str(view.directory), "plots": plots}
