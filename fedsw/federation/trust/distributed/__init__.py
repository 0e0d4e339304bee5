"""Trust model `distributed`: distributed DP by secure aggregation: masked sums with shares of one server's noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from fedsw.experiment.sections import MaskedSettings, Sketch, SketchPrivacy
from fedsw.experiment.trust import BESIDE_ROUNDS, Law
from fedsw.federation.trust import OwnLedgers
from fedsw.federation.trust.sketch import Sketching

if TYPE_CHECKING:
    from fedsw._tools.registry import Word


class Distributed(OwnLedgers):
    """The server and some clients may be against the others: it sees sums of all, with noise that all add together."""

    name = "distributed"
    once = "distributed"
    serves = "fedsw.federation.trust.distributed.once:ROUNDS"
    compares = frozenset(("groups", "prior", "generator", "domain", "sketch"))
    most_penalties = math.inf
    own_bounds: ClassVar[frozenset[Word]] = frozenset(("proven",))
    held_out_to: ClassVar[frozenset[str]] = frozenset(("operator", "everybody"))
    masks = frozenset(("real", "simulated"))
    sites_code = "same"
    law: ClassVar[Law | None] = "masked sum"
    beside: ClassVar[frozenset[str]] = BESIDE_ROUNDS
    sections = {"local": MaskedSettings, "sketch": Sketch}
    why_not = "its masked sums are of tables, of contributions and of sketches"
    trusted_with = "that at most local.colluding clients are on the server's side"
    leaves = "masked sums: a noised table, a noised contribution"
    adds_noise = "all clients together"
    protects = "everybody: server, local.colluding of the clients, readers"
    guarded = "by the noise of all honest clients together and its own client's ledger"
    needs_noise = (
        "privacy.epsilon is inf: without noise trust 'distributed' would show exact sums; set a finite epsilon or "
        "a noise_multiplier, or use trust 'none' for the non-private reference"
    )

    def against(self, experiment: Any) -> str:
        """See `TrustModel`."""
        least = experiment.federation.min_clients or experiment.federation.clients
        masks = "masked sums between sites" if experiment.federation.sites != 1 else "one site, and so no masks"
        colluding = experiment.own(MaskedSettings).colluding
        return (
            f"everyone: the server together with any {colluding} of the clients, of which {least} or "
            f"more are in every sum, and readers; as long as nobody breaks X25519, HKDF-SHA256 or ChaCha20 ({masks})"
        )

    def summed(self, experiment: Any) -> float:
        """See `TrustModel`: every client adds the share of one of H."""
        federation = experiment.federation
        honest = (federation.min_clients or federation.clients) - experiment.own(MaskedSettings).colluding
        return math.sqrt(federation.clients / honest)

    def tables(self, problem: Any, batch: Sequence[int], multiplier: float) -> tuple[float, int]:
        """See `TrustModel`: both follow from public numbers."""
        from fedsw.federation.trust.distributed.attempt_cost import bins_of, bound_of, table_share

        directions = problem.clipped.directions(0, 0)
        bins = bins_of(problem, batch, directions, multiplier)
        bound = bound_of(problem, batch, problem.clipped.planned_spreads())
        return table_share(problem, batch, bound, directions, bins), bins

    def misfit(self, settings: Any) -> str | None:
        """See `TrustModel`: what is not summed under masks yet, and numbers of clients that leave none honest."""
        if (why := nobody_honest(settings)) is not None:
            return why
        if settings.sketch != Sketch():
            return (
                "[sketch] is set, and trust 'distributed' releases sketches for shipped tasks that learn from one, not "
                f"for objective.task {settings.objective.task!r}: leave it out, or use 'sketch' or 'sketch-local'"
            )
        return None


def nobody_honest(settings: Any) -> str | None:
    """Reason why all clients of a sum might collude with the server, with the remedy; None if they cannot."""
    federation, colluding = settings.federation, settings.own(MaskedSettings).colluding
    least = federation.min_clients or federation.clients
    if least > colluding:
        return None
    return (
        f"local.colluding is {colluding} of at least {least} clients in a sum (federation.min_clients): "
        f"nobody would be honest. Lower it to {least - 1} or less"
    )


class DistributedSketch(Sketching, Distributed):
    """The model for tasks that learn from a sketch: one masked sum over all records a stage."""

    serves = "fedsw.federation.trust.distributed.once:SKETCHED"
    compares = frozenset(("sketch",))
    own_bounds = frozenset()
    held_out_to = frozenset(("operator",))
    beside = frozenset()
    law = "sum of waves"
    sections = {**Distributed.sections, "privacy": SketchPrivacy}
    leaves = "one masked sum a stage, of what is measured of all records"

    def summed(self, experiment: Any) -> float:
        """See `TrustModel`: of every attempt, with an equal part of the budget."""
        return super().summed(experiment) * math.sqrt(self.attempts(experiment))

    def attempts(self, experiment: Any) -> int:
        """See `TrustModel`: at every stage, those that are planned to fail among them."""
        from fedsw.federation.trust.distributed.attempt_cost import attempts_at_one

        return attempts_at_one(experiment)

    def misfit(self, settings: Any) -> str | None:
        """See `TrustModel`: what is about rounds, and numbers of clients that leave none honest."""
        if settings.privacy.moments:
            return "privacy.moments are released before rounds, and a sketch has none: leave it out"
        if settings.local.changed("bins"):
            return "local.bins is of tables of outputs, and a sketch has none: leave it out"
        return nobody_honest(settings)


Distributed.sketching = DistributedSketch()
TRUST_MODELS = (Distributed(),)
