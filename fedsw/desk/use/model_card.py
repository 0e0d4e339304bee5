"""A model card: for whom a model is private, and what it is worth."""

from __future__ import annotations

from pathlib import Path

from fedsw._tools import files
from fedsw._tools.text import json_text
from fedsw.runs.recovery import require_remembered
from fedsw.runs.report import facts
from fedsw.runs.report.document import Code, Document, Listed, PageSection, Part
from fedsw.runs.run_files import RunFile
from fedsw.runs.view import RunView, read_run


def write_card(directory: Path, path: Path | None = None) -> Path:
    """Write the card of a run, by default in Markdown into its folder, as a page if the path ends in .html.

    Raises:
        ValueError: if it is no run, or has not ended. LedgerReplaced: if its ledger is older than its summary.
    """
    view = read_run(directory)
    require_remembered(directory, missing_ok=True)
    if not view.summary:
        raise ValueError(
            f"{directory} has not ended, and there is nothing yet that a card could say; `fedsw show {directory} "
            "progress` shows how far it is"
        )
    target = directory / RunFile.CARD if path is None else path
    document = card(view)
    files.replace(target, (document.page() if target.suffix == ".html" else document.markdown()).encode())
    return target


def card(view: RunView) -> Document:
    """Write the card of a run that has ended."""
    summary, experiment, directory = view.summary, view.experiment, view.directory
    columns, clients, sizes = experiment.data.columns, summary.get("clients"), facts.sizes(view)
    constant = summary.get("constant_answers")
    answers = f"The constant is the best answer that looks at no input: {constant}. {facts.gain(summary)}"
    declared: list[Part] = []
    if columns is not None:
        declared = [
            "A table to predict from has these columns, public as declared; a cell that does not fit is refused.",
            Listed("Columns", facts.declared(columns)),
        ]
    parts: dict[str, list[Part]] = {
        "Guarantee": [summary["guarantee"]["statement"], Listed("Part by part", facts.promise(summary))],
        "Data": [
            f"Public sizes, of {clients} clients together:" if sizes.rows else f"{clients} clients.",
            Listed("Public sizes", sizes),
            facts.measured_on(summary),
        ],
        "What it is worth": [
            Listed("The model beside a constant", facts.worth(summary, view.names)),
            answers if constant else "",
            f"Probabilities: {facts.probabilities(summary)}." if facts.probabilities(summary) else "",
            Listed("By group, with intervals of 95 %", facts.by_group(summary, view.names)),
        ],
        "Coefficients": [
            " ".join(facts.coefficient_sentences(summary)),
            Listed("Coefficients", facts.coefficients(summary)),
        ],
        "Thresholds by group": [
            " ".join(facts.threshold_sentences(summary, view.names)),
            Listed("Thresholds", facts.thresholds(summary, view.names)),
        ],
        "Columns": declared,
        "Use": [
            Code(f"fedsw predict {directory} table.csv -o predictions.csv\nfedsw export {directory} -o model.pt"),
            f'In Python fedsw.load("{directory}").predict(frame). The model is a function of what was released: using '
            "it spends nothing more of the guarantee. A prediction is as secret as the record it is of.",
        ],
        "Settings": ["What differs from the defaults.", Code(json_text(facts.settings(experiment)))],
        "Versions": [", ".join(f"{name} {version}" for name, version in summary["versions"].items())],
    }
    return Document(
        title=f"{experiment.name}: {experiment.title}" if experiment.title else experiment.name,
        verdict="",
        begins=(facts.description(view),),
        warnings=tuple(summary.get("warnings", ())),
        sections=tuple(PageSection.of(heading, content) for heading, content in parts.items()),
    )
