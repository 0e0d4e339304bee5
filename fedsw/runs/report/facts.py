"""Each fact of a run once, as a sentence or a table: what its screen, its card and its page are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedsw._tools.later import imported_later
from fedsw._tools.text import at_delta, gained, json_text, measured, number, to_float, upward
from fedsw.data.columns.column import PLAIN
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Feature, Number, Spellings
from fedsw.experiment import Experiment
from fedsw.experiment.penalty_names import NO_PENALTY
from fedsw.experiment.task_kinds import MODELS
from fedsw.privacy.accountants import GAUSSIAN, LAPLACE
from fedsw.runs.report._parts import FactTable
from fedsw.runs.report.metric_names import group_table, headline, metric_name, ordered_metrics, says_nothing, scores
from fedsw.runs.view import RunView

if TYPE_CHECKING:
    from fedsw.runs.evaluation import verdict as verdicts
    from fedsw.runs.report import shapes as shapes

globals().update(imported_later(__spec__))  # one computes, the other draws


def description(view: RunView) -> str:
    """Say what was trained, on which data: the model, its task and penalty, its data and rounds, and when it ended."""
    experiment, summary, model = view.experiment, view.summary, view.experiment.model
    goal, size = experiment.objective, f" ({', '.join(map(str, model.hidden))})" if model.hidden else ""
    if MODELS.get(model.kind).points:
        size = f" ({model.particles} particles)"
    penalty = f"with {goal.penalty}, α = {number(goal.alpha)}"
    if goal.penalty == NO_PENALTY or not (goal.alpha or goal.also):
        penalty = "without a penalty"
    clients = summary.get("clients", experiment.federation.clients)
    rounds = rounds_of(view) if summary else f"ε = {target_epsilon(experiment)} planned"
    date, label = f". {summary['date']}" if summary.get("date") else "", experiment.data.label
    return (
        f"A model of kind {model.kind}{size}, for {goal.task} {penalty}, on {label} data: {clients} clients, "
        f"{rounds}{date}."
    )


def ended(view: RunView) -> str:
    """How a run ended that did not complete, and what it spent; empty for one that did."""
    if view.completed:
        return ""
    status = str(view.summary.get("status") or "it has not ended, or its process ended without a word")
    state = "failed" if status.startswith("failed") else "stopped"
    promised = view.summary.get("epsilon", view.plan.get("epsilon"))
    whole = target_epsilon(view.experiment) if promised is None else upward(promised, 4)
    return (
        f"This run {state} after {rounds_of(view)}: {status.removeprefix('failed: ')}. "
        f"ε = {upward(view.spent, 4)} of {whole} was spent, and what was released keeps its guarantee."
    )


LEFT_OUT = "What was measured on private records without noise is left out of this page: for a reader of {}, ε = ∞."
"""For a page that is passed on; it names what has those numbers."""


def doubts(view: RunView, left_out: str = "") -> Iterator[str]:
    """Reasons why the run's ε is not a guarantee for all readers of its record; empty if it is one.

    If numbers of private records without noise are left out, ``left_out`` names what has them.
    """
    summary, guarantee = view.summary, view.summary.get("guarantee") or {}
    reader, epsilon = summary.get("epsilon_of_reader"), summary.get("epsilon")
    if summary.get("nominal"):
        seed = summary.get("seed", view.experiment.seed)
        yield f"nominal: seed {seed} makes sampling and noise reproducible: its holder can undo them"
    if view.experiment.privacy.guarantee.unprotected is None:
        if (other := guarantee.get("epsilon_of_replacement")) is not None:
            yield (
                "not comparable with a replacement's ε, which the same noise has at "
                f"{upward(other, 4)}: a record comes or goes here"
            )
        if guarantee.get("word") == "stated":
            penalty = view.experiment.objective.penalty
            yield f"the bound of the penalty {penalty} is stated by the user; nothing proves it"
        if guarantee.get("accountant_is_guarantee") is False:
            yield f"no guarantee: what the accountant {guarantee.get('accountant')} says may fall below the truth"
    private = view.experiment.unsafe_metrics or view.experiment.data.shows_private_rows
    if left_out and private:
        yield LEFT_OUT.format(left_out)
    elif private or to_float(reader) != to_float(epsilon):
        without = "it shows what was measured on private records, without noise"
        yield f"for a reader of this record ε = {'∞' if reader is None else upward(reader)}: {without}"


def privacy(view: RunView) -> str:
    """The run's ε and δ, with their adjacency, noise, bound, accountant and sampling."""
    guarantee = view.summary.get("guarantee") or {}
    at = at_delta(view.summary.get("epsilon"), view.summary.get("delta"))
    if view.experiment.privacy.guarantee.unprotected is not None:
        return at
    details = [
        str(guarantee.get("relation", "")),
        f"{noise_ratio(guarantee)} = {number(guarantee.get('noise_multiplier'), 4)}",
        f"bound {guarantee.get('bound')}",
        f"accountant {guarantee.get('accountant')}",
        f"{guarantee.get('sampling')} sampling",
    ]
    return f"{at} ({', '.join(filter(None, details))})"


def target_epsilon(experiment: Experiment) -> str:
    """The ε asked for; a noise multiplier when ε follows from it."""
    privacy = experiment.privacy
    if privacy.noise_multiplier is not None:
        return f"σ/Δ = {number(privacy.noise_multiplier)}"
    return upward(privacy.epsilon)


def rounds_of(view: RunView) -> str:
    """Progress in rounds, and whether all learn from one release or sketch: 12 of 200 rounds."""
    experiment, released = view.experiment, view.summary.get("released_rounds", len(view.history))
    rounds, gone, what, on = experiment.training.rounds, int(released), "rounds", ""
    if stages := experiment.stages:  # the steps of a generator, which are made at every stage of a sketch
        on = " on one sketch" if stages == 1 else f" on a sketch of {stages} stages"
        gone, rounds, what = int(view.last.get("round", 0)) if rounds > 1 else gone, rounds * stages, "steps"
    elif experiment.releases < rounds:
        gone, on = len(view.history), " on one release"
    return f"{rounds} {what}{on}" if gone == rounds or (stages and gone > rounds) else f"{gone} of {rounds} {what}{on}"


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
            ("sensitivity bound", _WORDS[guarantee.get("word", "proven")]),
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


def measured_on(view: RunView) -> str:
    """Which records the metrics are of, and how they were counted; empty if there are none."""
    summary, release = view.summary, view.summary.get("held_out_release")
    if not summary.get("held_out"):
        return ""
    if not (on := summary.get("held_out_measured_on")):
        return f"Measured on {summary.get('measured_on')}."
    if release is not None:
        noise = f"with noise of σ = {number(release['sigma'])} in each count, within the guarantee"
        counted = f"; {release['counted_as']}" if "counted_as" in release else ""
        kept_out = f"{on['records']} records that {release['clients']} clients kept out of training"
        return f"Measured on {kept_out}, {noise}{counted}."
    part = f"{on['records']} held-out records"
    if on["records"] < on["of"]:
        part = f"{on['records']} of {on['of']} held-out records (--evaluate full: all)"
    if on.get("directions", 1) > 1:
        part += f", along {on['directions']} directions"
    return f"Measured on {part}: {summary.get('measured_on')}."


def measures(view: RunView, part: str = "held_out") -> dict[str, tuple[str, str]]:
    """Metrics of the model ("held_out") or of a "constant" by their keys: the name of each, its value and interval."""
    known, called = scores(view.summary, part), view.names
    keys = ordered_metrics(view.summary.get(part) or {}, called)
    with_intervals = (key for key, (_, around) in known.items() if around is not None and not says_nothing(key, called))
    of_classes = "loss" in (view.summary.get("constant") or {})  # the class shares' log loss
    names = {key: metric_name(key, called) for key in dict.fromkeys((*keys, *with_intervals))}
    names |= {"loss": "log loss"} if of_classes and "loss" in names else {}
    return {key: (name, measured(*known[key])) for key, name in names.items()}


def measured_line(view: RunView, part: str = "held_out") -> str:
    """Metrics in a line, and which of them have no interval."""
    metrics, around = measures(view, part), view.summary.get(f"{part}_intervals") or {}
    line = " · ".join(f"{name} {value}" for name, value in metrics.values())
    lacking = [name for key, (name, _) in metrics.items() if key not in around]
    numbers = [to_float(view.summary[part][key]) for key in metrics]
    if part != "held_out" or not lacking:
        return line
    if not any(value is not None and math.isfinite(value) for value in numbers):
        return f"{line} (what the model returns is not finite)"
    if len(lacking) == len(metrics):
        return f"{line} (no intervals: they come with the end of a run)"
    return f"{line} (no interval is known of {', '.join(lacking)})"


def worth(view: RunView) -> FactTable:
    """Every held-out metric with its interval, beside the constant's."""
    model, constant = measures(view), measures(view, "constant")
    around = view.summary.get("held_out_intervals") or {}
    return FactTable.of(
        ("held out, with intervals of 95 %", "the model", "a constant"),
        [
            (name, value if key in around else f"{value} (no interval is known)", constant.get(key, ("", "–"))[1])
            for key, (name, value) in model.items()
        ],
    )


def gain(view: RunView) -> str:
    """By how much the model is better or worse than the constant; empty if there is none."""
    if not (gained_by := view.summary.get("gain")):
        return ""
    by = gained(gained_by["value"], [gained_by["low"], gained_by["high"]])
    by += " in squared error" if "root_mean_squared_error" in (view.summary.get("held_out") or {}) else ""
    return f"The model is {by} than a constant." if gained_by["claim"] in _CLAIMS else f"{_UNSURE}: {by}."


def beside_constant(view: RunView) -> Iterator[str]:
    """The constant's answer, by how much the model is better or worse, and the accuracy at the best threshold."""
    summary, names = view.summary, view.names
    if answers := summary.get("constant_answers"):
        yield f"The constant is the best answer that looks at no input: {answers}."
    yield from filter(None, [gain(view)])
    if best := summary.get("best_threshold"):
        interval = [best["low"], best["high"]] if "low" in best else None
        of = f" of {names.label(names.positive)}" if names.classes and names.positive is not None else ""
        yield (
            f"At the threshold{of} that suits these records best, {number(best['threshold'])}, the model has accuracy "
            f"{measured(best['accuracy'], interval)}."
        )


_CLAIMS = {"better": "The model is better than a constant", "worse": "The model is worse than a constant"}
_UNSURE = "The model cannot be told from a constant"
"""If the gain's interval holds 0."""


def verdict(view: RunView) -> str:
    """The model's first metric beside the constant's, with the claim that its interval allows."""
    summary, said, constant = view.summary, measures(view), measures(view, "constant")
    if (name := headline(summary)) is not None:
        claim, (called, score) = (summary.get("gain") or {}).get("claim"), said[name]
        if claim is None or name not in constant:
            return f"On held-out records: {called} {score}."
        answers = summary.get("constant_answers")
        return f"{_CLAIMS.get(claim, _UNSURE)}: {called} {score}, where {answers} scores {constant[name][1]}."
    last = next((row for row in reversed(view.history) if headline(row)), None)
    if last is None:
        return "What the model is worth was not measured, or may not be shown."
    name = str(headline(last))
    value = number(last["held_out"][name])
    return f"After {last['round']} rounds, on held-out records: {metric_name(name, view.names)} {value}."


def signal(view: RunView) -> str:
    """Signal against noise in words and numbers; a run that began from moments may have learnt from these."""
    moments, noise = view.summary.get("moments"), view.summary.get("signal_to_noise")
    if not noise:
        return ""
    learnt = bool(moments.get("inputs", True)) if moments else False  # not from the target's moments only
    words = verdicts.STARTED if learnt and not noise["the_run"] >= verdicts.FELT else noise["words"]
    rounds = f"{number(noise['a_round'], 2)} in a round, {number(noise['the_run'], 2)} over {noise['rounds']}"
    return f"{words} (signal to noise about {rounds})"


_POWERS = {"mean_squared_error": 2, "w2_squared": 2, "root_mean_squared_error": 1, "mean_absolute_error": 1}
"""Powers of a number's unit in its errors and distances."""


def coded(view: RunView) -> RunView:
    """A copy of the run with errors of the coded number, which its bounds map to [0, 1], as in training."""
    columns = view.experiment.data.columns
    if columns is None or columns.units is None:
        return view
    width = columns.units[1]

    def divided(value: Any, power: int) -> Any:
        if isinstance(value, list | tuple):
            return [divided(item, power) for item in value]
        known = to_float(value)
        return value if known is None else known / width**power

    def in_code(values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: in_code(value) if isinstance(value, Mapping) else divided(value, _POWERS.get(name, 0))
            for name, value in values.items()
        }

    summary = {
        name: in_code(value) if isinstance(value, Mapping) and name.startswith(("held_out", "constant")) else value
        for name, value in view.summary.items()
    }
    if gain := summary.get("gain"):
        summary["gain"] = {name: value if name == "claim" else divided(value, 2) for name, value in gain.items()}
    summary["constant_answers"] = "always the mean"
    return replace(view, summary=summary, names=replace(view.names, predicted=""))


def by_group(view: RunView, cell: Callable[[Any, Sequence[Any] | None], str] = measured) -> FactTable:
    """A row for each group: its held-out records, and each metric on them with its interval, as `cell` writes it."""
    return _measured_by(view, "group", cell)


def by_column(view: RunView, cell: Callable[[Any, Sequence[Any] | None], str] = measured) -> FactTable:
    """A row for each value of each column of combined groups, and one for the gap between its values."""
    return _measured_by(view, "column", cell)


def _measured_by(view: RunView, of: str, cell: Callable[[Any, Sequence[Any] | None], str]) -> FactTable:
    numbers, around = (view.summary.get(f"held_out_by_{of}{end}") or {} for end in ("", "_intervals"))
    names, rows = group_table(numbers, around, cell, called=view.names)
    return FactTable.of((of, *names), rows)


def coefficients(summary: Mapping[str, Any]) -> FactTable:
    """A row for each coefficient from released moments, the largest in standard errors first."""
    seen = _coefficients(summary)["seen"]
    seen = sorted(seen, key=lambda one: -abs(float(one["value"])) / max(float(one["error"]), 1e-300))
    several = len({one["target"] for one in seen}) > 1
    rows = []
    for one in seen:
        value, error, low, high = (number(one[name]) for name in ("value", "error", "low", "high"))
        rows.append((one["name"], *[one["target"]] * several, value, error, f"{low} to {high}"))
    return FactTable.of(("input", *["of"] * several, "coefficient", "standard error", "95 %"), rows)


def coefficient_sentences(summary: Mapping[str, Any]) -> list[str]:
    """How to read the coefficients, and which inputs have none; [] if moments are not of a run's columns."""
    seen, hidden = (_coefficients(summary)[part] for part in ("seen", "hidden"))
    names = list(dict.fromkeys(one["name"] for one in seen))
    if not seen:
        return [f"Noise hides how each of {len(hidden)} inputs moves the answer."] if hidden else []
    targets = ", ".join(dict.fromkeys(one["target"] for one in seen))
    words = [
        f"By how much {targets} moves with one unit of a column, the others held: "
        f"least squares on {len(names)} inputs, by the released moments and at no further cost. A category is compared "
        "with its column's first, a class counts as 1 where it is and 0 elsewhere. Errors are of sample and noise "
        "together, each interval by itself.",
    ]
    if hidden:
        words.append(f"Noise hides, and the fit is without: {', '.join(hidden)}.")
    return words


def _coefficients(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    return (summary.get("moments") or {}).get("coefficients") or {"seen": (), "hidden": ()}


def probabilities(summary: Mapping[str, Any]) -> str:
    """The log loss of a classifier's probabilities beside that of the class shares, and their calibration.

    It is of held-out records, else of the counts of calibration. Empty for another task.
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
        scaled = f"logits are {number(said['scale'], 3)} times the rounds'" if said["scale"] else verdicts.SHARES_ALONE
        words += (
            f"; {scaled}, by noised counts of scores of {said['records']:,} records "
            f"for {100 * said['share']:.3g} % of the budget (of μ²)"
        )
    return words


def thresholds(view: RunView) -> FactTable:
    """A row for each group: its threshold, and its selected share with the noise's band; no rows without thresholds."""
    by_group = (view.summary.get("thresholds") or {}).get("by_group") or {}
    rows = []
    for group, entry in by_group.items():
        selected = f"{100 * entry['selected']:.1f} ± {100 * entry['band']:.1f} %"
        rows.append((view.names.cell(group), number(entry["threshold"], 3), selected))
    return FactTable.of(("group", "threshold", "selected, ± noise"), rows)


def threshold_sentences(view: RunView) -> list[str]:
    """The rule of thresholds by group, their use, and metrics on held-out records; or why there are none.

    Empty if the run did not ask for thresholds.
    """
    summary, called = view.summary, view.names
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
    rows = [(feature.name, "input", "; ".join(_words(feature, columns))) for feature in columns.features]
    if (group := columns.sensitive) is not None:
        rows.append((group.name, "group", "; ".join([", ".join(columns.groups), *_spelt(group)])))
    if (target := columns.target) is not None:
        positive = "" if columns.positive is None else f"; positive: {columns.classes[columns.positive]}"
        said = f"{', '.join(columns.classes)}{positive}"
        rows.append((target.name, "predicted", "; ".join([said, *_spelt(target)])))
    rows += [(number.name, "predicted", "; ".join(_words(number, columns))) for number in columns.targets]
    if columns.unit is not None:
        rows.append((columns.unit, "privacy unit", "all rows with one value are one person's"))
    return FactTable.of(("column", "role", "declared"), rows)


def _spelt(column: Spellings) -> Iterator[str]:
    for value, others in column.same:
        yield f"{', '.join(map(repr, others))} count as {value!r}"
    if column.empty is not None:
        yield f"an empty cell is {column.empty!r}"


def _words(column: Number, columns: Columns) -> Iterator[str]:
    yield column.reader.words(column) + (f" {column.units}" if column.units else "")
    if column.outside == "cut":
        yield "cut at these bounds"
    if isinstance(column, Feature) and column.count is not None:
        yield f"{column.count} columns {column.name}0, {column.name}1, ..."
    if isinstance(column, Feature) and column.missing:
        known = ", ".join(repr(text) if text else "empty" for text in column.missing)
        yield f"may be missing ({known})"
    if column.format is not None:
        yield f"written {column.format}"
    spelling = columns.spelling_of(column)
    if column.reader.stored == "numbers" and spelling != PLAIN:
        yield f"decimals behind {spelling.decimal!r}" + f", {spelling.thousands!r} in thousands" * bool(
            spelling.thousands
        )
    if isinstance(column, Feature):
        yield from _spelt(column)


def settings(experiment: Experiment) -> dict[str, str]:
    """Settings that differ from the defaults, without columns and without folders of the machine that ran it."""
    changed = experiment.model_dump(mode="json", exclude_defaults=True)
    for name in ("columns", "data_dir", "held_out"):
        changed.get("data", {}).pop(name, None)
    return dict(_flat(changed))


def _flat(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", json_text(value, indent=None)


def leading(view: RunView) -> str:
    """A question about a column that dominates an additive model; empty if none does."""
    return shapes.leading_column(view.shapes, to_float((view.summary.get("held_out") or {}).get("accuracy")))


def plain(view: RunView) -> dict[str, Any]:
    """A run as plain values, for JSON: its summary, folder and plots; a short summary if it has not ended."""
    summary = view.summary or {
        "name": view.experiment.name,
        "status": "not finished",
        "rounds": view.experiment.training.rounds,
        "released_rounds": len(view.history),
        "epsilon_spent": view.last.get("epsilon", 0.0),
    }
    plots = [str(view.directory / "plots" / name) for name in view.plots]
    question = {"leading_column": said} if (said := leading(view)) else {}
    return {**summary, **question, "directory": str(view.directory), "plots": plots}
