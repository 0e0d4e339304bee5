"""Trust model `sketch`: one sum over all records leaves, once, and the server noises it; a generator learns from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedsw.experiment.sections import Sketch
from fedsw.federation.trust.model import Handler, Served

if TYPE_CHECKING:
    from fedsw.experiment.load import Experiment
    from fedsw.federation.exchange.cohort import Site
    from fedsw.federation.messages import AnyExchange
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
        from fedsw.federation.trust.sketch.server import make_plan

        return make_plan(task, sites)

    def server(self, context: Context) -> OneRelease:
        """See `Served`."""
        from fedsw.federation.trust.sketch.server import TrustedSketch

        return TrustedSketch(context)

    def handlers(self) -> Mapping[AnyExchange, Handler]:
        """See `Served`."""
        from fedsw.federation import messages
        from fedsw.federation.trust.sketch.client import answer_exactly

        return {messages.RECORDS_SUM: answer_exactly}


TRUST_MODEL = Sketched()
