"""The sections of an experiment: every setting with its type, its limits and its default."""

from fedsw.experiment.sections.data import SOURCES, Data, Held, Partition
from fedsw.experiment.sections.evaluation import Evaluation
from fedsw.experiment.sections.federation import Federation
from fedsw.experiment.sections.learning import Also, Clip, Model, Objective, Slicing
from fedsw.experiment.sections.privacy import Local, Privacy, resolve_delta
from fedsw.experiment.sections.section import Section
from fedsw.experiment.sections.sketch import Sketch, SketchPart
from fedsw.experiment.sections.training import Training

__all__ = [
    "SOURCES",
    "Also",
    "Clip",
    "Data",
    "Evaluation",
    "Federation",
    "Held",
    "Local",
    "Model",
    "Objective",
    "Partition",
    "Privacy",
    "Section",
    "Sketch",
    "SketchPart",
    "Slicing",
    "Training",
    "resolve_delta",
]
