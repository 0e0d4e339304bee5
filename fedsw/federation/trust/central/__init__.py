"""Trust models `central`: the server sees un-noised functions of outputs, and noises one sum a round; and `none`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedsw.federation.trust.model import Handler, Served

if TYPE_CHECKING:
    from fedsw.federation.exchange.cohort import Site
    from fedsw.federation.messages import AnyExchange
    from fedsw.federation.trust.context import Context
    from fedsw.federation.trust.model import MomentsSide, Prepared, TallySide
    from fedsw.federation.trust.plan import Plan
    from fedsw.tasks.problem import Problem


class Central(Served):
    """The server and the clients are trusted to follow the protocol; readers of the models are not."""

    name = "central"
    compares = frozenset(("groups", "prior", "generator", "domain"))
    gradients = True
    law = "clipped sum"
    trusted_with = "server and clients follow the protocol and keep what they receive"
    leaves = "outputs, contribution"
    adds_noise = "server"
    protects = "readers of the models and of the published record"
    covers = "every record against whoever sees the models and what the run publishes"
    uncovered = (
        "against the server and the other clients, who see un-noised functions of outputs; which group a record is in "
        "(the sizes of the groups are public)"
    )

    def plan(self, task: Problem, sites: Sequence[Site]) -> Plan:
        """See `Served`."""
        from fedsw.federation.trust.plan import make_plan

        return make_plan(task, sites)

    def server(self, context: Context) -> Prepared:
        """See `Served`."""
        from fedsw.federation.trust.central.rounds import TrustedRounds

        return TrustedRounds(context)

    def moments(self, context: Context) -> MomentsSide:
        """See `Served`."""
        from fedsw.federation.trust.moments import TrustedMoments

        return TrustedMoments(context)

    def tally(self, context: Context) -> TallySide:
        """See `Served`."""
        from fedsw.federation.trust.held_out import TrustedTally

        return TrustedTally(context)

    def handlers(self) -> Mapping[AnyExchange, Handler]:
        """See `Served`."""
        from fedsw.federation import messages
        from fedsw.federation.trust import held_out, moments
        from fedsw.federation.trust.central import client

        return {
            messages.MOMENTS: moments.answer_exactly,
            messages.OUTPUTS: client.outputs,
            messages.GRADIENTS: client.gradients,
            messages.SUM: client.sums,
            messages.TALLY: held_out.answer_exactly,
        }


class Nobody(Central):
    """As `central`, without noise: every other trust model is measured against it."""

    name = "none"
    noised = False
    trusted_with = "everybody"
    adds_noise = "none"
    protects = "nobody"


TRUST_MODELS = (Nobody(), Central())
