"""The sections of an experiment: every setting with its type, its limits and its default."""

from fedsw._tools.section import Section
from fedsw.experiment.sections._learning import (
    Also,
    Calibration,
    ClipSettings,
    ColumnBins,
    Evaluation,
    Federation,
    Model,
    ObjectiveSettings,
    SlicingSettings,
    ThresholdSettings,
    Training,
)
from fedsw.experiment.sections._privacy import (
    AUTO_BINS,
    DEFAULT_DELTA,
    LEAST_DELTA,
    BinSettings,
    Local,
    MaskedSettings,
    Privacy,
    ReleaseSettings,
    SketchPrivacy,
    SliceSettings,
    TableSettings,
    read_delta,
    resolve_delta,
)
from fedsw.experiment.sections.sketch import Sketch, SketchPart

__all__ = [
    "AUTO_BINS", "Also", "BinSettings", "Calibration", "ClipSettings", "ColumnBins", "DEFAULT_DELTA", "Evaluation",
    "Federation", "LEAST_DELTA", "Local", "MaskedSettings", "Model", "ObjectiveSettings", "Privacy", "ReleaseSettings",
    "Section", "Sketch", "SketchPart", "SketchPrivacy", "SliceSettings", "SlicingSettings", "TableSettings",
    "ThresholdSettings", "Training", "read_delta", "resolve_delta",
]  # fmt: skip
