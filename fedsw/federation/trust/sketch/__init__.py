"""Trust models `sketch`, `sketch-local`: one sum over all records leaves, once, noised by the server or the client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsw.experiment.sections import Sketch
from fedsw.experiment.trust import TrustModel
from fedsw.federation.trust import OwnLedgers


class Sketching(TrustModel):
    """A trust model under which a sketch of all records leaves, once a stage; a generator then learns from it."""

    runs = "fedsw.federation.server.from_sketch:OnceRun"
    product = "Synthetic data"
    seeds = ("sketch",)
    hides_groups = "a sketch hides groups: groups of one size are assumed"

    def of_batch(self, plan: Any) -> None:
        """See `TrustModel`: there is no batch."""
        return

    def reserved(self, plan: Any) -> Any:
        """See `TrustModel`: all stages."""
        from fedsw.federation.trust.sketch.sketch_once import planned_stages

        return planned_stages(plan.task, plan.delta)

    def shared(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """See `TrustModel`: all records are in it, and nothing is drawn."""
        return ()

    def public_groups(self, by_group: Mapping[str, int]) -> Mapping[str, int]:
        """See `TrustModel`: groups are hidden in it."""
        return {}

    def meets_no_record(self, kind: Any, other_side: str | None) -> bool:
        """See `TrustModel`: a generator learns from what was released."""
        return True

    def sampling(self, experiment: Any) -> str:
        """See `TrustModel`: all records are in it."""
        return "none: all records, once" + (" a stage" if self.stages(experiment) > 1 else "")

    def releases(self, experiment: Any) -> int:
        """See `TrustModel`: once, what all its rounds then learn from."""
        return 1

    def stages(self, experiment: Any) -> int:
        """See `TrustModel`."""
        return len(experiment.sketch.shares)


class Sketched(Sketching):
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

    def against(self, experiment: Any) -> str:
        """See `TrustModel`."""
        return (
            "readers of the sketch, of the generator and its samples, and of this record; server and clients are "
            "trusted to follow the protocol"
        )


class SketchedLocally(Sketching, OwnLedgers):
    """No trust in others: each client's sum of waves by label leaves once, noised by itself."""

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


TRUST_MODELS = (Sketched(), SketchedLocally())
