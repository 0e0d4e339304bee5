"""Exports of a trained model as a file that needs no fedsw (TorchScript, torch.export or ONNX), and its model card.

Beside the file is what must be known to use it; the card says for whom the model is private, and what it is worth.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools import files
from fedsw._tools.text import json_text
from fedsw.desk.use.trained import AnsweringModel, TrainedModel
from fedsw.experiment import ExperimentError
from fedsw.learning.tasks.own_task import made_up_features
from fedsw.runs.page.document import Code, Document, Listed, Part, Section
from fedsw.runs.recovery import require_remembered
from fedsw.runs.report import facts
from fedsw.runs.run_files import RunFile
from fedsw.runs.view import RunView, read_run

Format = Literal["torchscript", "torch-export", "onnx"]
Answers = NDArray[Any]

_CLOSE = 1e-4
_ENCODING = (
    "numbers with low and high are (value - low) / (high - low), with scale signed 2 times that minus 1, and as they "
    "are without bounds; one outside its bounds is the nearer of them where outside is 'cut', and is refused "
    "elsewhere; a truth value is 1 (true, yes, t, y, 1, in any case) or 0; a date is the number of days after 'since', "
    "1970-01-01 if it is not given, with low and high in these days, too, and is written as 'format' says; a category "
    "is 1 in its own input and 0 in the others; a missing value is 1 in 'COLUMN is missing', with the fill in its place"
)


def export(model: TrainedModel, path: Path, kind: Format) -> list[Path]:
    """Write a model that maps encoded features (n, p), float32, to answers (n, k), for any n; returns the files.

    Beside it stands `<path>.json`: names of inputs and answers, the columns with their encoding, the guarantee. What is
    written is read back and compared on made-up inputs first (ONNX: where onnxruntime is installed).

    Raises:
        ExperimentError: for a generator; if a package is missing, with the remedy; if the model cannot be exported.
    """
    answer = model.answering()
    missing = [name for name in _FORMS[kind].needs if importlib.util.find_spec(name) is None]
    if missing:
        raise ExperimentError(
            f"exporting to {kind} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            f"installed: `pip install {' '.join(missing)}`, or use --format torchscript"
        )
    features = made_up_features(model.experiment.model.seed, model.width)
    try:
        form = _FORMS[kind]
        content = form.written(answer, features)
        differing = _difference(answer, content, form, torch.cat([features, features])[:-1])
    except Exception as fault:  # of torch's tracer, or of a model of somebody's own
        words = (str(fault).splitlines() or [""])[0]
        raise ExperimentError(f"the model cannot be exported to {kind}: {type(fault).__name__}: {words}") from fault
    if differing > _CLOSE:
        raise ExperimentError(
            f"the exported model answers otherwise than the run's, by up to {differing:.2g}: its code depends on "
            "values or on the number of records; use fedsw.load(run)"
        )
    files.new_folder(path.parent)
    files.replace(path, content)
    files.replace(beside(path), (json_text(_about(model, kind)) + "\n").encode())
    return [path, beside(path)]


def beside(path: Path) -> Path:
    """The file that says what an exported model's inputs are."""
    return path.with_name(f"{path.name}.json")


def _scripted(answer: AnsweringModel, features: Tensor) -> bytes:
    content = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TorchScript itself, which was asked for; answers are compared below
        script: Any = torch.jit  # untyped
        script.save(script.trace(answer, features, check_trace=False), content)
    return content.getvalue()


def _program(answer: AnsweringModel, features: Tensor) -> bytes:
    content = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(answer, (features,), dynamic_shapes=({0: torch.export.Dim("records")},))
        torch.export.save(program, content)
    return content.getvalue()


def _answers_of_program(content: bytes, features: Tensor) -> Answers:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers: Tensor = torch.export.load(io.BytesIO(content)).module()(features)
    return answers.double().numpy()


def _onnx(answer: AnsweringModel, features: Tensor) -> bytes:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program: Any = torch.onnx.export(
            answer,
            (features,),
            input_names=["features"],
            output_names=["answers"],
            dynamic_shapes=({0: torch.export.Dim("records")},),
            dynamo=True,
            verbose=False,
        )
    content: bytes = program.model_proto.SerializeToString()
    return content


def _answers_of_script(content: bytes, features: Tensor) -> Answers:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script: Any = torch.jit
        answers: Answers = script.load(io.BytesIO(content))(features).double().numpy()
    return answers


def _answers_of_onnx(content: bytes, features: Tensor) -> Answers | None:
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    runtime: Any = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    answers: Answers = session.run(None, {"features": features.numpy()})[0]
    return answers


@dataclass(frozen=True)
class _Form:
    """A format: how it is written, what its file answers (None where nothing here runs it), packages that it needs."""

    written: Callable[[AnsweringModel, Tensor], bytes]
    answers: Callable[[bytes, Tensor], Answers | None]
    needs: tuple[str, ...] = ()


_FORMS: Mapping[Format, _Form] = {
    "torchscript": _Form(_scripted, _answers_of_script),
    "torch-export": _Form(_program, _answers_of_program),
    "onnx": _Form(_onnx, _answers_of_onnx, ("onnx", "onnxscript")),
}


def _difference(answer: AnsweringModel, content: bytes, form: _Form, features: Tensor) -> float:
    """The most that answers of a file differ from the model's, for another number of records than it was made with."""
    with torch.no_grad():
        wanted = answer(features).double().numpy()
    exported = form.answers(content, features)
    if exported is None:
        return 0.0
    return float(np.abs(exported - wanted).max(initial=0.0)) if exported.shape == wanted.shape else np.inf


def _about(model: TrainedModel, kind: Format) -> dict[str, Any]:
    """Return what somebody with the file alone must know."""
    columns = model.columns
    return {
        "name": model.experiment.name,
        "task": model.experiment.objective.task,
        "format": kind,
        "inputs": list(columns.feature_names) if columns is not None else model.width,
        "encoding": _ENCODING,
        "columns": None if columns is None else columns.model_dump(mode="json", exclude_defaults=True),
        "answers": list(model.names()),
        "positive": model.positive,
        "guarantee": model.guarantee,
        "warnings": list(model.summary.get("warnings", ())),
    }


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
            Listed("By group, with intervals of 95 %", facts.by_group(summary, view.names)),
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
        sections=tuple(Section.of(heading, content) for heading, content in parts.items()),
    )
