"""The one-screen summary of a run: what was trained, the guarantee in a sentence, held-out metrics, files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from fedsw._tools.text import gained, measured, number, to_float, upward
from fedsw.experiment import Experiment
from fedsw.experiment.load import of_unit
from fedsw.experiment.penalty_names import NO_PENALTY
from fedsw.experiment.task_kinds import MODELS
from fedsw.runs.group_names import Names
from fedsw.runs.report.console import named_rows, table_of
from fedsw.runs.report.facts import (
    coefficient_sentences,
    coefficients,
    noise_ratio,
    rounds_of,
    shared_out,
    target_epsilon,
    threshold_sentences,
)
from fedsw.runs.report.facts import probabilities as probabilities_of
from fedsw.runs.report.metric_names import (
    group_table,
    measured_cell,
    metric_name,
    ordered_metrics,
    says_nothing,
    scores,
)
from fedsw.runs.view import RunView

_NARROW = 5
"""Columns that are named, of those whose bounds are too wide, and of those that have a coefficient."""


def summary_panel(view: RunView) -> RenderableType:
    """Show a run: its training, guarantee and results; of one that has not ended what there is."""
    rows = named_rows([*(_ended(view) if view.summary else _unfinished(view)), ("files", _files(view))])
    title = ": ".join(part for part in (view.experiment.name, view.experiment.title) if part)
    return Panel(rows, title=Text(title), title_align="left", box=box.ROUNDED)


def experiments_table(experiments: Iterable[Experiment]) -> Table:
    """The shipped experiments, one a row."""
    rows = []
    for one in experiments:
        sizes = (str(one.training.rounds), str(one.federation.clients))
        rows.append((one.name, one.title, number(one.objective.alpha), target_epsilon(one), *sizes))
    numbers = ("α", "ε", "rounds", "clients")
    return table_of(("name", "what", *numbers), rows, left=("name", "what"), whole=("name", *numbers), pad_edge=False)


def ledger_report(account: Mapping[str, Any]) -> RenderableType:
    """A ledger's total and its rows; runs of rounds that cost the same share one line."""
    same: dict[tuple[str, float, float, float], list[int]] = {}
    for entry in account["entries"]:
        cost = (entry["group"], entry["sampling_rate"], entry["sensitivity"], entry["sigma"])
        same.setdefault(cost, []).append(entry["round"])
    rows = [
        (
            f"{min(rounds)} – {max(rounds)}" if len(rounds) > 1 else str(rounds[0]),
            str(len(rounds)),
            group,
            *(number(value, 4) for value in numbers),
        )
        for (group, *numbers), rounds in same.items()
    ]
    headings = ("rounds", "releases", "group", "sampling rate", "sensitivity", "σ")
    table = table_of(headings, rows, left=("rounds", "group"))
    kind = f"accountant {account['accountant']}" + ("" if account["guarantee"] else ", which is not a guarantee")
    nominal = "; nominal: sampling and noise are reproducible" if account["nominal"] else ""
    words = [f" at δ = {upward(account['delta'])} ({kind}{nominal})"]
    protected = "a record" if (unit := account.get("unit", "record")) == "record" else of_unit(unit)
    if any(entry.get("sampling") == "poisson" for entry in account["entries"]):
        words.append(f"for the addition or removal of {protected}, a weaker promise than the same ε for a replacement")
    elif unit != "record":
        words.append(f"for the replacement of {protected}")
    if account.get("selection"):
        words.append("which is the selection's: the run is the best of a random number of runs")
    if clients := account.get("clients"):
        words.append("every client has a ledger of its own; that is the one that spent most")
        for client, ledger in clients.items():
            spent = f"ε = {upward(ledger['epsilon'], 4)} of {upward(ledger['budget'], 4)}"
            words.append(f"{client}: {spent}, {ledger['released_rounds']} rounds taken part in")
    total = f"ε = {upward(account['epsilon'], 4)} spent of {upward(account['budget'], 4)}"
    return Group(table, Text.assemble((total, "bold"), "\n".join(words)))


def demo_table(rows: Iterable[Mapping[str, Any]], *, caption: str) -> RenderableType:
    """The demo's cells: what is weighed, what is guaranteed, what came out on held-out data."""
    cells = [
        (
            number(row["alpha"]),
            upward(row["target_epsilon"]),
            upward(row["epsilon"]),
            number(row["noise_multiplier"]) if row["noise_multiplier"] else "–",
            number(row["accuracy"]),
            number(row["disparate_impact"], 2),
            number(row["seconds"], 2),
        )
        for row in rows
    ]
    table = table_of(("α", "target ε", "ε", "σ/Δ", "accuracy", "DI", "seconds"), cells, left=())
    return Group(table, Text(caption, style="dim"))


def _account(account: Mapping[str, Any]) -> str:
    runs, limit, spent = account["runs"], account["limit"], "no other run has counted"
    if runs != 1:
        spent = f"ε = {upward(account['epsilon'], 4)} at δ = {upward(account['delta'])} of {runs} runs together"
    most = "no limit" if limit is None else f"limit {upward(limit)}"
    return f"data set {account['data']}: {spent}, {most} (`fedsw account show {account['data']}`)"


def _ended(view: RunView) -> Iterable[tuple[str, RenderableType]]:
    summary, guarantee = view.summary, view.summary.get("guarantee") or {}
    if warnings := summary.get("warnings"):
        yield "WARNING", Text("\n".join(f"! {warning}" for warning in warnings), style="bold red")
    yield "trained", Text(_trained(view))
    if not view.completed:
        yield "status", Text(f"{summary.get('status')}\n`{view.go_on}` goes on", style="yellow")
    yield "cost", Text(_cost(summary))
    if statement := guarantee.get("statement"):
        yield "guarantee", Text(str(statement))
    yield "privacy", _privacy(view)
    if account := summary.get("account"):
        yield "account", Text(_account(account))
    yield from view.experiment.privacy.guarantee.by_noise(noised=_protected(guarantee), none=())
    if held_out := summary.get("held_out"):
        yield "held out", _metrics(held_out, summary.get("held_out_intervals") or {}, view.names)
        if constant := summary.get("constant"):
            yield "a constant", _constant(view, constant)
        if on := summary.get("held_out_measured_on"):
            yield "measured on", Text(_measured_on(view, on, summary.get("held_out_release")))
    if probabilities := probabilities_of(summary):
        yield "probabilities", Text(probabilities)
    if histograms := summary.get("histograms"):
        yield "histograms", Text(_histograms(histograms))
    if moments := summary.get("moments"):
        yield "moments", Text(_moments(moments))
    if told := _coefficients(summary):
        yield "coefficients", Text(told)
    if thresholds := summary.get("thresholds"):
        yield "thresholds", Text(_thresholds(thresholds, summary, view.names))
    if noise := summary.get("signal_to_noise"):
        learnt = bool(moments.get("inputs", True)) if moments else False  # not of moments of the target alone
        yield "signal", Text(_signal(noise, moments=learnt))
    if by_group := summary.get("held_out_by_group"):
        yield "by group", _groups(by_group, summary.get("held_out_by_group_intervals") or {}, view.names)


def _protected(guarantee: Mapping[str, Any]) -> Iterable[tuple[str, Text]]:
    yield "protects", Text(f"{guarantee.get('protects')}, against {guarantee.get('against')}")
    yield "public", Text(", ".join(str(item) for item in guarantee.get("public", ())))


def _histograms(histograms: Mapping[str, Any]) -> str:
    """Say what histograms of columns cost, and which columns have bins by them."""
    binned = ", ".join(f"{name} in {bins}" for name, bins in histograms["bins"].items())
    share, columns = f"{100 * histograms['share']:.0f} % of the budget (of μ²)", len(histograms["columns"])
    none = "none has a point mass or a long tail, and all keep their knots"
    return f"{share} for histograms of {columns} columns of numbers; {f'bins: {binned}' if binned else none}"


def _moments(moments: Mapping[str, Any]) -> str:
    """Say what released moments show without held-out records: a constant's worth, and columns with too wide bounds."""
    constant, name = moments["constant"], "accuracy" if moments["classes"] else "squared error"
    words = (
        f"{100 * moments['share']:.0f} % of the budget (of μ²) for counts, means and second moments of "
        f"{moments['records']:,} records; by them a constant has {name} "
        f"{measured(constant['value'], (constant['low'], constant['high']))}"
    )
    narrow = sorted(moments["narrow_columns"], key=lambda column: float(column["most"]))
    if narrow:
        first = ", ".join(
            f"{column['name']} at most {math.ceil(100 * column['most'])} %" for column in narrow[:_NARROW]
        )
        more = f" and {len(narrow) - _NARROW} more" if len(narrow) > _NARROW else ""
        words += f"\nuse little of their declared bounds: {first}{more}"
    return words


def _coefficients(summary: Mapping[str, Any]) -> str:
    """The surest coefficients by released moments in a line; empty where a run has none."""
    told, said = coefficients(summary), coefficient_sentences(summary)
    if not told.rows:
        return "".join(said)
    first = "; ".join(f"{' of '.join(of)} {value} ± {error}" for *of, value, error, _ in told.rows[:_NARROW])
    more = f"; {len(told.rows) - _NARROW} more" if len(told.rows) > _NARROW else ""
    hidden = len(summary["moments"]["coefficients"]["hidden"])
    without = f"; noise hides {hidden} more inputs" if hidden else ""
    return f"{first}{more} (least squares by the moments, ± a standard error{without}; `fedsw report`)"


def _thresholds(thresholds: Mapping[str, Any], summary: Mapping[str, Any], names: Names) -> str:
    """Thresholds by group in a line, what they do, and who reads the group; or why there are none."""
    by_group = thresholds.get("by_group") or {}
    cuts = ", ".join(
        f"{names.cell(group)} {number(entry['threshold'], 3)} (selects {shared_out(entry)})"
        for group, entry in by_group.items()
    )
    return "\n".join(filter(None, [cuts, *threshold_sentences(summary, names)]))


def _unfinished(view: RunView) -> Iterable[tuple[str, Text]]:
    yield "status", Text(f"not finished; `{view.go_on}` goes on", style="yellow")
    yield "released", Text(rounds_of(view))
    if view.history:
        yield "spent", Text(f"ε {upward(view.last.get('epsilon'))} of {target_epsilon(view.experiment)}")
        if held_out := next((row["held_out"] for row in reversed(view.history) if row.get("held_out")), None):
            yield "held out", _metrics(held_out, {}, view.names)


def _trained(view: RunView) -> str:
    experiment, summary, model = view.experiment, view.summary, view.experiment.model
    kind = " ".join([model.kind, *map(str, model.hidden)])
    if MODELS.get(model.kind).points:
        kind = f"{model.particles} particles"
    return (
        f"{kind} for {experiment.objective.task} {_compared(experiment)}, on {experiment.data.label} data: "
        f"{summary.get('clients')} clients, {rounds_of(view)}, engine {summary.get('engine')}"
    )


def _compared(experiment: Experiment) -> str:
    goal = experiment.objective
    return "without a penalty" if goal.penalty == NO_PENALTY else f"with {goal.penalty}, α = {number(goal.alpha)}"


def _cost(summary: Mapping[str, Any]) -> str:
    up, down = (bytes_of(summary.get(key)) for key in ("bytes_up", "bytes_down"))
    took = "" if summary.get("seconds") is None else f"{number(summary['seconds'])} s, "
    return f"{took}{up} up, {down} down"


def _of_noise(view: RunView, guarantee: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Noise and its accounting in words, with their style."""
    accountant, relation = guarantee.get("accountant"), str(guarantee.get("relation", ""))
    details = [
        *([relation] if relation else []),
        f"{noise_ratio(guarantee)} = {number(guarantee.get('noise_multiplier'), 4)}",
        f"bound {guarantee.get('bound')}",
        f"accountant {accountant}",
        f"{guarantee.get('sampling')} sampling",
    ]
    yield f" ({', '.join(details)})", "not bold"
    if (other := guarantee.get("epsilon_of_replacement")) is not None:
        yield (
            "\nnot comparable with a replacement's ε, which the same noise has at "
            f"{upward(other, 4)}: a record comes or goes here",
            "not bold",
        )
    if guarantee.get("word") == "stated":
        penalty = view.experiment.objective.penalty
        yield f"\nthe bound of the penalty {penalty} is stated by the user; nothing proves it", "red"
    if guarantee.get("accountant_is_guarantee") is False:
        yield f"\nno guarantee: what the accountant {accountant} says may fall below the truth", "red"


def _privacy(view: RunView) -> Text:
    summary, guarantee = view.summary, view.summary.get("guarantee") or {}
    text = Text(f"ε = {upward(summary.get('epsilon'), 4)} at δ = {upward(summary.get('delta'))}", style="bold")
    if not view.completed:
        text.append(f", {upward(summary.get('epsilon_spent'), 4)} spent so far", style="bold")
    for words, style in view.experiment.privacy.guarantee.by_noise(noised=_of_noise(view, guarantee), none=()):
        text.append(words, style=style)
    if summary.get("nominal"):
        text.append(
            f"\nnominal: seed {summary.get('seed')} makes sampling and noise reproducible: who knows it can undo them",
            style="yellow",
        )
    if to_float(summary.get("epsilon_of_reader")) != to_float(summary.get("epsilon")):
        reader = upward(summary.get("epsilon_of_reader"))
        text.append(f"\nfor a reader of this record ε = {reader}: it shows metrics of private data", style="red")
    return text


def _measured_on(view: RunView, on: Mapping[str, int], release: Mapping[str, Any] | None = None) -> str:
    """How many held-out records, and directions, a summary's metrics are of; or what noised counts they are made of."""
    if release is not None:
        noise = f"with noise of σ = {number(release['sigma'])} in each count, within the guarantee"
        counted = f"; {release['counted_as']}" if "counted_as" in release else ""
        return f"{on['records']} records that {release['clients']} clients kept out of training, {noise}{counted}"
    part = f"{on['records']} held-out records"
    if on["records"] < on["of"]:
        part = f"{on['records']} of {on['of']} held-out records (--evaluate full: all)"
    if view.experiment.data.of_other_people:
        part += ", other people by the word of whoever ran this"
    return f"{part}, {on['directions']} directions" if "directions" in on else part


def _metrics(held_out: Mapping[str, Any], intervals: Mapping[str, Any], called: Names) -> Text:
    """Metrics with their intervals; says so where none is known."""
    names = ordered_metrics(held_out, called)
    names += [name for name in intervals if name in held_out and name not in names and not says_nothing(name, called)]
    shown = (f"{metric_name(name, called)} {measured(held_out[name], intervals.get(name))}" for name in names)
    text = Text(" · ".join(shown))
    lacking = [metric_name(name, called) for name in names if name not in intervals]
    numbers = [to_float(held_out[name]) for name in names]
    if not any(value is not None and math.isfinite(value) for value in numbers):
        text.append(" (what the model returns is not finite)")
    elif len(lacking) == len(names):
        text.append(" (no intervals: they come with the end of a run)")
    elif lacking:
        text.append(f" (no interval is known of {', '.join(lacking)})")
    return text


def _constant(view: RunView, constant: Mapping[str, Any]) -> Text:
    """Scores of a constant on the same records, and of the best threshold."""
    summary, names = view.summary, view.names
    known = scores(summary, "constant")
    parts = [f"{metric_name(name, names)} {measured(*known[name])}" for name in ordered_metrics(constant, names)]
    text = Text(f"{' · '.join(parts)} ({summary.get('constant_answers')})")
    if gain := summary.get("gain"):
        squares = " in squared error" if "root_mean_squared_error" in constant else ""
        text.append(f"; {_gain(gain)}{squares}")
    if best := summary.get("best_threshold"):
        interval = [best["low"], best["high"]] if "low" in best else None
        of = f" of {names.label(names.positive)}" if names.classes and names.positive is not None else ""
        text.append(
            f"; the model at the threshold{of} that suits these records best, {number(best['threshold'])}: accuracy "
            f"{measured(best['accuracy'], interval)}"
        )
    return text


def _gain(gain: Mapping[str, Any]) -> str:
    """Say by how much the model is better or worse; nothing is claimed that the interval does not hold."""
    by = gained(gain["value"], [gain["low"], gain["high"]])
    if gain["claim"] == "cannot be told":
        return f"the model cannot be told from it: {by}"
    return f"the model is {gain['claim']}: {by}"


def _signal(noise: Mapping[str, Any], *, moments: bool) -> str:
    """Signal against noise, in numbers and words; a run that began with moments may know much where rounds do not."""
    from fedsw.runs.evaluation.verdict import FELT, STARTED  # late: it computes

    rounds = f"{number(noise['a_round'], 2)} in a round, {number(noise['the_run'], 2)} over {noise['rounds']}"
    words = STARTED if moments and not noise["the_run"] >= FELT else noise["words"]
    return f"{words} (signal to noise about {rounds})"


def _groups(by_group: Mapping[str, Mapping[str, Any]], around: Mapping[str, Mapping[str, Any]], called: Names) -> Table:
    """A line for each group: its held-out records, and each metric on them over its interval."""
    names, rows = group_table(by_group, around, measured_cell, called=called)
    return table_of(("group", *names), rows, pad_edge=False)


def _files(view: RunView) -> Text:
    plots = f"\nplots/: {', '.join(view.plots)}" if view.plots else ""
    return Text.assemble((f"{view.directory}/", "cyan"), f"\n{', '.join(view.files)}{plots}")


def bytes_of(count: Any) -> str:
    """A number of bytes in a unit of its size, as in 1.2 MB; an en dash when there is no number."""
    size = to_float(count)
    if size is None:
        return "–"
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
