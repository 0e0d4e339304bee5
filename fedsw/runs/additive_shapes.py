"""The functions that an additive model is a sum of: one of each column, with the band of the rounds' noise.

A run keeps them when it ends, and they are shown from there. Where that is missing, or of another model than
the folder has, they are made anew, which takes torch.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from fedsw.experiment import Experiment
from fedsw.experiment.task_kinds import MODELS
from fedsw.runs._shape import ShapeFunction
from fedsw.runs.run_files import RunFile, read_json, write_json

__all__ = ["ShapeFunction", "keep_shapes", "read_shapes"]


def read_shapes(directory: Path, experiment: Experiment) -> list[ShapeFunction]:
    """The functions of an additive model that a run released; none of another model, or before it is released.

    Each is about its mean over the places. Of a classifier they are log-odds (of more than two classes the scores of
    each); of numbers what the answer, in the target's own units, moves by from where all columns are at their mean:
    that of the records, by the released moments, and without these that of the places. The band is two standard
    deviations of the noise that all rounds added, at most: gradients draw parameters back.

    Raises:
        ValueError: naming the run's file that is damaged.
    """
    if not _has_shapes(directory, experiment):
        return []
    path = directory / RunFile.SHAPES
    stored = read_json(path) or {}
    if stored.get("of") != _sources(directory):
        return _made(directory, experiment)
    try:
        return [ShapeFunction.of_content(content) for content in stored["shapes"]]
    except (LookupError, TypeError, ValueError) as fault:
        raise ValueError(f"{path} is damaged: {fault}") from None


def keep_shapes(directory: Path, experiment: Experiment) -> None:
    """Store the functions of the model that a run has released, with the digests of the files that they are made of.

    Nothing is stored of another model, nor of one with infinite or NaN parameters.
    """
    if not _has_shapes(directory, experiment):
        return
    shapes = _made(directory, experiment)
    if all(np.isfinite(shape.values).all() and np.isfinite(shape.band).all() for shape in shapes):
        content = {"of": _sources(directory), "shapes": [shape.content() for shape in shapes]}
        write_json(directory / RunFile.SHAPES, content)


def _has_shapes(directory: Path, experiment: Experiment) -> bool:
    return MODELS.get(experiment.model.kind).columns and (directory / RunFile.MODEL).is_file()


def _made(directory: Path, experiment: Experiment) -> list[ShapeFunction]:
    from fedsw.runs.shapes_of_model import shapes_of  # whose torch takes longer than all else that a page needs

    return shapes_of(directory, experiment)


def _sources(directory: Path) -> dict[str, Any]:
    """The digests of the files that shapes are made of, by name; those that are missing left out."""
    paths = [directory / name for name in (RunFile.MODEL, RunFile.MOMENTS, RunFile.SCORES)]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()}
