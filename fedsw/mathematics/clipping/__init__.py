"""Per-sample clipping of Jacobians and loss gradients that are never formed."""

from fedsw.mathematics.clipping._clipped_terms import Term as Term
from fedsw.mathematics.clipping._clipped_terms import clipped_sum as clipped_sum
from fedsw.mathematics.clipping._tape import Tape as Tape
from fedsw.mathematics.clipping.clip import Mode as Mode
from fedsw.mathematics.clipping.clip import Safety as Safety
from fedsw.mathematics.clipping.clip import clip_cotangents as clip_cotangents
from fedsw.mathematics.clipping.probe import probe_independence as probe_independence
from fedsw.mathematics.clipping.probe import record as record
from fedsw.mathematics.clipping.refusals import UnsupportedModule as UnsupportedModule
from fedsw.mathematics.clipping.refusals import check as check
from fedsw.mathematics.clipping.rules import layer_rule as layer_rule
from fedsw.mathematics.clipping.rules import require_exact as require_exact
