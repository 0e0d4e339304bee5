"""Per-sample clipping of Jacobians and loss gradients that are never formed."""

from fedsw.clipping.clip import Mode as Mode
from fedsw.clipping.clip import Safety as Safety
from fedsw.clipping.clip import clip_cotangents as clip_cotangents
from fedsw.clipping.probe import probe_independence as probe_independence
from fedsw.clipping.probe import record as record
from fedsw.clipping.refusals import UnsupportedModule as UnsupportedModule
from fedsw.clipping.refusals import check as check
from fedsw.clipping.rules import layer_rule as layer_rule
from fedsw.clipping.rules import require_exact as require_exact
from fedsw.clipping.tape import Tape as Tape
from fedsw.clipping.terms import Term as Term
from fedsw.clipping.terms import clipped_sum as clipped_sum
