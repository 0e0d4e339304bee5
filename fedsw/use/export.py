"""A trained model as a file that needs no fedsw, TorchScript or ONNX, and beside it what must be known to use it."""

from __future__ import annotations

import importlib
import importlib.util
import io
import warnings
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedsw import files
from fedsw.experiment import ExperimentError
from fedsw.tasks.per_record import made_up_features
from fedsw.text import json_text
from fedsw.use.answers import Answer
from fedsw.use.trained import TrainedModel

Format = Literal["torchscript", "onnx"]

_CLOSE = 1e-4
_ENCODING = (
    "numbers with low and high are (value - low) / (high - low), with scale signed 2 times that minus 1; a category is "
    "1 in its own input and 0 in the others; a missing value is 1 in 'COLUMN is missing', with the fill in its place"
)
_NEEDED = {"onnx": ("onnx", "onnxscript")}


def export(model: TrainedModel, path: Path, kind: Format) -> list[Path]:
    """Write a model that maps encoded features (n, p), float32, to answers (n, k), for any n; returns the files.

    Beside it stands `<path>.json`: names of inputs and answers, the columns with their encoding, the guarantee. What is
    written is read back and compared on made-up inputs first (ONNX: where onnxruntime is installed).

    Raises:
        ExperimentError: for a generator; if a package is missing, with the remedy; if the model cannot be exported.
    """
    answer = model.answering()
    missing = [name for name in _NEEDED.get(kind, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise ExperimentError(
            f"exporting to {kind} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            f"installed: `pip install {' '.join(missing)}`, or use --format torchscript"
        )
    features = made_up_features(model.experiment.model.seed, model.width)
    try:
        content = _scripted(answer, features) if kind == "torchscript" else _onnx(answer, features)
        differing = _difference(answer, content, kind, torch.cat([features, features])[:-1])
    except Exception as fault:  # of torch's tracer, or of a model of somebody's own
        words = (str(fault).splitlines() or [""])[0]
        raise ExperimentError(f"the model cannot be exported to {kind}: {type(fault).__name__}: {words}") from fault
    if differing > _CLOSE:
        raise ExperimentError(
            f"the exported model answers otherwise than the run's, by up to {differing:.2g}: its code depends on "
            "values or on the number of records; use fedsw.load(run)"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.json")
    files.replace(path, content)
    files.replace(beside, (json_text(_about(model, kind)) + "\n").encode())
    return [path, beside]


def _scripted(answer: Answer, features: Tensor) -> bytes:
    content = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TorchScript itself, which was asked for; answers are compared below
        script: Any = torch.jit  # untyped
        script.save(script.trace(answer, features, check_trace=False), content)
    return content.getvalue()


def _onnx(answer: Answer, features: Tensor) -> bytes:
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


def _difference(answer: Answer, content: bytes, kind: Format, features: Tensor) -> float:
    """The most that answers of a file differ from the model's, for another number of records than it was made with."""
    with torch.no_grad():
        wanted = answer(features).double().numpy()
    if kind == "torchscript":
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            script: Any = torch.jit
            found = script.load(io.BytesIO(content))(features).double().numpy()
    elif importlib.util.find_spec("onnxruntime") is None:
        return 0.0
    else:
        runtime: Any = importlib.import_module("onnxruntime")
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        found = session.run(None, {"features": features.numpy()})[0]
    return float(np.abs(found - wanted).max(initial=0.0)) if found.shape == wanted.shape else np.inf


def _about(model: TrainedModel, kind: Format) -> dict[str, Any]:
    """What somebody with the file alone must know."""
    columns = model.columns
    return {
        "name": model.experiment.name,
        "task": model.experiment.objective.task,
        "format": kind,
        "inputs": list(columns.feature_names) if columns is not None else model.width,
        "encoding": _ENCODING,
        "columns": None if columns is None else columns.model_dump(mode="json", exclude_defaults=True),
        "answers": list(model.names()),
        "guarantee": model.guarantee,
        "warnings": list(model.summary.get("warnings", ())),
    }
