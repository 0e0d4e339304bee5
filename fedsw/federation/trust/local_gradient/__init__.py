"""Trust model `local-gradient`: clients release noised tables and their own noised contribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedsw.experiment.sections import TableSettings
from fedsw.federation.trust.model import Handler, Served

if TYPE_CHECKING:
    from fedsw.accounting.lifetime import Cost, Counts
    from fedsw.experiment.sections import Privacy
    from fedsw.federation.exchange.cohort import Site
    from fedsw.federation.messages import AnyExchange
    from fedsw.federation.node.account import Promise
    from fedsw.federation.node.node import Node
    from fedsw.federation.trust.context import Context
    from fedsw.federation.trust.model import MomentsSide, Prepared, TallySide
    from fedsw.federation.trust.plan import Plan
    from fedsw.tasks.problem import Problem


class LocalGradients(Served):
    """Nobody is trusted: each client noises its histograms of outputs and its contribution for its own guarantee."""

    name = "local-gradient"
    compares = frozenset(("groups",))
    local = True
    gradients = True
    law = "clipped contribution"
    sections = {"local": TableSettings}
    why_not = "its noised tables rank the outputs of private groups against each other"
    trusted_with = "nobody but the client itself"
    leaves = "noised table, noised contribution"
    adds_noise = "client"
    protects = "everybody: server, other clients, readers"
    covers = "every record against everybody: the server, the other clients, and readers"
    uncovered = "which group a record is in (the sizes of the groups at each client are public)"

    def without_noise(self, privacy: Privacy) -> str | None:
        """See `TrustModel`: counts of outputs would leave as they are."""
        if privacy.noisy:
            return None
        return (
            "privacy.epsilon is inf: without noise trust 'local-gradient' would send counts of outputs as they are; "
            "set a finite epsilon or a noise_multiplier, or use trust 'none' for the non-private reference"
        )

    def plan(self, task: Problem, sites: Sequence[Site]) -> Plan:
        """See `Served`."""
        from fedsw.federation.trust.local_gradient.server import make_plan

        return make_plan(task, sites)

    def server(self, context: Context) -> Prepared:
        """See `Served`."""
        from fedsw.federation.trust.local_gradient.server import LocalGradient

        return LocalGradient(context)

    def moments(self, context: Context) -> MomentsSide:
        """See `Served`."""
        from fedsw.federation.trust.moments import LocalMoments

        return LocalMoments(context)

    def tally(self, context: Context) -> TallySide:
        """See `Served`."""
        from fedsw.federation.trust.held_out import LocalTallies

        return LocalTallies(context)

    def handlers(self) -> Mapping[AnyExchange, Handler]:
        """See `Served`."""
        from fedsw.federation import messages
        from fedsw.federation.trust import held_out, moments
        from fedsw.federation.trust.local_gradient import site

        return {
            messages.NOISY_MOMENTS: moments.answer_noised,
            messages.TABLES: site.answer_tables,
            messages.LOCAL_GRADIENTS: site.answer_gradients,
            messages.NOISY_TALLY: held_out.answer_noised,
        }

    def promise(self, node: Node, delta: float) -> Promise:
        """See `Served`."""
        from fedsw.federation.trust.local_gradient.client import promise

        return promise(node, delta)

    def planned(self, node: Node, delta: float) -> Counts | Cost:
        """See `Served`."""
        from fedsw.federation.trust.local_gradient.client import planned

        return planned(node, delta)


TRUST_MODELS = (LocalGradients(),)
