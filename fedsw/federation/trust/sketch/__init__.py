"""Trust models `sketch`, `sketch-local`: one sum over all records leaves, once, noised by the server or the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedsw.experiment.sections import Sketch
from fedsw.federation.trust.model import Handler, Served

if TYPE_CHECKING:
    from fedsw.accounting.lifetime import Cost, Counts
    from fedsw.experiment.load import Experiment
    from fedsw.experiment.sections import Privacy
    from fedsw.federation.exchange.cohort import Site
    from fedsw.federation.messages import AnyExchange
    from fedsw.federation.node.account import Promise
    from fedsw.federation.node.node import Node
    from fedsw.federation.trust.context import Context
    from fedsw.federation.trust.model import OneRelease
    from fedsw.federation.trust.plan import Plan
    from fedsw.tasks.problem import Problem


class Sketched(Served):
    """The server and the clients are trusted to follow the protocol; records leave once, in a sum of waves by label."""

    name = "sketch"
    compares = frozenset(("sketch",))
    sketched = True
    law = "sum of waves"
    sections = {"sketch": Sketch}
    why_not = (
        "one sum of all records leaves, once, and labelled samples are learnt from it (use objective.task 'synthesis')"
    )
    trusted_with = "server and clients follow the protocol and keep what they receive"
    leaves = "the exact sum of all records' cosines and sines, once"
    adds_noise = "server"
    protects = "readers of the sketch, of the generator and its samples, and of the record"
    covers = "every record, its label and group included, against whoever sees the table, the generator or the run"
    uncovered = "against the server, who sees one exact sum; the number of records"

    def releases(self, experiment: Experiment) -> int:
        """See `TrustModel`: once, what a generator then learns from."""
        return 1

    def plan(self, task: Problem, sites: Sequence[Site]) -> Plan:
        """See `Served`."""
        from fedsw.federation.trust.sketch.sides import make_plan

        return make_plan(task, sites)

    def server(self, context: Context) -> OneRelease:
        """See `Served`."""
        from fedsw.federation.trust.sketch.sides import TrustedSketch

        return TrustedSketch(context)

    def handlers(self) -> Mapping[AnyExchange, Handler]:
        """See `Served`."""
        from fedsw.federation import messages
        from fedsw.federation.trust.sketch.sides import answer_exactly

        return {messages.RECORDS_SUM: answer_exactly}


class SketchedLocally(Sketched):
    """Nobody is trusted: each client's sum of waves by label leaves once, noised by itself."""

    name = "sketch-local"
    local = True
    why_not = (
        "every client sends one noised sum, once, and labelled samples are learnt from them (use objective.task "
        "'synthesis')"
    )
    trusted_with = "nobody but the client itself"
    leaves = "that sum, noised, once"
    adds_noise = "client"
    protects = "everybody"
    covers = "every record, its label and group included, against everybody, the server too"
    uncovered = "the number of records at each client"

    def without_noise(self, privacy: Privacy) -> str | None:
        """See `TrustModel`: sums of records would leave as they are."""
        if privacy.noisy:
            return None
        return (
            "privacy.epsilon is inf: without noise trust 'sketch-local' would send sums of records as they are; set a "
            "finite epsilon or a noise_multiplier, or use trust 'sketch' for the non-private reference"
        )

    def server(self, context: Context) -> OneRelease:
        """See `Served`."""
        from fedsw.federation.trust.sketch.sides import LocalSketches

        return LocalSketches(context)

    def handlers(self) -> Mapping[AnyExchange, Handler]:
        """See `Served`."""
        from fedsw.federation import messages
        from fedsw.federation.trust.sketch.sides import answer_noised

        return {messages.SKETCH: answer_noised}

    def promise(self, node: Node, delta: float) -> Promise:
        """See `Served`."""
        from fedsw.federation.trust.sketch.sides import promise

        return promise(node, delta)

    def planned(self, node: Node, delta: float) -> Counts | Cost:
        """See `Served`."""
        from fedsw.federation.trust.sketch.sides import planned

        return planned(node, delta)


TRUST_MODELS = (Sketched(), SketchedLocally())
