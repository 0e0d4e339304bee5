"""Trust model `local-release`: clients release privatised records, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedsw.experiment.sections import ReleaseSettings
from fedsw.federation.trust.model import Handler, Served

if TYPE_CHECKING:
    from fedsw.accounting.lifetime import Cost, Counts
    from fedsw.experiment.choices import Settings
    from fedsw.experiment.load import Experiment
    from fedsw.experiment.sections import Privacy
    from fedsw.federation.exchange.cohort import Site
    from fedsw.federation.messages import AnyExchange
    from fedsw.federation.node.account import Promise
    from fedsw.federation.node.node import Node
    from fedsw.federation.trust.context import Context
    from fedsw.federation.trust.model import Side
    from fedsw.federation.trust.plan import Plan
    from fedsw.tasks.problem import Problem


class LocalReleased(Served):
    """Nobody is trusted: each client noises its records themselves and sends them once."""

    name = "local-release"
    compares = frozenset(("generator",))
    local = True
    law = "whole records"
    sections = {"local": ReleaseSettings}
    why_not = "it releases records once, for a generator to learn from"
    trusted_with = "nobody but the client itself"
    leaves = "privatised records, once"
    adds_noise = "client"
    protects = "everybody"

    def releases(self, experiment: Experiment) -> int:
        """See `TrustModel`: once, what all its rounds then learn from."""
        return 1

    def accountant(self, experiment: Experiment) -> str:
        """See `TrustModel`: pure epsilon for Laplace noise, else the one asked for."""
        return "laplace" if experiment.own(ReleaseSettings).mechanism == "laplace" else experiment.privacy.accountant

    def trains_critic(self, settings: Settings) -> bool:
        """See `TrustModel`: adversarial losses do."""
        return settings.own(ReleaseSettings).adversarial

    def without_noise(self, privacy: Privacy) -> str | None:
        """See `TrustModel`: its noise is calibrated to an epsilon."""
        if privacy.noisy and privacy.epsilon is not None:
            return None
        return (
            "trust 'local-release' needs a finite privacy.epsilon to calibrate its noise; use trust 'none' for the "
            "non-private reference"
        )

    def plan(self, task: Problem, sites: Sequence[Site]) -> Plan:
        """See `Served`."""
        from fedsw.federation.trust.local_release.sides import make_plan

        return make_plan(task, sites)

    def server(self, context: Context) -> Side:
        """See `Served`."""
        from fedsw.federation.trust.local_release.sides import LocalRelease

        return LocalRelease(context)

    def handlers(self) -> Mapping[AnyExchange, Handler]:
        """See `Served`."""
        from fedsw.federation import messages
        from fedsw.federation.trust.local_release.sides import answer_release

        return {messages.RELEASE: answer_release}

    def promise(self, node: Node, delta: float) -> Promise:
        """See `Served`."""
        from fedsw.federation.trust.local_release.sides import promise

        return promise(node, delta)

    def planned(self, node: Node, delta: float) -> Counts | Cost:
        """See `Served`."""
        from fedsw.federation.trust.local_release.sides import planned

        return planned(node, delta)

    def require_ready(self, node: Node) -> None:
        """See `Served`."""
        from fedsw.federation.trust.local_release.sides import require_ready

        require_ready(node)


TRUST_MODELS = (LocalReleased(),)
