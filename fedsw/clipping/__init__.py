"""Per-sample clipping of Jacobians and loss gradients that are never formed."""

from __future__ import annotations

from fedsw.clipping.clip import Mode, Safety, clip_cotangents
from fedsw.clipping.probe import probe_independence, record
from fedsw.clipping.refusals import UnsupportedModule, check
from fedsw.clipping.rules import layer_rule, require_exact
from fedsw.clipping.tape import Tape
from fedsw.clipping.terms import Term, clipped_sum

__all__ = [
    "Mode",
    "Safety",
    "Tape",
    "Term",
    "UnsupportedModule",
    "check",
    "clip_cotangents",
    "clipped_sum",
    "layer_rule",
    "probe_independence",
    "record",
    "require_exact",
]
