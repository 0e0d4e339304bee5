"""Sums over records that leave once, exact for a trusted server or noised at each client: what, how, and at what cost.

First how any such sum leaves; then each kind: histograms and moments before the first round, counts by class and score
after the last, and sums over records that were kept out of training.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from flwr.app import Context as Memory
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.files import PRIVATE_FOLDER
from fedsw._tools.randomness import Stream
from fedsw._tools.settings import FederationError
from fedsw.data import Records
from fedsw.experiment import Experiment
from fedsw.experiment.compatibility import relation_of
from fedsw.federation.exchange.participants import Member, Present, Site
from fedsw.federation.messages import AnyExchange, Broadcast, Terms
from fedsw.federation.messages.table import ExactSums, Noised
from fedsw.federation.node.node import Node, batch_key
from fedsw.federation.node.own_ledger import GROUP
from fedsw.federation.node.replies import Due, Handler, answer_together, answered, each_pays, fresh
from fedsw.federation.trust import budget_shares as split
from fedsw.federation.trust import most, promise
from fedsw.federation.trust.budget_shares import (
    HISTOGRAMS_PART,
    PART,
    SCORES_PART,
    TALLY_PART,
    HeldOutBudget,
    Shares,
    SumBudget,
    held_out_budget,
    rounds_beside,
    sum_budget,
)
from fedsw.federation.trust.context import AtServer, Collector, Context, LocalMethod, describe, who_is_in
from fedsw.federation.trust.round_plan import FederationPlan
from fedsw.learning.moments.beside_rounds import histograms_of, moments_layout, scores_of, tally_of
from fedsw.learning.moments.column_counts import ColumnCounts
from fedsw.learning.moments.moments_sum import STEP as MOMENT_STEP
from fedsw.learning.moments.moments_sum import Layout, sums_of
from fedsw.learning.sketches.sketch_law import STEP as TALLY_STEP
from fedsw.learning.tasks.measures import tally_of_records
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import ScoreCounts, counts_of_scores
from fedsw.learning.tasks.tally import Cut, RegressionSums, Tally
from fedsw.privacy.accounting import BudgetExhausted
from fedsw.privacy.release import Bounded, Paid, Released, release, release_paid
from fedsw.privacy.sensitivity import SLACK
from fedsw.runs.observer import Outcome
from fedsw.runs.releases import Releases

SUMS: dict[str, type[Sum]] = {}
"""Every sum that is released once, by its part: it is here as soon as its module is imported."""


class Sum(ABC):
    """A sum over all records of a run, or over those that are kept out of training, in whole steps.

    Whole steps add up exactly, so that a sum does not depend on how records are spread over clients and sites. Where a
    unit is declared one row of each is in it, drawn at random.

    What differs from one sum to another is in its attributes; `Once` has the three ways in which any of them leaves.

    Attributes:
        part: what a payment calls it.
        called: what a log calls it.
        purpose: what the secret streams of its rows and its noise are called by.
        step: the numbers are whole multiples of it.
        weights: field of a request with the weights that records go through; "" where they go through none.
        stored: folder of clients' own releases of it, among a run's; "" for that of what comes before the rounds.
        charged_before: why a server does not release it again where its ledger has a row of it; "" where it may be
            charged anew.
        attempt: the attempt that a client's own ledger knows every release of it by, so that a second one is refused;
            None if it is that of the request.
        any_number: whether any number of clients is enough, of those that hold records that are in it; else
            `federation.min_clients` must answer.
        late: whether clients that were missing are asked again whenever a run goes on, so that theirs can be added.
        sizes: lengths of a client's answer that the task does not say.
        known: what a mask knows of a request for it, beside what it knows of every one.

    A sum over all records of training has its own part of their budget, for what ``_counts`` of each of them.
    """

    part: ClassVar[str]
    called: ClassVar[str]
    purpose: ClassVar[str]
    step: ClassVar[float]
    weights: ClassVar[str] = ""
    stored: ClassVar[str] = ""
    charged_before: ClassVar[str] = ""
    attempt: ClassVar[int | None] = None
    any_number: ClassVar[bool] = False
    late: ClassVar[bool] = False
    sizes: Mapping[str, int] = {}
    known: Mapping[str, bytes] = {}
    _counts: Layout | ColumnCounts | ScoreCounts

    def __init_subclass__(cls) -> None:
        SUMS[cls.part] = cls

    def __init__(self, task: Problem) -> None:
        self.task = task

    @classmethod
    def asked(cls, task: Problem, request: Any) -> Self:
        """Sum that a request asks for; RuntimeError in a run that releases nothing of the kind."""
        weights: Broadcast | None = getattr(request, cls.weights, None)
        return cls.at(task, request.round, torch.zeros(0) if weights is None else weights.tensor())

    @classmethod
    @abstractmethod
    def at(cls, task: Problem, round_: int, weights: Tensor) -> Self:
        """Sum that a server asks for in a round, at the model (r,), or through a classifier of these weights (z,)."""

    @classmethod
    def rounds(cls, experiment: Experiment) -> Sequence[int]:
        """Rounds in which a run releases it, in ledgers and messages."""
        return (rounds_beside(experiment)[cls.part],)

    @classmethod
    def folder(cls, round_: int) -> str:
        """Folder of clients' own releases of it in a round; see ``stored``."""
        return cls.stored

    @property
    def sent(self) -> Mapping[str, Any]:
        """Fields of a request for it, beside the attempt and the clients that are asked."""
        return {}

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """Blocks, and numbers of each."""

    @abstractmethod
    def steps(self, node: Node, positions: Sequence[int], stream: Stream) -> Tensor:
        """The sum over all records of a node's clients at some positions, (blocks, width) int64, WITHOUT NOISE.

        The `stream` decides on the rows of units; secret, but in a seeded run.
        """

    def budget(self, delta: float, shared: Callable[[], Shares], attempts: int = 1) -> SumBudget:
        """Cost of its release, or of one of its planned attempts, out of a budget that rounds share: its own share."""
        share: float = getattr(shared(), self.part)
        return sum_budget(self.part, self._counts, share, relation_of(self.task.experiment))

    @abstractmethod
    def most(self, records: int) -> float:
        """Largest coordinate of the sum, by the number of records of training."""

    @abstractmethod
    def fault(self, steps: Tensor, records: NDArray[np.int64]) -> str | None:
        """Reason why this many records (blocks,) cannot have a sum (blocks, width), never quoted; None if they can."""

    def counted(self, site: Site) -> NDArray[np.int64]:
        """Records of each client of a site that are in the sum, by cell or group, (S, c)."""
        return site.sizes

    def records(self, sites: Sequence[Site], clients: Collection[int]) -> NDArray[np.int64]:
        """Records of some clients that are in the sum, by cell or group, (c,).

        Under additions and removals it is the declared number, however many are in the sum.
        """
        if (declared := self.task.experiment.declared) is not None:
            return np.array([declared[0]])
        rows = [self.counted(site)[np.isin(site.clients, list(clients))] for site in sites]
        total: NDArray[np.int64] = np.concatenate(rows).sum(axis=0)
        return total

    def numbered(self, round_: int, attempt: int) -> tuple[int, int]:
        """The round and the attempt that a client's own ledger knows its release by."""
        return round_, attempt if self.attempt is None else self.attempt

    def stream(self, node: Node, round_: int, attempt: int, purpose: str) -> Stream:
        """A client's secret randomness of one purpose; reproducible only in a seeded (nominal) run."""
        seed = node.task.experiment.seed
        if seed is None:
            return Stream.secure()
        return Stream.seeded(seed, purpose, int(node.clients[0]), round_, attempt)

    def bounded(self, parts: Sequence[SiteSums], plan: FederationPlan, round_: int, attempt: int) -> Bounded:
        """The sum of all sites, to be noised once by a server that they trust."""
        steps, budget = torch.stack([part.steps for part in parts]).sum(dim=0), self.budget(plan.delta, plan.shares)
        charges = budget.charges(plan.strata, self.task.experiment)
        return Bounded(steps.double() * self.step, budget.sensitivity, round=round_, attempt=attempt, charges=charges)


@dataclass(frozen=True, eq=False)
class SiteSums:
    """A site's sums, in whole steps, and which of its clients are in them, (S,)."""

    site: Site
    steps: Tensor
    included: NDArray[np.bool_]


def beside_training(task: Problem, round_: int) -> list[Sum]:
    """The sums that a run releases once in a round beside those of training: one each, or two before the first."""
    experiment, sums, theta = task.experiment, list[Sum](), torch.zeros(task.parameters, dtype=torch.float64)
    assert experiment.privacy.model.sides  # whose modules register their sums
    for part, number in rounds_beside(experiment).items():
        with contextlib.suppress(RuntimeError):  # of a run that releases nothing of the kind
            sums += [SUMS[part].at(task, round_, theta)] if number == round_ else []
    return sums


def rows_in(node: Node, positions: Sequence[int], stream: Stream) -> NDArray[np.int64]:
    """Numbers (n,) of the records that a sum over a node's clients at some positions has; of units, a row each."""
    units = [node.units_of(position) for position in positions]
    chosen = np.sort(np.concatenate(units)) if units else np.empty(0, dtype=np.int64)
    return node.units.one_row_each(chosen, stream.child("rows"), seeded=node.seeded)


def records_of(node: Node, positions: Sequence[int], stream: Stream) -> Records:
    """The records in a sum over a node's clients at some positions, as the task takes them."""
    if len(positions) == len(node.clients):
        return node.everybody(stream)  # without a copy, where no unit is declared
    return node.taken.take(rows_in(node, positions, stream))


def answer_exactly(exchange: AnyExchange, kind: type[Sum]) -> Handler:
    """Handler that answers a trusted server: the exact sum over records of the clients that are asked and not lost."""

    def answer(message: Message, context: Memory) -> Message:
        node, request = fresh(exchange, message, context)
        lost = node.lost(request.round, request.attempt)
        positions = [int(position) for position in np.flatnonzero(request.asked.numpy()) if position not in lost]
        stream = Stream(batch_key(node.task, request.round, request.attempt))
        steps = kind.asked(node.task, request).steps(node, positions, stream)
        return answered(exchange.up(steps, torch.from_numpy(lost)), node, message)

    return answer


def _shares_of(node: Node, delta: float) -> Callable[[], Shares]:
    """Function that splits a client's own budget, for sums that have a share of it."""

    def shared() -> Shares:
        experiment = node.task.experiment
        epsilon = experiment.privacy.model.sides.epsilon(node, delta)
        return replace(split.budget_of(experiment, node.sizes, delta), epsilon=epsilon)

    return shared


def own_due(total: Sum, node: Node, ledger: Path, round_: int, attempt: int, federation: int) -> Due:
    """Charges of a client for a sum of its own, to the ledger at a path; `federation` counts all clients' records."""
    delta, experiment = node.delta(federation), node.task.experiment
    budget, promised = total.budget(delta, _shares_of(node, delta)), promise(node, delta)
    charges, numbered = budget.charges((GROUP,), experiment), total.numbered(round_, attempt)
    return Due(ledger, promised, *numbered, charges, budget.sigma, [budget.part], most(node, delta))


def own_release(total: Sum, node: Node, round_: int, attempt: int, federation: int, paid: Paid) -> Released:
    """The sum over all of a client's records, with noise of its own, once; of units, a row each.

    Guarantee: with all else that the run releases, the client's own (epsilon, delta), for the replacement of one of its
    records, against all others, whatever a server sends: charged on disk before the noise is drawn (`own_due`).
    """
    numbered = total.numbered(round_, attempt)
    steps = total.steps(node, range(len(node.clients)), total.stream(node, *numbered, f"{total.purpose} rows"))
    delta = node.delta(federation)
    bounded = Bounded(steps.double() * total.step, total.budget(delta, _shares_of(node, delta)).sensitivity)
    return release_paid(bounded, paid, total.part, total.stream(node, *numbered, f"{total.purpose} noise"))


def answer_noised(exchange: AnyExchange, kind: type[Sum]) -> Handler:
    """Handler that answers with the sum over a client's records, noised by itself, charged to its own ledger."""

    def due(node: Node, request: Any, ledger: Path) -> Due:
        return own_due(kind.asked(node.task, request), node, ledger, request.round, request.attempt, request.records)

    def release(node: Node, request: Any, paid: Paid | None) -> Noised:
        assert paid is not None
        total = kind.asked(node.task, request)
        released = own_release(total, node, request.round, request.attempt, request.records, paid)
        noised: Noised = exchange.up(released.spent, released.value, released.sigma)
        return noised

    return answer_together(exchange, each_pays(due, release))


class TrustedSums(AtServer):
    """Sites send exact sums, and the server adds them, charges its ledger, and noises once.

    A site that does not answer is left out of the sums. Nothing is charged or released before enough sites have
    answered, so that an attempt with too few is made again. After `round`, ``records`` are those in the sum, by cell or
    group.
    """

    def __init__(self, context: Context, exchange: AnyExchange, kind: type[Sum]) -> None:
        super().__init__(context)
        self._exchange, self._kind = exchange, kind
        self._collector = Collector(context, remains="The ledger is kept")
        self.records: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def round(self, round_: int, theta: Tensor) -> Outcome:
        """The one exchange, at the model `theta` (r,), or through a classifier of these weights (z,); charged once.

        BudgetExhausted where it was charged before, and may not be charged anew (`Sum.charged_before`).
        """
        plan, refusal = self._context.plan, self._kind.charged_before
        if refusal and any(entry.round == round_ for entry in self._ledger.entries()):
            raise BudgetExhausted(refusal.format(round=round_))
        total = self._kind.at(plan.task, round_, theta)
        attempt, parts = self._collected(total, round_)
        bounded = total.bounded(parts, plan, round_, attempt)
        multiplier = total.budget(plan.delta, plan.shares).multiplier
        released = release(bounded, replace(plan, multiplier=multiplier), self._ledger)
        clients = [int(client) for part in parts for client in part.site.clients[part.included]]
        self.records = total.records(self._context.sites, clients)
        return Outcome(released.value.reshape(-1), released.sigma, released.spent, attempt, len(clients))

    def _collected(self, total: Sum, round_: int) -> tuple[int, list[SiteSums]]:
        """The attempt, and the sums of all sites that answered as they may, in client order."""
        for attempt, present in self._collector.attempts(round_):
            members = [presence for presence in present if presence.count]
            terms = [Terms.of(total.task, S=len(presence.here), **total.sizes) for presence in members]
            flags = [torch.from_numpy(presence.here.astype(np.int64)) for presence in members]
            requests = [self._exchange.down(round=round_, attempt=attempt, asked=flag, **total.sent) for flag in flags]
            collected: dict[int, SiteSums] = {}

            def wrong(presence: Present, answer: ExactSums, collected: dict[int, SiteSums] = collected) -> str | None:
                if (included := who_is_in(presence, answer)) is None:
                    return "unreadable answer: its lost clients are none of its clients"
                if (why := total.fault(answer.steps, total.counted(presence.site)[included].sum(axis=0))) is None:
                    collected[presence.site.node] = SiteSums(presence.site, answer.steps, included)
                return why

            self._collector.ask(self._exchange, members, requests, terms, wrong)
            if sum(int(sums.included.sum()) for sums in collected.values()) >= self._collector.least:
                return attempt, [sums for sums in collected.values() if bool(sums.included.any())]
        raise self._collector.gave_up(round_)


class LocalSums(LocalMethod):
    """Every client sends a sum that it has noised itself, once; those that came are added up.

    The clients' sums are stored, "noised" with "sigma"; a client with a stored sum is not asked again, and one
    without a record that is in the sum is not asked at all.
    """

    def __init__(self, context: Context, exchange: AnyExchange, kind: type[Sum]) -> None:
        super().__init__(context)
        self._exchanged, self._kind, self.grows = exchange, kind, kind.late
        self._last = kind.rounds(self._task.experiment)[0]
        self.records: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def __enter__(self) -> Self:
        super().__enter__()
        for round_ in self._kind.rounds(self._task.experiment):
            self._rounds |= self._stored(round_).rounds()
        return self

    @property
    def records_by_client(self) -> Mapping[int, int]:
        """Records of every client that sent its sum of the last round."""
        released = self._stored(self._last).clients
        return {member.client: sum(member.sizes) for member in self._members if member.client in released}

    def _stored(self, round_: int) -> Releases:
        """Stored releases of clients, of a round."""
        if not (folder := self._kind.folder(round_)):
            return self._context.releases
        assert self._context.stored is not None
        return Releases(self._context.stored / folder)

    def _attempt(self, round_: int, attempt: int, theta: Tensor, members: Sequence[Member]) -> Outcome:
        total, releases = self._kind.at(self._task, round_, theta), self._stored(round_)
        self._last = round_
        assert self._context.stored is not None
        self._context.stored.mkdir(exist_ok=True, mode=PRIVATE_FOLDER)
        members = [member for member in members if total.counted(self._of_node[member.node])[member.position].any()]
        request = self._exchanged.down(round=round_, attempt=attempt, records=self._plan.records, **total.sent)
        terms = Terms.of(self._task, **total.sizes)

        def arrays(answer: Noised) -> Mapping[str, Tensor]:
            return {"noised": answer.values, "sigma": torch.tensor(answer.sigma, dtype=torch.float64)}

        self._collect(
            *(self._exchanged, round_, members, request, lambda member: terms, arrays, releases),
            late=self._kind.late or self._kind.any_number,
            least=0 if self._kind.any_number else self._least,
        )
        if not (stored := releases.read()):
            none = f"no client released anything of its {self._kind.called}"
            raise FederationError(f"{none}. {describe(self._lost)}", recorded=none)
        value = torch.stack([own_sum["noised"] for own_sum in stored]).sum(dim=0)
        sigma = math.hypot(*(float(own_sum["sigma"]) for own_sum in stored))
        self.records = total.records(self._sites, releases.clients)
        return Outcome(value.reshape(-1), sigma, self.epsilon(), attempt, len(releases.clients))


def _released(counted: Any, what: str, settings: str) -> Any:
    """Return what a run counts of its records; RuntimeError if these settings release nothing of the kind."""
    if counted is None:
        raise RuntimeError(f"{what} were asked for, and this node agreed to a run that releases none ({settings})")
    return counted


class MomentSum(Sum):
    """The moments of all records, by cell, in a run that releases them."""

    part, called, purpose, step = PART, "moments", "moment", MOMENT_STEP
    _counts: Layout

    def __init__(self, task: Problem) -> None:
        super().__init__(task)
        self._counts = _released(moments_layout(task), "moments", "privacy.moments")

    @classmethod
    def at(cls, task: Problem, round_: int, weights: Tensor) -> Self:
        """See `Sum`."""
        return cls(task)

    @property
    def shape(self) -> tuple[int, int]:
        """See `Sum`."""
        return self._counts.cells, self._counts.width

    def steps(self, node: Node, positions: Sequence[int], stream: Stream) -> Tensor:
        """See `Sum`; (blocks, width)."""
        return sums_of(node.task, self._counts, records_of(node, positions, stream))

    def most(self, records: int) -> float:
        """See `Sum`."""
        return SLACK * records

    def fault(self, steps: Tensor, records: NDArray[np.int64]) -> str | None:
        """See `Sum`; steps (blocks, width), records of every cell, (c,)."""
        records = records if self._counts.cells > 1 else records.sum(keepdims=True)
        return None if self._counts.fits(steps, torch.from_numpy(records)) else "its moments are none of its records"


class HistogramSum(Sum):
    """Counts of all records by public parts of every column of numbers; RuntimeError in a run that releases none."""

    part, called, purpose, step, stored = HISTOGRAMS_PART, "histograms", "histogram", 1.0, "histograms"
    _counts: ColumnCounts

    def __init__(self, task: Problem) -> None:
        super().__init__(task)
        self._counts = _released(histograms_of(task), "histograms of columns", "privacy.histograms")

    @classmethod
    def at(cls, task: Problem, round_: int, weights: Tensor) -> Self:
        """See `Sum`."""
        return cls(task)

    @property
    def shape(self) -> tuple[int, int]:
        """See `Sum`: columns, and parts of the widest."""
        return len(self._counts.columns), self._counts.width

    def steps(self, node: Node, positions: Sequence[int], stream: Stream) -> Tensor:
        """See `Sum`; (columns, width)."""
        records = node.records.take(rows_in(node, positions, stream))  # as they are, before any code of columns
        return self._counts.counted(records.features)

    def most(self, records: int) -> float:
        """See `Sum`."""
        return float(records)

    def fault(self, steps: Tensor, records: NDArray[np.int64]) -> str | None:
        """See `Sum`; steps (columns, width), records of every cell, (c,)."""
        return None if self._counts.fits(steps, int(records.sum())) else "its counts are none of its records"


class ScoreSum(Sum):
    """Counts of all records by group, class and score, under the released model `theta` (r,).

    It is the model for features as they are. RuntimeError in a run that releases none.
    """

    part, called, purpose, step, weights, stored = SCORES_PART, "scores", "scores", 1.0, "theta", "scores"
    charged_before = "scores were counted and charged once, and are not on file: they are not released again"
    _counts: ScoreCounts

    def __init__(self, task: Problem, theta: Tensor) -> None:
        super().__init__(task)
        self._counts = _released(scores_of(task), "counts of scores", "calibration.share, thresholds.share")
        self._theta = theta

    @classmethod
    def at(cls, task: Problem, round_: int, weights: Tensor) -> Self:
        """See `Sum`."""
        return cls(task, weights)

    @property
    def sent(self) -> Mapping[str, Broadcast]:
        """See `Sum`."""
        return {"theta": Broadcast.of(self._theta, Terms.of(self.task))}

    @property
    def known(self) -> Mapping[str, bytes]:  # type: ignore[override]
        """See `Sum`."""
        return {"model": self._theta.numpy().tobytes()}

    @property
    def shape(self) -> tuple[int, int]:
        """See `Sum`."""
        return self._counts.groups, self._counts.width

    def steps(self, node: Node, positions: Sequence[int], stream: Stream) -> Tensor:
        """See `Sum`; (groups, width)."""
        plain = node.under(node.task.unprepared())  # which prepares no records either that were coded once
        model = plain.task.prepared(plain.model, self._theta)
        return counts_of_scores(plain.task, self._counts, records_of(plain, positions, stream), model)

    def most(self, records: int) -> float:
        """See `Sum`."""
        return float(records)

    def fault(self, steps: Tensor, records: NDArray[np.int64]) -> str | None:
        """See `Sum`; steps (groups, width), records (groups,)."""
        return None if self._counts.fits(steps, torch.from_numpy(records)) else "its counts are none of its records"

    def counted(self, site: Site) -> NDArray[np.int64]:
        """See `Sum`: by group, or of all together, (S, groups); strata are groups, or classes of them.

        Where nothing is compared all groups are one stratum, (S, 1).
        """
        groups = min(self._counts.groups, len(self.task.objective.cells))
        by_group: NDArray[np.int64] = site.sizes.reshape(len(site.sizes), -1, groups).sum(axis=1)
        return by_group


_MOST_KEPT = 2.0**28
"""Records that a site keeps out of training, at most; how many they are is not in a cohort."""


class TallySum(Sum):
    """Sums over the records that were kept out of training, by group, under the released model `theta` (r,).

    It is the model for features as they are: kept records go through no preparation. Numbers to predict are cut, where
    the server says (`fedsw.learning.tasks.tally.Cut`). RuntimeError in a run that releases nothing of them.

    Guarantee: `fedsw.learning.tasks.tally`, for the replacement of one kept record, whatever the model and the cut are.
    """

    part, called, purpose, step, weights = TALLY_PART, "kept records", "tally", TALLY_STEP, "theta"
    stored, any_number = "tally", True

    def __init__(self, task: Problem, theta: Tensor, cut: Cut | None = None) -> None:
        super().__init__(task)
        tally: Tally = _released(tally_of(task), "sums over kept records", "data.held_out_to")
        if isinstance(tally, RegressionSums):
            tally = dataclasses.replace(tally, cut=cut)
        self._tally, self._theta = tally, theta

    @classmethod
    def asked(cls, task: Problem, request: Any) -> Self:
        """See `Sum`."""
        return cls(task, request.theta.tensor(), None if request.cut is None else Cut.of_flat(request.cut.tensor()))

    @classmethod
    def at(cls, task: Problem, round_: int, weights: Tensor) -> Self:
        """See `Sum`; behind the model the weights have the cut of numbers to predict, if any (`Cut.flat`)."""
        theta, cut = weights[: task.parameters], weights[task.parameters :]
        return cls(task, theta, Cut.of_flat(cut) if len(cut) else None)

    @property
    def sent(self) -> Mapping[str, Any]:
        """See `Sum`."""
        terms, cut = Terms.of(self.task), self._cut
        return {
            "theta": Broadcast.of(self._theta, terms),
            "cut": None if cut is None else Broadcast.exact(cut),
        }

    @property
    def _cut(self) -> Tensor | None:
        return self._tally.cut_at.flat() if isinstance(self._tally, RegressionSums) else None

    @property
    def known(self) -> Mapping[str, bytes]:  # type: ignore[override]
        """See `Sum`."""
        cut = self._cut
        return {"model": self._theta.numpy().tobytes()} | ({} if cut is None else {"cut": cut.numpy().tobytes()})

    @property
    def shape(self) -> tuple[int, int]:
        """See `Sum`."""
        return self._tally.groups, self._tally.width

    def steps(self, node: Node, positions: Sequence[int], stream: Stream) -> Tensor:
        """See `Sum`; (blocks, width)."""
        held_out = node.held_out
        assert held_out is not None
        records = records_of(held_out, positions, stream)
        model = held_out.task.prepared(held_out.model, self._theta)  # of records as they are: the node's may be mapped
        return tally_of_records(held_out.task, self._tally, records, model)

    def budget(self, delta: float, shared: Callable[[], Shares], attempts: int = 1) -> HeldOutBudget:
        """See `Sum`."""
        return held_out_budget(self.task.experiment, self._tally, shared().epsilon, delta, attempts)

    def most(self, records: int) -> float:
        """See `Sum`."""
        return _MOST_KEPT

    def fault(self, steps: Tensor, records: NDArray[np.int64]) -> str | None:
        """See `Sum`; steps (blocks, width), records (blocks,)."""
        if self._tally.fits(steps, torch.from_numpy(records)):
            return None
        return f"its sums are none of {int(records.sum())} kept records"

    def counted(self, site: Site) -> NDArray[np.int64]:
        """See `Sum`."""
        assert site.held_out is not None
        return site.held_out

    def records(self, sites: Sequence[Site], clients: Collection[int]) -> NDArray[np.int64]:
        """See `Sum`; the declared number is that of kept ones."""
        declared = self.task.experiment.declared
        return super().records(sites, clients) if declared is None else np.array([declared[1]])
