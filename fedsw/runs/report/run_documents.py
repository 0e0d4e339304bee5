"""The documents of a run, made of `facts`: its screen, its model card, its page; and runs side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from fedsw._tools.text import at_delta, bytes_of, measured, number, to_float, upward
from fedsw.experiment.load import unprotected
from fedsw.privacy.accounting.lifetime import total_epsilon
from fedsw.runs.group_names import UNNAMED
from fedsw.runs.report import facts
from fedsw.runs.report.document import (
    Code,
    Document,
    FactTable,
    Listed,
    Note,
    PageSection,
    Part,
    Strong,
    named,
    sections,
)
from fedsw.runs.report.figures import Picture, picture
from fedsw.runs.report.metric_names import measured_cell, metric_name, ordered_metrics
from fedsw.runs.report.person import for_a_person, in_a_sentence, meaning_of
from fedsw.runs.report.plots import PICTURES, draw_metrics, draw_privacy, draw_runs, draw_worth, pictures_of
from fedsw.runs.report.shapes import contributions, draw_shapes, shapes_in_words
from fedsw.runs.view import OPERATORS, RunView, require_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedsw.runs.report.render import Page


@dataclass(frozen=True)
class WhatIfs:
    """A plan's forecast for other numbers of records, and other epsilons."""

    verdict: str
    table: FactTable

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any]) -> WhatIfs | None:
        """Read them off a plan as plain values (`fedsw plan --json`); None if it has no forecast."""
        forecast = plan.get("forecast")
        if not forecast:
            return None
        least = forecast["thresholds"]["feasible"]
        shares = {(case["records"], case["epsilon"]): float(case["kept"]) for case in forecast["what_ifs"]}
        epsilons = sorted({epsilon for _, epsilon in shares})

        def cell(share: float) -> str:
            return "a constant does as well" if share < least else f"{100 * min(1.0, share):.0f} %"

        rows = [
            (f"{records:,}", *(cell(shares[records, epsilon]) for epsilon in epsilons))
            for records in sorted({records for records, _ in shares})
        ]
        return cls(str(plan["verdict"]), FactTable.of(("records", *(f"ε = {upward(case)}" for case in epsilons)), rows))

    def listed(self) -> Listed:
        """The table, which a page moves along."""
        return Listed("Left of what can be learnt, by records and ε", self.table, "cells", left=())

    def parts(self) -> list[Part]:
        """Forecasts on the page of a run."""
        said = f"{self.verdict}. A forecast from public twins: what would be left of what can be learnt."
        return [said, self.listed()]


_NARROW = 5
"""Most columns with too wide bounds, or with a coefficient, that a screen names."""


def summary_screen(view: RunView) -> Document:
    """The screen of a run: its training, guarantee and results, as far as there are any."""
    summary, ended = view.summary, facts.ended(view)
    title = ": ".join(part for part in (view.experiment.name, view.experiment.title) if part)
    plots = [f"plots/: {', '.join(view.plots)}"] if view.plots else []
    begins = [
        ("trained", [facts.description(view)]),
        ("status", [Strong(ended), f"`{view.go_on}` goes on"] if ended else []),
    ]
    files = ("files", [Code(f"{view.directory}/"), ", ".join(view.files), *plots])
    if not summary:
        last: dict[str, Any] = next((row for row in reversed(view.history) if row.get("held_out")), {})
        so_far = facts.measured_line(replace(view, summary=last)) if last else ""
        return Document(title, sections=sections([*begins, ("held out", [so_far]), files]))
    guarantee, counts = summary.get("guarantee") or {}, ""
    if account := summary.get("account"):
        runs, limit, spent = account["runs"], account["limit"], "no other run has counted"
        if runs != 1:
            spent = f"{at_delta(account['epsilon'], account['delta'])} of {runs} runs together"
        most = "no limit" if limit is None else f"limit {upward(limit)}"
        counts = f"data set {account['data']}: {spent}, {most} (`fedsw account show {account['data']}`)"
    took = "" if summary.get("seconds") is None else f"{number(summary['seconds'])} s, "
    up, down = (bytes_of(summary.get(key)) for key in ("bytes_up", "bytes_down"))
    protected = [f"{guarantee.get('protects')}, against {guarantee.get('against')}"]
    public = [", ".join(map(str, guarantee.get("public", ())))]
    cuts = (f"{group} {cut} (selects {share})" for group, cut, share in facts.thresholds(view).rows)
    noised = view.experiment.privacy.guarantee.unprotected is None
    return Document(
        title,
        warnings=tuple(summary.get("warnings") or ()),
        sections=sections(
            [
                *begins,
                ("cost", [f"{took}{up} up, {down} down, engine {summary.get('engine')}"]),
                ("guarantee", [str(guarantee.get("statement", ""))]),
                ("privacy", [facts.privacy(view), *map(Strong, facts.doubts(view))]),
                ("account", [counts]),
                ("protects", protected if noised else []),
                ("public", public if noised else []),
                ("held out", [facts.measured_line(view), facts.measured_on(view)]),
                ("a constant", [facts.measured_line(view, "constant"), " ".join(facts.beside_constant(view))]),
                ("probabilities", [facts.probabilities(summary)]),
                ("histograms", [_histograms(summary["histograms"])] if summary.get("histograms") else []),
                ("moments", _moments(summary["moments"]) if summary.get("moments") else []),
                ("coefficients", [_coefficients(summary)]),
                ("columns", [leading] if (leading := facts.leading(view)) else []),
                ("thresholds", [", ".join(cuts), *facts.threshold_sentences(view)]),
                ("signal", [facts.signal(view)]),
                ("by group", [Listed("", facts.by_group(view, measured_cell))]),
                ("by column", [Listed("", facts.by_column(view, measured_cell))]),
                files,
            ]
        ),
    )


def _histograms(histograms: Mapping[str, Any]) -> str:
    """The cost of histograms of columns, and the columns that have bins by them."""
    binned = ", ".join(f"{name} in {bins}" for name, bins in histograms["bins"].items())
    share, columns = f"{100 * histograms['share']:.0f} % of the budget (of μ²)", len(histograms["columns"])
    none = "none has a point mass or a long tail, and all keep their knots"
    return f"{share} for histograms of {columns} columns of numbers; {f'bins: {binned}' if binned else none}"


def _moments(moments: Mapping[str, Any]) -> Iterator[str]:
    """Yield facts from released moments: a constant's score, and columns with too wide bounds."""
    constant, name = moments["constant"], "accuracy" if moments["classes"] else "squared error"
    yield (
        f"{100 * moments['share']:.0f} % of the budget (of μ²) for counts, means and second moments of "
        f"{moments['records']:,} records; by them a constant has {name} "
        f"{measured(constant['value'], (constant['low'], constant['high']))}"
    )
    narrow = sorted(moments["narrow_columns"], key=lambda column: float(column["most"]))
    first = ", ".join(f"{column['name']} at most {math.ceil(100 * column['most'])} %" for column in narrow[:_NARROW])
    more = f" and {len(narrow) - _NARROW} more" if len(narrow) > _NARROW else ""
    if narrow:
        yield f"use little of their declared bounds: {first}{more}"


def _coefficients(summary: Mapping[str, Any]) -> str:
    """The surest coefficients by released moments in a line; empty if a run has none."""
    rows = facts.coefficients(summary).rows
    if not rows:
        return "".join(facts.coefficient_sentences(summary))
    first = "; ".join(f"{' of '.join(of)} {value} ± {error}" for *of, value, error, _ in rows[:_NARROW])
    more = f"; {len(rows) - _NARROW} more" if len(rows) > _NARROW else ""
    hidden = len(summary["moments"]["coefficients"]["hidden"])
    without = f"; noise hides {hidden} more inputs" if hidden else ""
    return f"{first}{more} (least squares by the moments, ± a standard error{without}; `fedsw report`)"


def card(view: RunView) -> Document:
    """The model card of a run that has ended: its guarantee, data, results and use."""
    experiment, directory = view.experiment, view.directory
    return Document(
        f"{experiment.name}: {experiment.title}" if experiment.title else experiment.name,
        begins=(facts.description(view), facts.ended(view)),
        warnings=(*facts.doubts(view), *view.summary.get("warnings", ())),
        sections=sections(
            [
                ("Guarantee", _guarantee(view)),
                ("Data", _sizes(view)),
                ("What it is worth", _worth(view)),
                *_released_beside(view),
                ("Columns", _columns(view)),
                (
                    "Use",
                    [
                        Code(
                            f"fedsw predict {directory} table.csv -o predictions.csv\n"
                            f"fedsw export {directory} -o model.pt"
                        ),
                        f'In Python fedsw.load("{directory}").predict(frame). The model is a function of what was '
                        "released: using it spends nothing more of the guarantee. A prediction is as secret as the "
                        "record it is of.",
                    ],
                ),
                ("Settings", [_settings(view)]),
                ("Versions", [", ".join(f"{name} {version}" for name, version in view.summary["versions"].items())]),
            ]
        ),
    )


def _guarantee(view: RunView) -> list[Part]:
    if not (guarantee := view.summary.get("guarantee")):
        return []
    return [str(guarantee.get("statement", "")), Listed("The guarantee, part by part", facts.promise(view.summary))]


def _worth(view: RunView) -> list[Part]:
    said = facts.probabilities(view.summary)
    return [
        facts.measured_on(view),
        " ".join(facts.beside_constant(view)),
        Listed("The model beside a constant", facts.worth(view)),
        Listed("By group, with intervals of 95 %", facts.by_group(view)),
        Listed("By each column of the groups, with intervals of 95 %", facts.by_column(view)),
        f"Probabilities: {said}." if said else "",
    ]


def _released_beside(view: RunView) -> Iterator[tuple[str, list[Part]]]:
    """Sections on releases beside the rounds: coefficients and thresholds."""
    yield (
        "Coefficients",
        [
            " ".join(facts.coefficient_sentences(view.summary)),
            Listed("Coefficients by released moments, the surest first", facts.coefficients(view.summary)),
        ],
    )
    leading = facts.leading(view)
    table = [Listed("What each column does, the most first", contributions(view.shapes))] if view.shapes else []
    yield "What each column does", [*([Strong(leading)] if leading else []), *table]
    cuts = Listed("Thresholds by group", facts.thresholds(view))
    yield "Thresholds by group", [" ".join(facts.threshold_sentences(view)), cuts]


def _sizes(view: RunView) -> list[Part]:
    return [Listed("Public sizes, of all clients together", facts.sizes(view))]


def _settings(view: RunView) -> Listed:
    changed = facts.settings(view.experiment).items()
    return Listed.of("Settings that differ from the defaults", ("setting", "value"), changed)


def _columns(view: RunView) -> list[Part]:
    if (columns := view.experiment.data.columns) is None:
        return []
    return [
        "A table to predict from has these columns; a cell that does not fit is refused.",
        Listed("Columns, public as declared", facts.declared(columns)),
    ]


def article(whole: RunView, *, name: str, key: str, operator: bool, what_ifs: WhatIfs | None = None) -> Document:
    """The page of a run: what its guarantee covers, and for its `operator` the rest."""
    view = whole if operator else whole.shareable()
    summary, experiment, model = view.summary, view.experiment, view.experiment.privacy.model
    meaning, figures = meaning_of(view), [*_outputs(view, key)]
    rows = [f"{metric}: the model {model}, a constant {constant}" for metric, model, constant in facts.worth(view).rows]
    says = "; ".join((*rows[:2], "")) + "all numbers are in the tables."
    worth = [*_drawn(draw_worth(view), f"{key}-worth", "Worth, with intervals of 95 %.", says)]
    measured_beside = summary.get("constant") or summary.get("held_out_by_group")
    first = next(iter((worth or figures) if measured_beside else (figures or worth)), None)
    noise, versions = facts.signal(view), (summary.get("versions") or {}).items()
    budget = [
        ("planned", at_delta(view.plan.get("epsilon"), view.plan.get("delta"))),
        ("spent", f"ε = {upward(view.spent, 4)} for {facts.rounds_of(view)}"),
        *([("signal against noise", noise)] if noise else []),
    ]
    trusted = (
        ("Trust model", model.name),
        ("Who is protected, against whom?", model.protects),
        ("Who is trusted, with what?", model.trusted_with),
        ("What leaves a client?", model.leaves),
        ("Who adds the noise?", model.adds_noise),
    )
    doubts = facts.doubts(view, left_out="" if operator else "the run's folder")
    return Document(
        name,
        verdict=facts.verdict(view),
        begins=(
            Note(experiment.title),
            in_a_sentence(view, meaning),
            *([first] if first else []),
            facts.description(view),
        ),
        warnings=tuple(filter(None, (facts.ended(view), *doubts, *(summary.get("warnings") or ())))),
        sections=sections(
            [
                (
                    "Who is protected from whom",
                    [Listed.of("The trust model", ("question", "answer"), trusted), *_guarantee(view)],
                ),
                ("What ε means for a person", [] if meaning is None else for_a_person(view, key, meaning)),
                ("Budget over the rounds", [named(budget, "Budget"), *_over_rounds(view, key)]),
                ("What it is worth", [*_worth(view), *(figure for figure in figures if figure != first)]),
                *_released_beside(view),
                ("What if", [] if what_ifs is None else what_ifs.parts()),
                (
                    "Data and settings",
                    [
                        *_sizes(view),
                        *_columns(view),
                        replace(_settings(view), folded=True),
                        Listed("Versions", FactTable.of(("package", "version"), versions), folded=True),
                    ],
                ),
                ("Verify it", _ledgers(view, name)),
                ("For the operator only", [_operator(view)] if operator else []),
            ]
        ),
    )


def _drawn(figure: Figure | None, name: str, caption: str, says: str) -> Iterator[Picture]:
    if figure is not None:
        yield picture(figure, name=name, caption=caption, says=says)


def _outputs(view: RunView, key: str) -> Iterator[Picture]:
    for what in pictures_of(view, ()):
        caption = PICTURES.get(what).caption
        yield from _drawn(
            PICTURES.get(what).draw(view), f"{key}-{what}", caption, f"{caption} Metrics are in the tables."
        )
    shapes = draw_shapes(view.shapes, view.experiment.name)
    yield from _drawn(shapes, f"{key}-shapes", "What each column adds to an answer.", shapes_in_words(view.shapes))


def _over_rounds(view: RunView, key: str) -> Iterator[Picture]:
    gone = f"After round {view.last.get('round', 0)}, ε = {upward(view.last.get('epsilon'), 4)} was spent."
    yield from _drawn(draw_privacy(view), f"{key}-privacy", "Budget over the rounds.", gone)
    last: dict[str, Any] = next((row["held_out"] for row in reversed(view.history) if row.get("held_out")), {})
    said = [f"{metric_name(metric, view.names)} {number(last[metric])}" for metric in ordered_metrics(last, view.names)]
    says = f"At the last measurement: {', '.join(said)}"
    yield from _drawn(draw_metrics(view), f"{key}-metrics", "Held-out metrics over the rounds.", says)


def _ledgers(view: RunView, name: str) -> list[Part]:
    """How to check the guarantee; the last row's digest commits to all rows before it."""
    how = (
        "Every release was charged in a ledger before it left. Each row has the digest of the one before, so that the "
        f"last digest stands for all of them. `fedsw audit {name}` recomputes the guarantee from the files."
    )
    if view.spending is None:
        return [how, "There is no ledger in the folder."]
    head = view.spending.account["head"]
    heads = {"ledger": head} if "sequence" in head else head  # one for each client with its own ledger
    rows = [(key, one["sequence"], one["digest"]) for key, one in heads.items()]
    return [how, Listed.of("The ledger’s last row", ("ledger", "releases", "digest of the last row"), rows)]


def _operator(view: RunView) -> Listed:
    """Times, traffic and machine, which are not for publication."""
    times, summary = sorted(view.seconds), view.summary
    rows: list[tuple[str, object]] = [("folder", view.directory), ("goes on with", view.go_on)]
    if times:
        pace = f"{number(times[len(times) // 2])} (median), {number(times[0])} to {number(times[-1])}"
        rows += [("seconds a round", pace), ("clients in the last round", view.last.get("clients", "–"))]
    rows += [(name.replace("_", " "), _plain(summary[name])) for name in OPERATORS if summary.get(name) is not None]
    return named(rows, "Times, traffic, machine: not for publication")


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    return number(value, 4) if isinstance(value, float) else str(value)


def beside(named: Sequence[tuple[str, RunView]]) -> tuple[PageSection, ...]:
    """Runs side by side, under their names on the page: results, and settings that differ."""
    names, views = zip(*named, strict=True)
    settings = [facts.settings(view.experiment) for view in views]
    rows = [
        (key, *(run.get(key, "default") for run in settings))
        for key in sorted({key for run in settings for key in run})
    ]
    differ = Listed.of("Settings that differ", ("setting", *names), (row for row in rows if len(set(row[1:])) > 1))
    called = views[0].names if len({(run.names.classes, run.names.positive) for run in views}) == 1 else UNNAMED
    measures = [facts.measures(replace(view, names=called)) for view in views]
    metrics = {key: name for run in measures for key, (name, _) in run.items()}
    columns = [
        (
            view.summary.get("status", "not finished"),
            upward(view.summary.get("epsilon"), 4),
            upward(view.summary.get("delta")),
            view.experiment.privacy.trust,
            facts.gain(view) or "–",
            *(said.get(key, ("", "–"))[1] for key in metrics),
        )
        for view, said in zip(views, measures, strict=True)
    ]
    heads = ("how it ended", "ε", "δ", "trust model", "beside a constant", *metrics.values())
    results = Listed.of("Results", ("", *names), zip(heads, *columns, strict=True))
    says = "; ".join(f"{name}: {facts.verdict(view)}" for name, view in named)
    figure = draw_runs(named)
    drawn = [] if figure is None else [picture(figure, name="beside", caption="Worth against ε.", says=says)]
    ended = [Strong(f"{name}: {facts.ended(view)}") for name, view in named if facts.ended(view)]
    return sections([("Side by side", [*ended, results, *drawn, differ or "Their settings are the same."])])


def together(views: Sequence[RunView]) -> str:
    """The joint cost of runs to a record that is in all of them, in a sentence, at the smallest of their deltas."""
    subject = "Together, for a record that is in all of them"
    bare = {reason for view in views if (reason := unprotected(view.experiment)) is not None}
    if bare:
        return f"{subject}: ε = ∞, for {'; '.join(sorted(bare))}."
    deltas = [to_float(view.summary.get("delta")) or to_float(view.plan.get("delta")) for view in views]
    known = [delta for delta in deltas if delta is not None]
    if not known:
        return ""
    costs = [view.spending.cost for view in views if view.spending is not None]
    epsilon = total_epsilon(costs, min(known))
    names = {view.experiment.data.account for view in views} - {None}
    more = "".join(
        f"; `fedsw account show {name}` has all that count in data set {name}" for name in sorted(map(str, names))
    )
    return (
        f"{subject}: {at_delta(epsilon, min(known))}, as if all had been planned ahead. Other runs "
        f"on the same records add to it{more}."
    )


_BANNER = (
    "For the operator only: this page has times, traffic and the machine, and everything that was measured. It is not "
    "for publication."
)


def page(views: Sequence[RunView], *, operator: bool = False, what_ifs: Sequence[WhatIfs | None] = ()) -> Page:
    """Make the page of one run or several, of their whole views; ValueError for a view without its ledgers."""
    named = [(f"{view.directory.resolve().parent.name}/{view.directory.name}", require_whole(view)) for view in views]
    articles = [
        article(view, name=name, key=f"run{position}", operator=operator, what_ifs=forecast)
        for position, ((name, view), forecast) in enumerate(zip_longest(named, what_ifs), start=1)
    ]
    whole, banner = articles[0], [_BANNER] if operator else []
    if len(articles) > 1:
        shown = [(name, view if operator else view.shareable()) for name, view in named]
        whole = Document(
            "Runs side by side",
            begins=(f"{len(views)} runs side by side. Each has its own part below.", Strong(together(views))),
            sections=beside(shown),
            parts=tuple(articles),
        )
    return replace(whole, warnings=(*banner, *whole.warnings)).page()
