"""The model card: what a run's model is, for whom it is private, and what it is worth, in Markdown or as a page."""

from __future__ import annotations

from pathlib import Path

from fedsw import files
from fedsw.report import facts
from fedsw.report.page.page import Code, Document, Listed, Section
from fedsw.runs.files import CARD
from fedsw.runs.record import RunRecord, read_run
from fedsw.text import json_text


def write_card(directory: Path, path: Path | None = None) -> Path:
    """Write the card of a run, by default in Markdown into its folder; returns where.

    Args:
        path: a name that ends in .html has the card as a page.

    Raises:
        ValueError: if it is no run, or has not ended. LedgerReplaced: if its ledger is older than its summary.
    """
    from fedsw.runs.recovery import require_remembered

    record = read_run(directory)
    require_remembered(directory, missing_ok=True)
    if not record.summary:
        raise ValueError(
            f"{directory} has not ended, and there is nothing yet that a card could say; `fedsw show {directory} "
            "progress` shows how far it is"
        )
    place = directory / CARD if path is None else path
    found = card(record)
    files.replace(place, (found.page() if place.suffix == ".html" else found.markdown()).encode())
    return place


def card(record: RunRecord) -> Document:
    """Write the card of a run that has ended."""
    summary, experiment, directory = record.summary, record.experiment, record.directory
    columns, clients, sizes = experiment.data.columns, summary.get("clients"), facts.sizes(record)
    constant = summary.get("constant_answers")
    answers = f"The constant is the best answer that looks at no input: {constant}. {facts.gain(summary)}"
    return Document(
        title=f"{experiment.name}: {experiment.title}" if experiment.title else experiment.name,
        verdict="",
        begins=(facts.description(record),),
        warnings=tuple(summary.get("warnings", ())),
        sections=(
            Section.of(
                "Guarantee", [summary["guarantee"]["statement"], Listed("Part by part", facts.promise(summary))]
            ),
            Section.of(
                "Data",
                [
                    f"Public sizes, of {clients} clients together:" if sizes.rows else f"{clients} clients.",
                    Listed("Public sizes", sizes),
                    facts.measured_on(summary),
                ],
            ),
            Section.of(
                "What it is worth",
                [
                    Listed("The model beside a constant", facts.worth(summary)),
                    answers if constant else "",
                    Listed("By group, with intervals of 95 %", facts.by_group(summary)),
                ],
            ),
            Section.of(
                "Columns",
                []
                if columns is None
                else [
                    "A table to predict from has these columns, public as declared; a cell that does not fit is "
                    "refused.",
                    Listed("Columns", facts.declared(columns)),
                ],
            ),
            Section.of(
                "Use",
                [
                    Code(
                        f"fedsw predict {directory} table.csv -o predictions.csv\nfedsw export {directory} -o model.pt"
                    ),
                    f'In Python fedsw.load("{directory}").predict(frame). The model is a function of what was '
                    "released: using it spends nothing more of the guarantee. A prediction is as secret as the record "
                    "it is of.",
                ],
            ),
            Section.of("Settings", ["What differs from the defaults.", Code(json_text(facts.settings(experiment)))]),
            Section.of("Versions", [", ".join(f"{name} {version}" for name, version in summary["versions"].items())]),
        ),
    )
