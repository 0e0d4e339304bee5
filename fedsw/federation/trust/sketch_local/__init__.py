"""Trust model `sketch-local`: every client noises its own sum over its records and sends it once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedsw.federation.trust.model import Handler
from fedsw.federation.trust.sketch import Sketched

if TYPE_CHECKING:
    from fedsw.accounting.lifetime import Cost, Counts
    from fedsw.experiment.sections import Privacy
    from fedsw.federation.messages import AnyExchange
    from fedsw.federation.node.account import Promise
    from fedsw.federation.node.node import Node
    from fedsw.federation.trust.context import Context
    from fedsw.federation.trust.model import OneRelease


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
        from fedsw.federation.trust.sketch.server import LocalSketches

        return LocalSketches(context)

    def handlers(self) -> Mapping[AnyExchange, Handler]:
        """See `Served`."""
        from fedsw.federation import messages
        from fedsw.federation.trust.sketch.client import answer_noised

        return {messages.SKETCH: answer_noised}

    def promise(self, node: Node, delta: float) -> Promise:
        """See `Served`."""
        from fedsw.federation.trust.sketch.client import promise

        return promise(node, delta)

    def planned(self, node: Node, delta: float) -> Counts | Cost:
        """See `Served`."""
        from fedsw.federation.trust.sketch.client import planned

        return planned(node, delta)


TRUST_MODEL = SketchedLocally()
