"""`fedsw export`: the model of a run as a file that needs no fedsw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedsw.cli.options import RUNS, AllowModule, Json, Run, Runs, echo
from fedsw.text import json_text


def export_command(
    run: Run,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file that is written.")],
    kind: Annotated[
        Literal["torchscript", "onnx"], typer.Option("--format", help="onnx needs onnx and onnxscript.")
    ] = "torchscript",
    allow_module: AllowModule = None,
    runs: Runs = RUNS,
    as_json: Json = False,
) -> None:
    """Write a run's model as TorchScript or ONNX.

    It goes from encoded features to answers; what its inputs are is written beside it. RUN is the run's directory, or
    an experiment's name for its latest run.
    """
    from fedsw.use.export import export
    from fedsw.use.trained import load

    model = load(run, runs=runs, allow_modules=allow_module or ())
    written = [str(path) for path in export(model, output, kind)]
    if as_json:
        echo(json_text({"run": str(model.directory), "files": written, "answers": list(model.names())}))
    else:
        echo(f"{written[0]}: {model.width} inputs to {', '.join(model.names())}; {written[1]} says what they are")
