"""Trust models `sketch`, `sketch-local`: one sum over all records leaves, once, noised by the server or the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from fedsw.experiment.sections import Sketch
from fedsw.experiment.trust import TrustModel
from fedsw.federation.trust import OwnLedgers

if TYPE_CHECKING:
    from fedsw.experiment import Experiment

T = TypeVar("T")


def whole(experiment: Any) -> str:
    """How records are drawn for a sketch, in words: all of them are in it."""
    return "none: all records, once" + (" a stage" if len(experiment.sketch.shares) > 1 else "")


class Sketched(TrustModel):
    """The server and the clients are trusted to follow the protocol; records leave once, in a sum of waves by label."""

    name = "sketch"
    once = "sketch"
    serves = "fedsw.federation.trust.sketch.sketch_once:TRUSTED"
    compares = frozenset(("sketch",))
    law = "sum of waves"
    sections = {"sketch": Sketch}
    why_not = (
        "one sum of all records leaves, once, and labelled samples are learnt from it (use objective.task 'synthesis')"
    )
    trusted_with = "server and clients follow the protocol and keep what they receive"
    leaves = "one exact sum a stage, of what is measured of all records"
    adds_noise = "server"
    protects = "readers of the sketch, of the generator and its samples, and of the record"

    def by_release(self, *, rounds: T, once: T) -> T:
        """See `TrustModel`."""
        return once

    def against(self, experiment: Any) -> str:
        """See `TrustModel`."""
        return (
            "readers of the sketch, of the generator and its samples, and of this record; server and clients are "
            "trusted to follow the protocol"
        )

    def sampling(self, experiment: Any) -> str:
        """See `TrustModel`."""
        return whole(experiment)

    def releases(self, experiment: Experiment) -> int:
        """See `TrustModel`: once, what a generator then learns from."""
        return 1


class SketchedLocally(OwnLedgers):
    """Nobody is trusted: each client's sum of waves by label leaves once, noised by itself."""

    name = "sketch-local"
    once = "sketch-local"
    serves = "fedsw.federation.trust.sketch.sketch_once:LOCAL"
    compares = frozenset(("sketch",))
    law = "sum of waves"
    sections = {"sketch": Sketch}
    why_not = (
        "every client sends one noised sum, once, and labelled samples are learnt from them (use objective.task "
        "'synthesis')"
    )
    trusted_with = "nobody but the client itself"
    leaves = "one sum a stage, of what is measured of its records, noised"
    adds_noise = "client"
    protects = "everybody"
    needs_noise = (
        "privacy.epsilon is inf: without noise trust 'sketch-local' would send sums of records as they are; set a "
        "finite epsilon or a noise_multiplier, or use trust 'sketch' for the non-private reference"
    )

    def by_release(self, *, rounds: T, once: T) -> T:
        """See `TrustModel`."""
        return once

    def sampling(self, experiment: Any) -> str:
        """See `TrustModel`."""
        return whole(experiment)

    def releases(self, experiment: Experiment) -> int:
        """See `TrustModel`: once, what a generator then learns from."""
        return 1


TRUST_MODELS = (Sketched(), SketchedLocally())
