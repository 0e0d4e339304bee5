"""A plan for sums of vectors that are clipped as a whole: a client's update, or a custom statistic.

Clipped to norm C, one vector moves a sum by at most 2 C when it is replaced, and every round sees all of them: T rounds
at scale sigma have mu = 2 C sqrt(T) / sigma (docs/guarantees/units.md). The noise is the plan's, and leaves with
`fedsw.release`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedsw._tools.later import torch
from fedsw._tools.settings import real, seed_of, whole
from fedsw._tools.text import downward, upward
from fedsw.privacy import plan as plans
from fedsw.privacy.accounting import Charge
from fedsw.privacy.release import Bounded
from fedsw.privacy.sensitivity import SLACK, Sensitivity

if TYPE_CHECKING:
    from torch import Tensor

VECTOR = "vector"
"""The group that a ledger charges for the vectors of a sum."""


@dataclass(frozen=True, kw_only=True, repr=False)
class SumPlan(plans.NoisePlan):
    """The plan of T noised sums of clipped vectors; made by `plan_sum`. Print it.

    Attributes:
        norm: the most that a vector's l2 norm is, C.
        who: owner and kind of a vector, for the guarantee.
        colluding: C, how many clients may collude with the server that adds up masked shares; None without masks.
    """

    norm: float
    who: str
    colluding: int | None = None

    def bounded(self, vectors: Tensor, *, round: int, attempt: int = 0) -> Bounded:
        """The sum of clipped vectors, for `fedsw.release` under this plan.

        Guarantee: each row is scaled to norm C at most, in float64, so that replacing a row moves the sum by at most
        the plan's sensitivity; a row with an infinite or undefined norm counts as 0. Nothing branches on it.

        Args:
            vectors: (m, r), or (r,) for a single one.
            round, attempt: each pair is charged once by a ledger.
        """
        rows = torch.as_tensor(vectors).detach().to("cpu", torch.float64)
        rows = rows.unsqueeze(0) if rows.dim() == 1 else rows
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        scaled = rows * (self.norm / norms.clamp(min=self.norm))
        total = torch.where(norms < math.inf, scaled, 0.0).sum(0)
        bound = self.sensitivity
        return Bounded(total, bound, round=round, attempt=attempt, charges=[Charge(VECTOR, 1.0, bound.value)])

    @property
    def _protected(self) -> str:
        seen = f"all {self.rounds} noised sums and everything computed from them, and nothing else of it"
        whom, rests = f"everybody who sees {seen}", ""
        if self.colluding is not None:
            whom = f"the server, any {self.colluding} of the clients and everybody else together, who see {seen}"
            rests = (
                f" It is computational (X25519, HKDF-SHA256, ChaCha20): at least {self.sizes[0]} clients are in every "
                f"sum, and the noise of {self.sizes[0] - self.colluding} of them is the whole."
            )
        return (
            f"{self.who} as a whole, for its replacement by any other of norm at most {upward(self.norm)}, against "
            f"{whom}.{rests} Public: {', '.join(self.sensitivity.public)}."
        )

    @property
    def _sampled(self) -> list[tuple[str, str]]:
        return [("vectors", f"each of norm at most {downward(self.norm)}, all of them in each of {self.rounds} rounds")]


def plan_sum(
    *,
    norm: float,
    rounds: int,
    epsilon: float | None = None,
    delta: float,
    noise_multiplier: float | None = None,
    vectors: int = 1,
    colluding: int | None = None,
    who: str = "each vector",
    accountant: str = "pld",
    seed: int | None = None,
) -> SumPlan:
    """Settle the noise of sums of vectors that are clipped to a norm, from public numbers.

    Guarantee: `rounds` releases of `SumPlan.bounded` with this multiplier satisfy (epsilon, delta)-differential
    privacy for the replacement of one vector in every round, by any other.

    Args:
        norm: C, the largest l2 norm of a vector; longer ones are scaled to it.
        rounds: how many sums are released.
        epsilon: asked for; inf for no noise. Or give `noise_multiplier` (sigma over 2 C), and epsilon follows.
        delta: of the guarantee.
        vectors: how many are in a sum, under masks at least; public, as the guarantee says.
        colluding: how many clients may collude with a server that adds up shares under masks, as
            `fedsw.flower.private_updates` sends them: the noise is whole without theirs. None: no masks.
        who: owner and kind of a vector, for the guarantee: "each client's update".
        accountant: what composes the rounds.
        seed: makes the noise reproducible; epsilon is then nominal. For experiments only.

    Raises:
        ValueError: naming the number that does not fit.

    Source: Dong, Roth and Su (2022), Corollary 3.3; docs/guarantees/units.md.
    """
    if not 0 < (norm := real(norm, "norm")) < math.inf:
        raise ValueError(f"norm = {norm}; it is above 0 and finite, the largest length of a vector")
    rounds, vectors, seed = whole(rounds, "rounds", least=1), whole(vectors, "vectors", least=1), seed_of(seed)
    epsilon, noise_multiplier = plans.asked_for(epsilon, noise_multiplier)
    if not 0 < (delta := real(delta, "delta")) < 1:
        raise ValueError(f"delta = {delta}; it lies between 0 and 1, well below one over the number of vectors")
    if colluding is not None and not 0 <= (colluding := whole(colluding, "colluding", least=0)) < vectors:
        raise ValueError(f"colluding = {colluding} of vectors = {vectors} clients: one client is honest at least")
    if colluding is not None and epsilon == math.inf:
        raise ValueError("epsilon = inf adds no noise, and a masked sum has a share of it from every client")
    settings: dict[str, Any] = {"delta": delta, "rate": 1.0, "rounds": rounds, "accountant": accountant}
    multiplier, planned = plans.calibrated(epsilon, noise_multiplier, **settings)
    least = "" if colluding is None else "at least "
    public = (f"the number of vectors ({least}{vectors})", "who takes part in which round")
    return SumPlan(
        strata=(VECTOR,),
        sizes=(vectors,),
        batch=(vectors,),
        rates=(1.0,),
        rounds=rounds,
        epsilon=planned,
        delta=delta,
        multiplier=multiplier,
        sensitivities=(Sensitivity(2 * norm * SLACK, "clipped vectors", public=public),),
        accountant=accountant,
        seed=seed,
        norm=norm,
        who=who,
        colluding=colluding,
    )
