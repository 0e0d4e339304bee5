"""Per-sample clipping of Jacobians and loss gradients that are never formed.

`record` runs a module forward over a batch and returns its `Tape`; `clipped_sum` adds up what each record contributes
to the gradients of `Term`s, each clipped to its bound. A module that would escape the clip is refused by name:
`UnsupportedModule`, at once by `check`, or by `probe_independence` and `probe_moved` on made-up records. Tables at the
heads of `refusals` and `tape` list how each edge case is treated. `layer_rule` gives a layer of a user's own a rule,
which an audit attacks with its `Worst` records, and `require_exact` compares it with autograd; `OutputForm` says how a
module arranges what it returns. `unchanged` puts modules back as they were before a pass, as `record` does; `kept`
after every piece of one.
"""

from fedsw.mathematics.clipping._clipped_terms import Term as Term
from fedsw.mathematics.clipping._clipped_terms import clipped_sum as clipped_sum
from fedsw.mathematics.clipping._unchanged import UnsupportedModule as UnsupportedModule
from fedsw.mathematics.clipping._unchanged import kept as kept
from fedsw.mathematics.clipping._unchanged import named_globals as named_globals
from fedsw.mathematics.clipping._unchanged import unchanged as unchanged
from fedsw.mathematics.clipping.clip import Mode as Mode
from fedsw.mathematics.clipping.clip import Safety as Safety
from fedsw.mathematics.clipping.clip import clip_cotangents as clip_cotangents
from fedsw.mathematics.clipping.refusals import check as check
from fedsw.mathematics.clipping.refusals import magnitudes as magnitudes
from fedsw.mathematics.clipping.refusals import probe_independence as probe_independence
from fedsw.mathematics.clipping.refusals import probe_moved as probe_moved
from fedsw.mathematics.clipping.refusals import record as record
from fedsw.mathematics.clipping.refusals import remember as remember
from fedsw.mathematics.clipping.rules import Worst as Worst
from fedsw.mathematics.clipping.rules import layer_rule as layer_rule
from fedsw.mathematics.clipping.rules import require_exact as require_exact
from fedsw.mathematics.clipping.tape import OutputForm as OutputForm
from fedsw.mathematics.clipping.tape import Tape as Tape
