"""Verbs that put a finished run to use: `fedsw evaluate`, `predict`, `export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedsw._tools import files
from fedsw._tools.text import number, warning_of_formulas
from fedsw.cli._modules import exporting, table_columns, trained, verbs
from fedsw.cli.options import (
    RUNS,
    AllowModule,
    DataDir,
    Force,
    Json,
    Run,
    Runs,
    Spreadsheet,
    echo,
    echo_json,
    files_of_run,
    found,
    require_format,
    require_writable,
    say,
)

if TYPE_CHECKING:
    from fedsw.desk.use.trained import TrainedModel


def evaluate_command(
    run: Run,
    runs: Runs = RUNS,
    data_dir: DataDir = None,
    client: Annotated[int | None, typer.Option(min=0, help="Only this client's records.")] = None,
    allow_module: AllowModule = None,
    as_json: Json = False,
) -> None:
    """Measure a run's model on records kept out of its training.

    `data.held_out_fraction` keeps them out. RUN is the run's directory, with config.json and model.safetensors, or an
    experiment's name for its latest run. The metrics have no noise: they are for the holder of the
    records, and nothing is written or sent.
    """
    directory = found(run, runs)
    say(verbs.evaluate(directory, data_dir=data_dir, client=client, allow_modules=allow_module or ()), as_json=as_json)


def predict_command(
    run: Run,
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV, Parquet or npz, with the run's columns.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The CSV file to write; stdout if not given.")
    ] = None,
    threshold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER|GROUP=NUMBER|RULE",
            help="For two classes, of the probability of the positive one: a number, one for each group, or best, "
            "parity, opportunity or odds, by the run's noised counts of scores or held-out records; may be repeated.",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Copy this column beside the predictions; may be repeated."),
    ] = None,
    faults: Annotated[
        Literal["refuse", "leave-out", "nearest", "missing"],
        typer.Option(help="Cells that do not fit: refused, their rows left out, the nearest bound, or missing."),
    ] = "refuse",
    force: Force = False,
    spreadsheet: Spreadsheet = False,
    allow_module: AllowModule = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Predict every record of a table with a run's model.

    Cells are checked and encoded as in training. RUN is the run's directory, or an experiment's name for its latest
    run. The predicted column need not be there.
    """
    directory = found(run, runs)
    if output is not None:
        require_writable(output, force=force, read=[table, *files_of_run(directory)])
        require_format(output, "the table of predictions")
    by: dict[str, Any] = {"thresholds": _thresholds(threshold or []), "allow_modules": allow_module or ()}
    answered = verbs.predict(directory, table, keep=keep or (), faults=faults, **by)
    model, predicted = answered.about, answered.content
    for warning in model.summary.get("warnings", ()):
        echo(f"fedsw: warning of the run: {warning}", err=True)
    written = table_columns.columns_for_spreadsheets(predicted) if spreadsheet else predicted
    if why := warning_of_formulas(table_columns.texts_in(written)):
        echo(f"fedsw: warning: {why}", err=True)
    if output is not None:
        files.new_folder(output.parent)
        with files.opened(output, "w") as file:
            table_columns.write_columns(file, written)
    if as_json:
        echo_json(_plain(model, predicted, output))
    elif output is None:
        table_columns.require_written(written, sys.stdout)
        table_columns.write_columns(sys.stdout, written)
    else:
        echo(f"{output}: {_words(model, predicted)}")


def _thresholds(words: list[str]) -> float | dict[str, float] | str | None:
    if not words:
        return None
    if len(words) == 1 and "=" not in words[0]:
        try:
            return float(words[0])
        except ValueError:
            return words[0]
    by_group: dict[str, float] = {}
    for text in words:
        group, _, value = text.rpartition("=")
        try:
            by_group[group] = float(value)
        except ValueError:
            group = ""
        if not group:
            raise typer.BadParameter(f"--threshold {text!r} cannot be read; write GROUP=NUMBER, as in female=0.4")
    return by_group


def _plain(model: TrainedModel, columns: dict[str, Any], output: Path | None) -> dict[str, Any]:
    about = {
        "run": str(model.directory),
        "guarantee": model.guarantee,
        "warnings": list(model.summary.get("warnings", ())),
        "records": len(columns["row"]),
        "positive": model.positive,
        "threshold": str(model.thresholds) if model.answering().classifies and len(model.classes) == 2 else None,
    }
    if output is not None:
        return {**about, "file": str(output)}
    return {**about, "predictions": {name: list(values) for name, values in columns.items()}}


def _words(model: TrainedModel, columns: dict[str, Any]) -> str:
    """A line with the number of predictions by class, or with their range and mean."""
    parts = [f"{len(columns['row'])} records"]
    for name, values in columns.items():
        if name.startswith("predicted_") and model.answering().classifies:
            column = name.removeprefix("predicted_")
            texts = {label: f"{column} = {label}" if label.lstrip("-").isdigit() else label for label in model.classes}
            parts += [", ".join(f"{(values == label).sum()} {text}" for label, text in texts.items())]
        elif name.startswith("predicted_") and hasattr(values, "mean"):
            parts += [f"{name} from {number(values.min())} to {number(values.max())}, mean {number(values.mean())}"]
    if model.answering().classifies and len(model.classes) == 2:
        parts.append(str(model.thresholds))
    return "; ".join(parts)


def export_command(
    run: Run,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file that is written.")],
    kind: Annotated[
        Literal["torchscript", "torch-export", "onnx"],
        typer.Option("--format", help="torch-export is for torch.export.load; onnx needs onnx and onnxscript."),
    ] = "torchscript",
    force: Force = False,
    allow_module: AllowModule = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Write a run's model: TorchScript, torch.export or ONNX.

    It goes from encoded features to answers; what its inputs are is written beside it. RUN is the run's directory, or
    an experiment's name for its latest run.
    """
    directory = found(run, runs)
    require_writable(output, exporting.beside(output), force=force, read=files_of_run(directory))
    model = trained.load(directory, allow_modules=allow_module or ())
    written = [str(path) for path in exporting.export(model, output, kind)]
    plain = {"run": str(model.directory), "files": written, "answers": list(model.names())}
    said = f"{written[0]}: {model.width} inputs to {', '.join(model.names())}; {written[1]} says what they are"
    if as_json:
        echo_json(plain)
    else:
        echo(said)
