"""Trust model `local-slices`: clients release noisy random slices of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedsw.experiment.sections import SliceSettings
from fedsw.federation.trust.model import Handler, Served

if TYPE_CHECKING:
    from fedsw.accounting.lifetime import Cost, Counts
    from fedsw.experiment.choices import Settings
    from fedsw.experiment.load import Experiment
    from fedsw.federation.exchange.cohort import Site
    from fedsw.federation.messages import AnyExchange
    from fedsw.federation.node.account import Promise
    from fedsw.federation.node.node import Node
    from fedsw.federation.trust.context import Context
    from fedsw.federation.trust.model import Side
    from fedsw.federation.trust.plan import Plan
    from fedsw.tasks.problem import Problem


class LocalSliced(Served):
    """Nobody is trusted: each client noises random projections of its features, fresh every round or stored once."""

    name = "local-slices"
    compares = frozenset(("generator", "domain"))
    local = True
    slices = True
    law = "random slices"
    sections = {"local": SliceSettings}
    why_not = "it matches private features that no parameter moves, by their noised projections"
    trusted_with = "nobody but the client itself"
    leaves = "noised random slices of features"
    adds_noise = "client"
    protects = "everybody"

    def releases(self, experiment: Experiment) -> int:
        """See `TrustModel`: every round, or once, what all its rounds then learn from."""
        return 1 if experiment.own(SliceSettings).once else experiment.training.rounds

    def moves_points(self, settings: Settings) -> bool:
        """See `TrustModel`: flows do."""
        return settings.own(SliceSettings).algorithm != "dp-swd"

    def plan(self, task: Problem, sites: Sequence[Site]) -> Plan:
        """See `Served`."""
        from fedsw.federation.trust.local_slices.sides import make_plan

        return make_plan(task, sites)

    def server(self, context: Context) -> Side:
        """See `Served`."""
        from fedsw.federation.trust.local_slices.sides import LocalSlices

        return LocalSlices(context)

    def handlers(self) -> Mapping[AnyExchange, Handler]:
        """See `Served`."""
        from fedsw.federation import messages
        from fedsw.federation.trust.local_slices.sides import answer_slices

        return {messages.SLICES: answer_slices}

    def promise(self, node: Node, delta: float) -> Promise:
        """See `Served`."""
        from fedsw.federation.trust.local_slices.sides import promise

        return promise(node, delta)

    def planned(self, node: Node, delta: float) -> Counts | Cost:
        """See `Served`."""
        from fedsw.federation.trust.local_slices.sides import planned

        return planned(node, delta)


TRUST_MODELS = (LocalSliced(),)
