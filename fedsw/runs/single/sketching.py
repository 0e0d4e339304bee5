"""A sketch on one machine: how much noise one release needs, and the release."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedsw._tools.settings import seed_of, whole
from fedsw.data import within_reach
from fedsw.experiment import resolve_delta
from fedsw.learning.sketches.noised import STRATUM, NoisedSketch, bounded_sketch, sketch_sensitivity
from fedsw.learning.sketches.sketch_law import MOST_RECORDS, Law, Sketcher
from fedsw.privacy import plan as plans
from fedsw.privacy.accounting import Ledger
from fedsw.privacy.accounting.lifetime import About, account_named, counting
from fedsw.privacy.release import release


@dataclass(frozen=True, kw_only=True, repr=False)
class SketchPlan(plans.NoisePlan):
    """The plan of one sketch of all records: one round of a full batch. Everything is public. Made by `plan_sketch`."""

    law: Law

    @property
    def _protected(self) -> str:
        return (
            "each record, for its replacement by any other, label and group included, against everybody who sees the "
            f"sketch and everything computed from it. Public: {', '.join(self.sensitivity.public)}, and what is "
            "measured."
        )

    @property
    def _sampled(self) -> list[tuple[str, str]]:
        return [("records", f"{self.records}, in {self.law.cells} cells")]


def plan_sketch(
    law: Law,
    *,
    records: int,
    delta: float | str,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    accountant: str = "pld",
    seed: int | None = None,
) -> SketchPlan:
    """Settle the noise of one release of all records, from public numbers.

    Guarantee: one release with this multiplier satisfies (epsilon, delta)-differential privacy for the replacement of
    one record, label and group included: T = 1 and sampling rate 1, so the exact profile of the Gaussian mechanism.

    Their number is public; the other arguments are those of `fedsw.plan`.

    Raises:
        ValueError: naming the number that does not fit, and what would.
    """
    records, seed = whole(records, "records", least=1, most=MOST_RECORDS), seed_of(seed)
    epsilon, noise_multiplier = plans.asked_for(epsilon, noise_multiplier)
    resolved = resolve_delta(delta, records=records)
    multiplier, epsilon_planned = plans.calibrated(
        epsilon, noise_multiplier, delta=resolved, rate=1.0, rounds=1, accountant=accountant
    )
    return SketchPlan(
        law=law,
        strata=(STRATUM,),
        sizes=(records,),
        batch=(records,),
        rates=(1.0,),
        rounds=1,
        epsilon=epsilon_planned,
        delta=resolved,
        multiplier=multiplier,
        sensitivities=(sketch_sensitivity(law),),
        accountant=accountant,
        seed=seed,
    )


def release_sketch(
    sketcher: Sketcher,
    features: Tensor,
    cells: Tensor,
    plan: SketchPlan,
    ledger: Ledger,
    *,
    attempt: int = 0,
    account: str | Path | None = None,
) -> NoisedSketch:
    """Sketch all records, charge the ledger, add the noise, and hand it out.

    Guarantee: `plan.guarantee`, if it is the ledger's only release; with an account also that of the account, with
    whatever else counts there.

    Args:
        sketcher: the plan's law, drawn; on the features' device, of their precision.
        features, cells: (n, p), n as planned, and (n,) int64; see `Law.cell_of`.
        ledger: made from the plan (`Ledger.create(path, plan)`).
        attempt: counts releases of the same records, each of which is charged.
        account: as of `fedsw.PrivateTrainer`.

    Raises:
        BudgetExhausted, AlreadySpent: as `fedsw.release`; nothing leaves.
        LimitReached: if the release does not fit below the account's limit; nothing is charged or drawn.
        LedgerReplaced: if the ledger is a copy of one that released more, by the account; nothing leaves.
        ValueError: if there are more or fewer records than planned, of another law, or in a cell that it does not
            have; nothing is charged.
    """
    if sketcher.law != plan.law:
        raise ValueError("the sketcher was drawn from another law than the plan's; take plan.law.drawn()")
    if len(features) != plan.records:
        raise ValueError(f"{len(features)} records, and the plan is for {plan.records}: make it with their number")
    if cells.dtype != torch.int64 or cells.shape != features.shape[:1]:
        raise ValueError(
            f"cells are {cells.dtype} of shape {tuple(cells.shape)}; int64, ({len(features)},) is expected"
        )
    within_reach(cells, plan.law.cells, "the cell", "the law", "classes= and groups= of it")
    named = None if account is None else account_named(account)
    about = About(ledger.path.stem, "release_sketch", str(ledger.path.parent), plan.unprotected)
    with counting(ledger, named, plan.reserved(), about):
        bounded = bounded_sketch(sketcher, features, cells, attempt=attempt)
        released = release(bounded, plan, ledger)
    return NoisedSketch(plan.law, released.value, released.sigma, plan.records)
