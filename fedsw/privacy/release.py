"""Release of private values, the only one: they are charged on disk, then noised, and only then handed out.

    Bounded(value, sensitivity, ...)  --release(bounded, guarantee, ledger)-->  Released(value, sigma, spent)

Nothing else in fedsw adds noise to private values or spends from a ledger. If no party is trusted with a sum,
`release_share` hands out whole numbers with a site's share of the noise, under masks. Several values that are computed
from one sample (`local-gradient`: a table, then a contribution) are paid for together with `pay`, and leave one by one
with `release_paid`. `pay_together` and `release_paid_together` are the same for many ledgers at once: one wait for the
disk, one draw of noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fedsw._tools.later import torch
from fedsw._tools.randomness import Stream
from fedsw.privacy.accountants import GAUSSIAN, NO_NOISE, require_noise
from fedsw.privacy.accounting import Charge, Ledger, Spending, spend_together
from fedsw.privacy.accounting.ledger import mu_of
from fedsw.privacy.masks import Share, Whole, whole_steps
from fedsw.privacy.mechanisms import MECHANISMS, noised, require_norm, spacing
from fedsw.privacy.relations import REPLACE_ONE, require_relation, require_sampling
from fedsw.privacy.sensitivity import Sensitivity

if TYPE_CHECKING:
    from torch import Tensor

_SAME = 1e-9  # relative: what two ways of computing one number may differ by


class Guarantee(Protocol):
    """A plan, as a release needs it: how much noise, from which stream, and with which guarantee."""

    @property
    def multiplier(self) -> float:
        """Noise multiplier sigma / Delta; 0 if no noise is added, which costs epsilon = infinity."""

    @property
    def mechanism(self) -> str:
        """The noise's name in `fedsw.privacy.mechanisms.MECHANISMS`."""

    @property
    def accountant(self) -> str:
        """Name of the accountant that its epsilon comes from."""

    @property
    def relation(self) -> str:
        """The neighbouring relation that the guarantee is for."""

    @property
    def nominal(self) -> bool:
        """True if sampling and noise can be reproduced from a seed."""

    def noise_stream(self, round_: int, attempt: int) -> Stream:
        """Secret random numbers for the noise of an attempt."""


class Sample:
    """A secret sample of records, from which values are released for one payment only.

    Amplification by secret sampling counts once for a sample: one payment of one ledger covers all that is computed
    from it. Two ledgers, or two payments, would each account for it as a fresh sample.

    It is one object, however often a batch is copied, and is not stored.

    Args:
        plan: what drew it, the only one that it leaves under. None for any.
        ledger: what its plan numbers attempts by; it pays and no other. None for the first that does.
    """

    __slots__ = ("_ledger", "_paid", "_plan")

    def __init__(self, plan: object = None, ledger: Ledger | None = None) -> None:
        self._plan, self._ledger = plan, ledger
        self._paid: Paid | None = None

    def require(self, plan: object, ledger: Ledger) -> None:
        """Refuse another plan than the sample was drawn for, another ledger, or a sample that has left: ValueError."""
        if self._plan is not None and plan is not self._plan:
            raise ValueError(
                "this batch was drawn for another plan, with other sampling rates and noise; release it under "
                "the plan that drew it. Nothing was charged"
            )
        self._require_ledger(ledger)
        if self._paid is not None:
            raise ValueError(f"{self._left()}. Nothing was charged")

    def leave(self, paid: Paid) -> None:
        """Allow a value of the sample to leave for a payment; ValueError for any payment but the first."""
        self._require_ledger(paid.ledger)
        if self._paid is not None and paid is not self._paid:
            raise ValueError(self._left())
        self._paid = paid

    def _require_ledger(self, ledger: Ledger | None) -> None:
        if self._ledger is not None and ledger is not self._ledger:
            raise ValueError(
                "this batch was drawn for another ledger, which alone pays for it: two ledgers would each account for "
                "a secret sample of its own. Draw a batch for each (plan.batches(records, ledger=...))"
            )

    def _left(self) -> str:
        assert self._paid is not None
        return (
            f"this batch has left, in round {self._paid.round}, attempt {self._paid.attempt}: a secret sample is "
            "accounted for once. Draw a fresh one for every release, or pay for several values of one together (pay)"
        )

    def __copy__(self) -> Sample:
        return self

    def __deepcopy__(self, memo: object) -> Sample:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a batch is secret, and leaves once: it is not stored; draw a fresh one")


class Bounded:
    """A private value with how far one replaced record can move it. It is not a tensor, and prints without its value.

    The code that makes one proves the bound: a clipped sum, a histogram, a projection onto a ball, or a custom function
    with a stated bound.

    Args:
        value: float64 of any shape (else TypeError); only `release` and `release_paid` read it.
        sensitivity: the largest l2 move (l1 for Laplace noise) over all records, with every safety factor in it.
        round, attempt: of the sample it was computed from; a ledger takes each pair once.
        charges: what its release costs each group: sampling rate and the group's own sensitivity, ValueError if that
            exceeds the stated one, or is for other neighbours. None if it is a part of what `pay` charges.
        sample: the secret sample it was computed from, where that is accounted for; it leaves once.
    """

    __slots__ = ("__value", "attempt", "charges", "round", "sample", "sensitivity")

    def __init__(
        self,
        value: Tensor,
        sensitivity: Sensitivity,
        *,
        round: int = 0,
        attempt: int = 0,
        charges: Sequence[Charge] = (),
        sample: Sample | None = None,
    ) -> None:
        if value.dtype != torch.float64:
            raise TypeError(f"a bounded value is float64, this one is {value.dtype}; sum in float64")
        for charge in charges:
            if charge.sensitivity > sensitivity.value * (1 + _SAME):
                raise ValueError(
                    f"group {charge.group} moves the value by up to {charge.sensitivity:.6g}, above the stated "
                    f"sensitivity {sensitivity.value:.6g}; state the largest over the groups"
                )
        require_sampling(sensitivity.relation, [charge.sampling for charge in charges])
        self.__value = value.detach()
        self.sensitivity, self.charges = sensitivity, tuple(charges)
        self.round, self.attempt, self.sample = round, attempt, sample

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value; public."""
        return tuple(self.__value.shape)

    def __repr__(self) -> str:
        return f"Bounded(shape={self.shape}, sensitivity={self.sensitivity.value:.6g}, value hidden)"

    def __reduce__(self) -> Any:
        raise TypeError("a bounded value is private and is not stored; store what `release` returns")

    def _take(self) -> Tensor:
        return self.__value


@dataclass(frozen=True)
class Released:
    """A released value: whatever is computed from it costs nothing more.

    The value is noised, float64, of the shape of what was bounded; ``sigma`` the scale of the noise in each coordinate
    (standard deviation; b of Laplace noise; 0 without noise); ``spent`` epsilon of the ledger, this release included.
    """

    value: Tensor
    sigma: float
    spent: float


@dataclass(frozen=True)
class Part:
    """One of the values that a payment covers: the most that a record moves it, and the scale of its noise.

    The mechanism is one of `mechanisms.MECHANISMS`, or "none", of scale 0, which costs epsilon = infinity:
    only a ledger without a limit takes it. The relation says which neighbours the bound is for. ValueError for another
    mechanism, or a scale that no noise has.
    """

    name: str
    sensitivity: float
    scale: float
    mechanism: str = GAUSSIAN
    relation: str = REPLACE_ONE

    def __post_init__(self) -> None:
        if self.mechanism != NO_NOISE:
            MECHANISMS.get(self.mechanism)
            spacing(self.scale)
        elif self.scale:
            raise ValueError(f"{self.name!r} has no noise, but its scale is {self.scale}; it is 0")

    @classmethod
    def of(cls, name: str, sensitivity: Sensitivity, scale: float, mechanism: str = GAUSSIAN) -> Part:
        """The part that a value of such a bound leaves as; without noise where the scale is 0."""
        return cls(name, sensitivity.value, scale, mechanism if scale else NO_NOISE, sensitivity.relation)


_KEPT = {
    "parts": "name",
    "sensitivities": "sensitivity",
    "scales": "scale",
    "mechanisms": "mechanism",
    "relations": "relation",
}
"""Columns of a stored payment, and what of each part they hold."""


@dataclass
class Paid:
    """A payment on disk: which parts may still leave, each once, the epsilon spent, and the ledger that has it."""

    round: int
    attempt: int
    spent: float
    parts: dict[str, Part] = field(default_factory=dict)
    ledger: Ledger | None = field(default=None, repr=False, compare=False)

    def kept(self) -> dict[str, Any]:
        """Numbers and words that bring it back (`from_kept`), for a client that answers in several messages."""
        columns = {column: [getattr(part, field) for part in self.parts.values()] for column, field in _KEPT.items()}
        return {"round": self.round, "attempt": self.attempt, "epsilon": self.spent, **columns}

    @classmethod
    def from_kept(cls, stored: Mapping[str, Any]) -> Paid:
        """The payment behind `kept()`."""
        rows = zip(*(stored[column] for column in _KEPT), strict=True)
        parts = {str(name): Part(str(name), float(moved), float(scale), *of) for name, moved, scale, *of in rows}
        return cls(int(stored["round"]), int(stored["attempt"]), float(stored["epsilon"]), parts)


def release(bounded: Bounded, guarantee: Guarantee, ledger: Ledger) -> Released:
    """Charge a value to the ledger, add its noise, and hand it out.

    Guarantee: the noise has scale sigma = multiplier * sensitivity, and the charge is on disk before it is drawn, so
    that a crash over-counts what left, never under-counts. The released value is the exactly noised one, rounded to a
    grid (`mechanisms.noised`). The value's bound is for the neighbours of plan and ledger, and its accountant takes the
    noise. What stays public is what the value's sensitivity says.

    BudgetExhausted if it would exceed the ledger's epsilon, AlreadySpent if this round and attempt are in the ledger,
    ValueError if the value states no charges, value, plan and ledger differ in relation, noise, accountant or in being
    nominal, the value's sample has left or is another plan's or ledger's, or no noise has that sigma: nothing is then
    charged, and nothing leaves.
    """
    if not bounded.charges:
        raise ValueError("this value states no charges; it leaves with what was paid for it together (release_paid)")
    if bounded.sample is not None:
        bounded.sample.require(guarantee, ledger)
    require_relation("this value", bounded.sensitivity.relation, guarantee.relation)
    _require_same(guarantee, ledger)
    sigma = guarantee.multiplier * bounded.sensitivity.value
    mechanism = guarantee.mechanism if guarantee.multiplier else NO_NOISE
    part = Part("value", bounded.sensitivity.value, sigma, mechanism, bounded.sensitivity.relation)
    if part.mechanism != NO_NOISE:
        require_norm(part.mechanism, repr(part.name), bounded.sensitivity.norm)
    paid = pay(ledger, bounded.round, bounded.attempt, bounded.charges, sigma, [part])
    return release_paid(bounded, paid, part.name, guarantee.noise_stream(bounded.round, bounded.attempt))


def pay(
    ledger: Ledger, round_: int, attempt: int, charges: Sequence[Charge], sigma: float, parts: Sequence[Part]
) -> Paid:
    """Charge all that an attempt will release from one sample, before any of it is computed.

    Guarantee: the parts' mu_i = sensitivity / scale compose to at most the mu that is charged, sqrt(sum mu_i^2) for
    Gaussian noise (Dong, Roth, Su 2022, Corollary 3.3), sum mu_i for Laplace noise; and their noise and relation are
    those that the ledger accounts for.

    The charges are in the units of `sigma`; the parts may leave for them. Raises as `release`; ValueError if the parts
    cost more than is charged, have several noises or another than the ledger accounts for, are bounded for other
    neighbours, or no noise has such a scale: nothing is charged.
    """
    _require_charged(ledger, charges, sigma, parts)
    spent = ledger.spend(round_, attempt, charges, sigma)
    return Paid(round_, attempt, spent, {part.name: part for part in parts}, ledger)


@dataclass(frozen=True)
class Bill(Spending):
    """One ledger's bill for an attempt; see `pay`."""

    parts: Sequence[Part]


def pay_together(bills: Sequence[Bill]) -> list[Paid | Exception]:
    """`pay` for many ledgers, with one wait for the disk: every charge is on it before any payment is handed out.

    Guarantee: that of `pay`, for each ledger by itself. A ledger that refuses keeps no other from paying.

    There is at most one bill for each ledger. Returns for each, in their order, the payment, or what `pay` raises.
    """
    outcomes: dict[int, Paid | Exception] = {}
    for index, bill in enumerate(bills):
        try:
            _require_charged(bill.ledger, bill.charges, bill.sigma, bill.parts)
        except ValueError as fault:
            outcomes[index] = fault
    due = [index for index in range(len(bills)) if index not in outcomes]  # the others have charged nothing
    for index, spent in zip(due, spend_together([bills[index] for index in due]), strict=True):
        bill = bills[index]
        parts = {part.name: part for part in bill.parts}
        paid = spent if isinstance(spent, Exception) else Paid(bill.round, bill.attempt, spent, parts, bill.ledger)
        outcomes[index] = paid
    return [outcomes[index] for index in range(len(bills))]


def _require_same(guarantee: Guarantee, ledger: Ledger) -> None:
    """Refuse a plan and a ledger that say different things of one release: ValueError names both."""
    for what, planned, accounted in (
        ("accountant", guarantee.accountant, ledger.accountant),
        ("mechanism", guarantee.mechanism, ledger.mechanism),
        ("relation", guarantee.relation, ledger.relation),
    ):
        if planned != accounted:
            raise ValueError(
                f"the plan has the {what} {planned!r} and the ledger {accounted!r}; make the ledger from the plan "
                "(Ledger.create(path, plan)). Nothing was charged"
            )
    if guarantee.nominal and not ledger.nominal:
        raise ValueError(
            "the plan has a seed, which reproduces sampling and noise, and the ledger is not called nominal; make the "
            "ledger from the plan (Ledger.create(path, plan)), or plan without a seed. Nothing was charged"
        )


def _require_charged(ledger: Ledger, charges: Sequence[Charge], sigma: float, parts: Sequence[Part]) -> None:
    """Refuse parts that cost more than is charged, or differ from what is accounted for: ValueError names both."""
    for part in parts:
        require_noise(ledger.accountant, part.mechanism)
        if part.mechanism not in (NO_NOISE, ledger.mechanism):
            raise ValueError(
                f"{part.name!r} has {part.mechanism!r} noise, and the ledger accounts for {ledger.mechanism!r} noise; "
                "nothing was charged"
            )
        require_relation(repr(part.name), part.relation, ledger.relation)
    # A value's bound is the largest over its groups: the group that it moves most is charged for all of it.
    charged = max(mu_of(charge.sensitivity, sigma) for charge in charges)
    needed = _joint(parts, ledger.mechanism)
    if needed > charged * (1 + _SAME):
        raise ValueError(
            f"what would leave costs mu = {needed:.6g}, and mu = {charged:.6g} was to be charged; nothing was charged. "
            "Charge the joint sensitivity of all parts"
        )


def _joint(parts: Sequence[Part], mechanism: str) -> float:
    """The mu of all parts of a payment together, of which those with noise have this one.

    ValueError if it is unknown how they add up.
    """
    exact = max((mu_of(part.sensitivity, 0.0) for part in parts if part.mechanism == NO_NOISE), default=0.0)
    mus = [mu_of(part.sensitivity, part.scale) for part in parts if part.mechanism != NO_NOISE]
    if len(mus) <= 1:
        return max([exact, *mus])
    joint = MECHANISMS.get(mechanism).joint
    if joint is None:
        raise ValueError(
            f"it is unknown what {len(mus)} values with {mechanism!r} noise from one sample cost together; nothing was "
            "charged. Pay for one alone"
        )
    return max(exact, joint(mus))


def release_paid(bounded: Bounded, paid: Paid, name: str, stream: Stream) -> Released:
    """Noise one part of what was paid for, and hand it out. A part leaves once.

    Its noise comes from the stream, which is secret and used for nothing else. ValueError if nothing, or less, was paid
    for such a part, or it has left.
    """
    part = _leaving(bounded, paid, name)
    return Released(_noised(bounded._take(), part.scale, part.mechanism, stream), part.scale, paid.spent)


def release_paid_together(
    bounded: Sequence[Bounded], paid: Sequence[Paid], name: str, stream: Stream
) -> list[Released | Exception]:
    """`release_paid` of the same part of many payments; values of one scale are noised in one call.

    Every number has noise of its own, independent of all others: it is the next of one stream, which is secret and used
    for nothing else. There is a value and its payment for each, in one order. Returns for each what is released, or
    what `release_paid` raises.
    """
    outcomes: dict[int, Released | Exception] = {}
    alike: dict[tuple[float, str], list[int]] = {}
    for index, (value, payment) in enumerate(zip(bounded, paid, strict=True)):
        try:
            part = _leaving(value, payment, name)
        except ValueError as fault:
            outcomes[index] = fault
        else:
            alike.setdefault((part.scale, part.mechanism), []).append(index)
    for (scale, mechanism), places in alike.items():
        values = [bounded[index]._take() for index in places]
        together = _noised(torch.cat([value.reshape(-1) for value in values]), scale, mechanism, stream)
        parts = torch.split(together, [exact.numel() for exact in values])
        for index, exact, piece in zip(places, values, parts, strict=True):
            outcomes[index] = Released(piece.reshape(exact.shape).clone(), scale, paid[index].spent)
    return [outcomes[index] for index in range(len(bounded))]


def release_share(
    bounded: Bounded, paid: Sequence[Paid], name: str, share: Share, mask: Whole, stream: Stream
) -> Whole:
    """Noise a site's part of a masked sum with its share, round it to the grid of all sites, and mask it.

    Guarantee: to a party lacking a key of the mask the result is uniform. In the sum of sites that cancel its masks
    it has noise of its own, N(0, scale^2 m / H) of the part's scale, so that with those of any H honest clients the
    sum is released with Gaussian noise of that scale (docs/guarantees/distributed.md, Theorem M1).

    Args:
        bounded: the site's vector, over all of its clients; any shape. Beyond `share.most` a coordinate is cut.
        paid: of every client of the site in the sum; each is paid for this part, which leaves once.
        share: how much of the noise is this site's, and the grid.
        mask, stream: (n,), one number for each of the vector's, and where noise comes from; used for nothing else.

    Returns (n,) whole numbers mod 2^64. ValueError as `release_paid` for any client, or if clients are missing or paid
    for other noise; a part that was taken by then does not come back.
    """
    parts = [_leaving(bounded, payment, name) for payment in paid]
    scales = {part.scale for part in parts if part.mechanism == GAUSSIAN}
    gaussian = all(part.mechanism == GAUSSIAN for part in parts)
    if len(parts) != share.clients or len(scales) != 1 or not gaussian:
        raise ValueError(
            f"{len(parts)} clients paid for {name!r} at {len(scales)} scales of Gaussian noise"
            f"{'' if gaussian else ', or of another'}; the share is for {share.clients} clients at one"
        )
    # A cut of every coordinate moves no two vectors further apart. Beyond it the sum could wrap around, mod 2^64.
    value = bounded._take().nan_to_num(0.0, share.most, -share.most).clamp(-share.most, share.most)
    return whole_steps(noised(value, share.scale(scales.pop()), stream, step=share.step), share.step) + mask


def _leaving(bounded: Bounded, paid: Paid, name: str) -> Part:
    """Take the part that a value uses up out of its payment; ValueError as `release_paid`."""
    part = paid.parts.get(name)
    if part is None:
        raise ValueError(
            f"nothing is paid for {name!r} in round {paid.round}, attempt {paid.attempt}, or it has left already; pay "
            "for a fresh attempt"
        )
    if bounded.sensitivity.value > part.sensitivity * (1 + _SAME):
        raise ValueError(
            f"{name!r} moves by up to {bounded.sensitivity.value:.6g}, and was paid for as {part.sensitivity:.6g}"
        )
    require_relation(repr(name), bounded.sensitivity.relation, part.relation)
    if part.mechanism != NO_NOISE:
        require_norm(part.mechanism, repr(part.name), bounded.sensitivity.norm)
    if bounded.sample is not None:
        bounded.sample.leave(paid)
    del paid.parts[name]
    return part


def _noised(value: Tensor, scale: float, mechanism: str, stream: Stream) -> Tensor:
    if mechanism == NO_NOISE:
        return value
    return MECHANISMS.get(mechanism).noised(value, scale, stream)
