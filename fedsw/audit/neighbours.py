"""The worst neighbours that are known of an experiment's own bound: records and a model that realise them."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fedsw._tools import files
from fedsw.data import Records
from fedsw.data.sources import Shape
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sections import Model
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import InProcessGrid, node_configs
from fedsw.federation.exchange.availability import Availability, ReportedEpsilons
from fedsw.federation.exchange.exchange import Traffic
from fedsw.federation.exchange.participants import gather, whole
from fedsw.federation.node import replies
from fedsw.federation.node.held_records import Held
from fedsw.federation.node.node import Node, batch_key
from fedsw.federation.node.replies import join
from fedsw.federation.node.simulated import simulating
from fedsw.federation.server.settling import settled_among
from fedsw.federation.trust.budget_shares import idle
from fedsw.federation.trust.central import rounds as central
from fedsw.federation.trust.central.rounds import Rounds
from fedsw.federation.trust.context import Context
from fedsw.federation.trust.round_plan import FederationPlan, draw
from fedsw.learning.models import flatten
from fedsw.learning.models.coded import Centred, Coding, Hats
from fedsw.learning.moments import beside_rounds
from fedsw.learning.moments.preparation import Preparation
from fedsw.learning.tasks import own_task as own
from fedsw.learning.tasks import problem as problems
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import Tally
from fedsw.learning.tasks.task import Inputs, Raw, Task, part
from fedsw.mathematics.clipping.rules import Worst, worst_of
from fedsw.privacy.accounting import Ledger
from fedsw.privacy.release import Released
from fedsw.runs.directory import RunDirectory
from fedsw.runs.run_files import RunFile

WIDTH = 4
"""Parameters of the free layer: one would do for the bound; more of them see noise that misses a coordinate."""

_PULL, _PUSH, _UNIT, _FIRST = 0, 1, 2, 3  # columns of a record: the rest are its output and its Jacobian's direction
_JUST_BELOW = 1 - 1e-3


def free_layer() -> Worst:
    """A linear layer of a few parameters, in place of a model's own: a bound asks nothing of them."""
    layer = nn.Linear(WIDTH, 1, bias=False)
    nn.init.zeros_(layer.weight)
    return Worst(layer, torch.ones(1, WIDTH), "a linear layer")


class Freely(nn.Module):
    """A model that lets records choose outputs, Jacobians and loss gradients, as a bound lets them.

    With u and w in R^d, a pull and a push from the record, and l the sum of what a layer makes of its worst input, over
    the length of its gradient and less its value, the output is u + pull l w, and one coordinate of what is returned
    for the loss is 1 + pull push l, everything else being constant: l is 0, all gradients lie along that of l, and
    every clip binds, if the layer's rule measures it.

    Records that were ``scaled`` to a length have a 1 among their numbers, by which they are brought back.
    """

    input: Tensor
    layer: nn.Module

    def __init__(self, dimension: int, worst: Worst, *, scaled: bool = False) -> None:
        super().__init__()
        self._dimension, self._scaled = dimension, scaled
        self.layer = copy.deepcopy(worst.module)
        self.register_buffer("input", worst.input, persistent=False)
        trained = [parameter for parameter in self.layer.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(self.layer(worst.input).sum(), trained, allow_unused=True)
        lengths = [float(torch.linalg.vector_norm(gradient.double())) for gradient in gradients if gradient is not None]
        self._length = math.hypot(*lengths)

    def forward(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (n, d) and what the loss compares with the records, (n, p), of records (n, p)."""
        d, rows = self._dimension, records
        if self._scaled:
            unit = records[:, _UNIT : _UNIT + 1]
            rows = records / torch.where(unit > 0, unit, 1.0)
        made = self.layer(self.input.repeat(len(records), *[1] * (self.input.dim() - 1))).flatten(1)
        total = made.sum(1, keepdim=True)
        lever = rows[:, _PULL : _PULL + 1] * (total - total.detach()) / self._length
        outputs = rows[:, _FIRST : _FIRST + d] + lever * rows[:, _FIRST + d : _FIRST + 2 * d]
        compared = 1.0 + lever * rows[:, _PUSH : _PUSH + 1]
        return outputs, F.pad(compared, (_UNIT, records.shape[1] - _UNIT - 1))


class ComparedFreely(Task):
    """A task that compares groups, with the free model's outputs and squared errors in place of its own head and loss.

    A head has a slope of its own, which the bound does not know: outputs are what records say.
    """

    def __init__(self, genuine: Task) -> None:
        self.facts = genuine.facts
        self._genuine = genuine

    def dimension(self, shape: Shape, model: Model) -> int:
        """The genuine task's."""
        return self._genuine.dimension(shape, model)

    def tally(self, shape: Shape) -> Tally | None:
        """The genuine task's."""
        return self._genuine.tally(shape)

    def outputs(self, raw: Raw, batch: Inputs) -> Tensor:
        """The free model's outputs (n, d) as they are."""
        return part(raw, "outputs", 0)

    def loss(self, raw: Raw, batch: Inputs) -> Tensor:
        """Squared distance (n,) of what it returns for the loss to the records."""
        return (part(raw, "compared", 1) - batch.features).square().sum(dim=-1)


@dataclass(frozen=True)
class Neighbours:
    """Two data sets that differ in one record, or all records of one unit, and nothing else that a sum could tell.

    Every record of the canary's cell is the same but the canary: who else is drawn makes no difference, and where the
    canary is not drawn the two release the same law. Groups and labels stay those of the experiment's records. The
    canary's Jacobian is ``turned`` round, or its output is at the other pole; `canary_rows` says which. Where a record
    is ``added``, the others' loss gradients are 0, and the canary's is as long as its clip, or it is not there.
    """

    cell: int
    client: int
    why: str
    turned: bool = True
    added: bool = False
    held_out: ClassVar[bool] = False

    def records(self, task: Problem, genuine: Records, client: int, *, canary: bool) -> Records:
        """A client's records with features of the worst case; `canary` says in which of the two data sets."""
        features = genuine.features.new_zeros((len(genuine), task.features))
        strength = 1e4 * max(task.clip.jacobian, task.clip.loss * task.features, 1.0)
        m, present = task.clip.output, np.ones(len(genuine), dtype=bool)
        for cell, rows in enumerate(task.cells_of(genuine)):
            canarys = cell == self.cell
            features[rows] = _row(task, strength, m if canarys else -m, jacobian=-1.0, loss=0.0 if self.added else -1.0)
            if canarys and canary and client == self.client:
                # Just below: against a sample that spreads, the canary alone then sees its lowest slot everywhere.
                at = m if task.objective.other_side is None else m * _JUST_BELOW
                at, jacobian = (at, 1.0) if self.turned else (-at, -1.0)
                features[canary_rows(genuine, rows)] = _row(task, strength, at, jacobian=jacobian, loss=1.0)
            elif canarys and self.added and client == self.client:
                present[canary_rows(genuine, rows)] = False
        if task.coding is not None:  # the numbers that the model takes are the worst case
            features = torch.from_numpy(task.coding.inputs(features.double().numpy())).to(features)
        records = Records(features, genuine.sensitive, genuine.target, genuine.ids, unit=genuine.unit)
        return records if bool(present.all()) else records.take(present)


def canary_rows(records: Records, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """All rows of the unit that has most of these (k,), of two the smaller identifier's; the first of them without."""
    if records.unit is None:
        return rows[:1]
    unit = records.unit.numpy()
    names, counts = np.unique(unit[rows], return_counts=True)
    return np.flatnonzero(unit == names[counts.argmax()])


def worst_neighbours(task: Problem, cell: int, client: int, *, tables: bool = False) -> Neighbours:
    """The pair that attains the slice-wise bound for outputs in one dimension, and the best known elsewhere.

    Where ranks come from ``tables`` of the attacker's, the canary's output is in another bin, and is pulled away.
    ExperimentError for records with fewer features than the worst case is written in.

    Source: docs/guarantees/sensitivity.md, Theorem 5.
    """
    needed = _FIRST + 2 * task.dimension
    if task.shape.features < needed:
        raise ExperimentError(
            f"records have {task.shape.features} features; the worst case for outputs in {task.dimension} dimensions "
            f"is written in {needed}"
        )
    if task.experiment.privacy.hides_sizes:
        return Neighbours(cell, client, "a record with a loss gradient as long as its clip, there or not", added=True)
    if not (task.objective.alpha or task.objective.other_side):
        return Neighbours(
            cell, client, "loss gradients as long as their clip along one direction, the canary's turned round"
        )
    if tables:
        why = "the canary's group at M, the canary at -M, a table that pulls each to the other side"
        return Neighbours(cell, client, f"{why}; loss gradients along the same direction", turned=False)
    if task.objective.other_side is not None:
        why = "all codes at one pole of the ball, the canary's a little below and its Jacobian turned round"
    else:
        why = "the canary's group at M, the others at -M, the canary's Jacobian turned round"
    return Neighbours(cell, client, f"{why}; loss gradients along the same direction")


class Pair(Protocol):
    """Two data sets that differ in one record, or one unit, of one client; why they are worst, and its records."""

    @property
    def client(self) -> int:
        """Who holds it."""

    @property
    def why(self) -> str:
        """Say in words what is worst about them."""

    @property
    def held_out(self) -> bool:
        """True if it is among the records that are kept out of training."""

    def records(self, task: Problem, genuine: Records, client: int, *, canary: bool) -> Records:
        """A client's records; `canary` says in which of the two data sets."""


@contextmanager
def holding(neighbours: Pair | None, *, canary: bool = False) -> Iterator[None]:
    """Let clients that join now hold the neighbours' records; all else is the experiment's own."""

    def held(task: Problem, node_config: Mapping[str, Any]) -> Held:
        genuine: Held = genuinely(task, node_config)
        if neighbours is None:
            return genuine
        records = neighbours.records(task, genuine.records, int(genuine.clients[0]), canary=canary)
        return dataclasses.replace(genuine, records=records, owner=genuine.owner[: len(records)])  # of one client

    name = "held_out_records" if neighbours is not None and neighbours.held_out else "held_records"
    genuinely = getattr(replies, name)  # one of the two that a node is made of
    with exchanged(replies, name, held):
        yield


def in_front(experiment: Experiment, coding: Coding | None) -> Coding | None:
    """The map in front of the free model, with numbers that records can choose: the experiment's own, or none for hats.

    Of hats two a column are not 0: what reads them is attacked by its rule's own neighbours. ExperimentError for any
    other map, named.
    """
    if isinstance(coding, Hats):
        return None
    if coding is None or isinstance(coding, Centred):
        return coding
    raise ExperimentError(
        f"model.kind {experiment.model.kind!r} sees records through {type(coding).__name__}, and --canary knows no "
        "worst case behind it: attack the same settings with model.kind 'logistic': its clips and release are the "
        "same"
    )


@contextmanager
def staged(worst: Worst) -> Iterator[None]:
    """Let problems have the free model without a head, by a layer's worst input.

    The server does not weigh contributions here: a clip that is missing is to end in a verdict, not in a refusal.
    """

    coding_of = getattr(problems, "coding_of")  # noqa: B009, its module is private to its room

    def build(experiment: Experiment, shape: Shape, outputs: int) -> nn.Module:
        return Freely(outputs, worst, scaled=experiment.data.row_norm is not None)

    def task_of(experiment: Experiment) -> Task:
        genuine = own.task_of(experiment)
        return ComparedFreely(genuine) if genuine.facts.grouped else genuine

    Problem.from_json.cache_clear()  # a task is remembered by its experiment, whatever its model
    try:
        with (
            exchanged(problems, "of_shape", build),
            exchanged(problems, "task_of", task_of),
            exchanged(problems, "coding_of", lambda experiment: in_front(experiment, coding_of(experiment))),
            exchanged(Problem, "most_pulled", lambda *contribution: math.inf),
            # what the experiment releases before and after its rounds was found to fit its own model
            exchanged(beside_rounds, "foldable", lambda model, features: True),
            exchanged(beside_rounds, "uncalibrated", lambda problem: ""),
        ):
            yield
    finally:
        Problem.from_json.cache_clear()


def _row(task: Problem, strength: float, along: float, *, jacobian: float, loss: float) -> Tensor:
    """A record with output `along` the first axis, about the centre, and the sides that its gradients go to."""
    row, d = torch.zeros(task.features), task.dimension
    row[_PULL], row[_PUSH] = strength, loss
    row[_UNIT] = 0.0 if task.experiment.data.row_norm is None else 1.0
    row[_FIRST : _FIRST + d] = task.experiment.clip.centre
    row[_FIRST] += along
    row[_FIRST + d] = jacobian
    return row


@contextmanager
def exchanged(owner: ModuleType | type, name: str, value: object) -> Iterator[None]:
    """Let a name of a module or a class stand for something else meanwhile."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@dataclass(frozen=True)
class View:
    """An attacker's view of one release, flat: the exact value, what left of it, and the scale of its noise.

    ``again`` releases the same value ``count`` times more, at some of its coordinates (p,): (count, p).
    """

    exact: Tensor
    held: Tensor
    scale: float
    again: Callable[[Tensor, int], NDArray[np.float64]]

    @classmethod
    def through(cls, door: Callable[[Tensor], Released], exact: Tensor, held: Tensor, scale: float) -> View:
        """The view of what a door released, which takes numbers (n,).

        Noise is drawn by coordinate, so one release of a vector that holds the value many times over has the same law.
        """

        def again(places: Tensor, count: int) -> NDArray[np.float64]:
            released = door(exact[places].repeat(count)).value
            return torch.as_tensor(released).reshape(count, len(places)).numpy()

        return cls(exact, held.reshape(-1), scale, again)


class Trial:
    """One data set behind the real apps, at the initial model: ServerApp and ClientApp, messages, throw-away ledgers.

    A context manager. The experiment has no seed. Without neighbours clients hold its own records, and the model is its
    own, to learn what is settled, sizes and plan; otherwise the model is free, by a layer's ``worst`` input. The
    ``victim`` is the client with the canary. ``trials`` is how often each neighbour is released by default, at most so
    many times ``singly``.
    """

    trials: int
    singly: ClassVar[int] = 500

    def __init__(
        self,
        experiment: Experiment,
        neighbours: Pair | None,
        folder: Path,
        *,
        canary: bool,
        worst: Worst | None = None,
    ) -> None:
        self.folder, self.victim = folder, neighbours.client if neighbours else 0
        self._stage = contextlib.ExitStack()
        if neighbours is not None:
            self._stage.enter_context(self.staged(worst or free_layer()))
        files.new_folder(folder.parent)
        folder.mkdir(mode=files.PRIVATE_FOLDER)
        clients = experiment.federation.clients
        experiment = experiment.with_sections(federation={"sites": clients})
        self._configs = node_configs(clients, folder)
        self._grid = InProcessGrid(client_app, self._configs)
        self._name = RunDirectory(folder).name()
        try:
            with holding(neighbours, canary=canary):
                traffic = Traffic()
                experiment = settled_among(self._grid, experiment, self._name, traffic)
                self.task = Problem.from_experiment(experiment)
                self.sites, _ = gather(self._grid, self.task, self._name, traffic)
                self.plan: FederationPlan = experiment.privacy.model.plan(self.task, self.sites)
                if neighbours is not None and experiment.privacy.moments:  # released before: of all maps, none
                    count = self.task.features
                    nothing = Preparation(torch.zeros(count).double(), torch.eye(count).double(), 1.0)
                    self.plan = self.plan.under(nothing)
                self.theta = flatten(self.task.build_model())
                availability = Availability(self._grid, self.task, self.sites, self._name, traffic, ReportedEpsilons())
                self._attempts = Counter[int]()
                self.context = Context(self._grid, self.plan, self.sites, availability, traffic, self.begin)
        except BaseException:
            Trial.__exit__(self)
            raise

    @property
    def steps(self) -> int:
        """As many rounds as the noise is for."""
        return self.task.experiment.training.rounds

    @property
    def sigma(self) -> float:
        """The noise's standard deviation by the plan."""
        return self.plan.multiplier * max(bound.value for bound in self.plan.sensitivities)

    def staged(self, worst: Worst) -> AbstractContextManager[None]:
        """Stage what differs from the experiment's own as long as neighbours are attacked."""
        return staged(worst)

    def enough(self, mu: float, numbers: int, confidence: float) -> int:
        """How often each neighbour is released, where the canary moves ``numbers`` of a release and all of it by mu."""
        return self.trials

    def worst(self, cell: int) -> Pair:
        """The worst neighbours of a cell; see `worst_neighbours`."""
        return worst_neighbours(self.task, cell, self.holder(cell))

    def layers(self) -> list[Worst]:
        """The worst neighbours of the layers of the experiment's own model, as holders of records have it.

        ExperimentError, naming it, for a layer without, or a map of inputs behind which nothing is known.
        """
        experiment = self.task.experiment
        in_front(experiment, self.task.coding)
        try:
            return worst_of(self.task.of_holder().build_model())
        except ValueError as fault:
            raise ExperimentError(f"model.kind {experiment.model.kind!r}: {fault}") from None

    def rounds(self, most: int) -> Sequence[int]:
        """Numbers of the real rounds to make, at most ``most``: only those planned, where clients have budgets."""
        return range(1, min(most, self.steps) + 1)

    def views(self, round_: int) -> Sequence[View]:
        """Views of one real round, at a fresh attempt."""
        raise NotImplementedError

    def holder(self, cell: int) -> int:
        """The client with most records of a cell."""
        return int(max(self.sites, key=lambda site: int(site.sizes[0, cell])).clients[0])

    def times_drawn(self, cell: int, client: int, trials: int) -> int:
        """In how many of the ``trials``, drawn by server and client, that client's canary is in the batch."""
        index = [int(site.clients[0]) for site in self.sites].index(client)
        node = self.node(client)
        canary = node.records.ids[canary_rows(node.records, self.task.cells_of(node.records)[cell])]
        drawn = 0
        for trial in range(trials):
            records = node.draw(batch_key(self.task, 1, trial), self.counts(index, trial))
            drawn += int(torch.isin(records.ids, canary).any())
        return drawn

    def counts(self, index: int, trial: int) -> NDArray[np.int64]:
        """How many records a site draws of each of its clients and cells in a trial, (S, c)."""
        return draw(self.plan, whole(self.sites), round_=1, attempt=trial).counts[index]

    def begin(self, round_: int) -> int:
        """A fresh attempt of a round."""
        self._attempts[round_] += 1
        return self._attempts[round_]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if "ledger" in vars(self):
            with contextlib.suppress(OSError):
                self.ledger.close()
        self._grid.close()
        self._stage.close()

    @cached_property
    def ledger(self) -> Ledger:
        """A new ledger of the server's, without a limit."""
        return Ledger.create(
            self.folder / RunFile.LEDGER,
            groups=(*self.plan.strata, *(charge.group for charge in idle(self.task.experiment))),
            delta=self.plan.delta,
            epsilon=math.inf,
            accountant=self.plan.accountant,
            mechanism=self.plan.mechanism,
            relation=self.plan.relation,
            nominal=self.plan.nominal,
        )

    def node(self, client: int) -> Node:
        """The client's node, as its first message made it."""
        settings = self.task.experiment.model_dump_json()
        with simulating():
            return join(settings, self._name, self._grid.run_id, self._configs[client])


class TrialRun(Trial):
    """A `Trial` of trust `central`, where the server has the ledger and adds the noise."""

    trials = 10_000_000

    @cached_property
    def _rounds(self) -> Rounds:
        return Rounds(self.context)

    def rounds(self, most: int) -> Sequence[int]:
        """As often as need be, from the first one again after the last."""
        return [number % self.steps + 1 for number in range(most)]

    def views(self, round_: int) -> list[View]:
        """The sum of both exchanges, and its release by the server's code, every call charged."""
        aggregate = self._rounds.run(round_, self.theta)

        def door(numbers: Tensor) -> Released:
            fresh = dataclasses.replace(aggregate, vector=numbers, attempt=self.begin(round_))
            return central.release(fresh, self.plan, self.ledger)

        sent = door(aggregate.vector)
        return [View.through(door, aggregate.vector, sent.value, sent.sigma)]
