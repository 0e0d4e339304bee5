"""Exports of a trained model as a file that needs no fedsw (TorchScript, torch.export or ONNX).

Beside the file is what must be known to use it.
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

Format = Literal["torchscript", "torch-export", "onnx"]
Answers = NDArray[Any]

TOLERANCE = 1e-4
"""Most that answers of a file may differ from the model's, which are float32: as a part of the largest, or of 1."""
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
        differing = largest_difference(answer, content, form, torch.cat([features, features])[:-1])
    except Exception as fault:  # of torch's tracer, or of a model of somebody's own
        words = (str(fault).splitlines() or [""])[0]
        raise ExperimentError(f"the model cannot be exported to {kind}: {type(fault).__name__}: {words}") from fault
    if differing > TOLERANCE:
        raise ExperimentError(
            f"the exported model answers otherwise than the run's, by up to {differing:.2g} (of the largest answer, "
            f"if above 1; at most {TOLERANCE:g}): its code depends on values or on the number of records; "
            "use fedsw.load(run)"
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
    """A format: how it is written, what its file answers (None if nothing here runs it), packages that it needs."""

    written: Callable[[AnsweringModel, Tensor], bytes]
    answers: Callable[[bytes, Tensor], Answers | None]
    needs: tuple[str, ...] = ()


_FORMS: Mapping[Format, _Form] = {
    "torchscript": _Form(_scripted, _answers_of_script),
    "torch-export": _Form(_program, _answers_of_program),
    "onnx": _Form(_onnx, _answers_of_onnx, ("onnx", "onnxscript")),
}


def largest_difference(answer: AnsweringModel, content: bytes, form: _Form, features: Tensor) -> float:
    """Return how far answers of a file differ from the model's, at features (n, q) of another number of records.

    It is a part of the largest answer of its kind where this is above 1, as amounts of money are in their own units.
    """
    with torch.no_grad():
        wanted = answer(features).double().numpy()
    exported = form.answers(content, features)
    if exported is None:
        return 0.0
    if exported.shape != wanted.shape:
        return np.inf
    largest = np.abs(wanted).max(axis=0, initial=1.0)
    return float((np.abs(exported - wanted) / largest).max(initial=0.0))


def _about(model: TrainedModel, kind: Format) -> dict[str, Any]:
    """Return what a reader of the file only must know."""
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
