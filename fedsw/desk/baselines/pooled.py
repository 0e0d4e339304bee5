"""Baselines on pooled records: what is asked of each, and DP-SGD by Opacus, which is imported when it is used."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fedsw.data import Records
from fedsw.desk.baselines.penalised import Scored, contrasts, squared
from fedsw.learning import models
from fedsw.learning.tasks.problem import Problem

MISSING = (
    "it trains with Opacus, which is not installed: `pip install '.[compare]'` in fedsw's checkout (or "
    "`pip install opacus`); fedsw's own methods need nothing more"
)


def installed() -> bool:
    """Say whether Opacus can be imported."""
    return importlib.util.find_spec("opacus") is not None


def load(module: str = "opacus") -> Any:
    """A module of Opacus; without it, the error has the remedy."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as fault:
        raise ModuleNotFoundError(f"a baseline cannot run: {MISSING}") from fault


class Rows(TensorDataset):
    """Records as tensors with the same first dimension; a batch is taken in one piece."""

    def __getitems__(self, rows: Sequence[int]) -> tuple[Tensor, ...]:
        """The rows (b,) of every tensor; b = 0 gives empty ones."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        return tuple(tensor[index] for tensor in self.tensors)


def poisson(rows: Rows, fraction: float, generator: torch.Generator) -> DataLoader[Any]:
    """Return a loader that Opacus turns into Poisson batches at the rate 1/m, m the whole number nearest 1/fraction."""
    batches = max(1, round(1 / fraction))
    size = math.ceil(len(rows) / batches)
    return DataLoader(rows, batch_size=size, generator=generator, collate_fn=lambda batch: batch)


@functools.lru_cache(maxsize=256)
def calibrated(epsilon: float, delta: float, rate: float, steps: int, accountant: str) -> float:
    """Opacus' noise multiplier for (epsilon, delta) over `steps` Poisson batches at that rate; 0 for epsilon = inf.

    Guarantee: for adding or removing one record, by Opacus' accountant; standard deviation over the clip.
    """
    if math.isinf(epsilon):
        return 0.0
    with quiet():
        multiplier = load("opacus.accountants.utils").get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=steps, accountant=accountant
        )
    return float(multiplier)


@dataclass(frozen=True)
class Private:
    """A model that Opacus trains, with its accountant, and the deviation of the noise over the clip."""

    module: Any
    optimizer: Any
    loader: Any
    engine: Any
    multiplier: float

    def epsilon(self, delta: float) -> float:
        """Return epsilon of the steps so far by Opacus' accountant; infinite without noise."""
        if self.multiplier == 0:
            return math.inf
        with quiet():
            return float(self.engine.get_epsilon(delta))

    def step(self, losses: Tensor) -> None:
        """A step along the clipped and noised gradient of the losses (b,) of one batch's records; b may be 0."""
        losses.mean().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()

    def batches(self, steps: int) -> Iterator[tuple[Tensor, ...]]:
        """So many fresh Poisson batches, each the rows (b, ...) of the tensors; b varies and may be 0."""
        while steps > 0:
            for batch in self.loader:
                if steps == 0:
                    return
                steps -= 1
                yield batch


def made_private(task: BaselineTask, scored: Scored, rows: Rows, accountant: str, *, epochs: bool = False) -> Private:
    """A model under Opacus' PrivacyEngine, with the noise that all rounds need, each a batch or an epoch of the rows.

    Guarantee: (epsilon, delta) of all iterates together for adding or removing one of the rows, if the loss is a mean
    of terms that each depend on one record. The number of records and the rate are public.
    """
    experiment = task.problem.experiment
    loader = poisson(rows, experiment.training.batch_fraction, task.generator())
    steps = experiment.training.rounds * (len(loader) if epochs else 1)
    multiplier = calibrated(task.epsilon, task.delta, 1 / len(loader), steps, accountant)
    with quiet():
        engine = load().PrivacyEngine(accountant=accountant)
        module, optimizer, loader = engine.make_private(
            module=scored,
            optimizer=torch.optim.SGD(list(scored.groups(experiment.training))),
            data_loader=loader,
            noise_multiplier=multiplier,
            max_grad_norm=experiment.clip.loss,
            noise_generator=task.generator(),
        )
    return Private(module, optimizer, loader, engine, multiplier)


@contextmanager
def quiet() -> Iterator[None]:
    """Without Opacus' warnings: what they say of the generator stands in every row."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True)
class BaselineTask:
    """A baseline's task on all clients' private records; epsilon is infinite without noise, seed None for a fresh one.

    Of the problem a baseline reads data, partition, model, objective.alpha, clip.loss (the norm to which a record's
    whole gradient is clipped) and training's rounds, batch_fraction, learning_rate, momentum and averaging. One that
    keeps an account of fedsw's own puts it into the folder.
    """

    problem: Problem
    records: Records
    epsilon: float
    delta: float
    seed: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()

    @functools.cached_property
    def _seeds(self) -> torch.Generator:
        seed = secrets.randbits(63) if self.seed is None else self.seed
        return torch.Generator().manual_seed(seed)

    def generator(self) -> torch.Generator:
        """A fresh generator for sampling or noise; torch's, which is not a secure one."""
        seed = int(torch.randint(2**62, (), generator=self._seeds))
        return torch.Generator().manual_seed(seed)

    @property
    def averaged_after(self) -> int:
        """Iterates beyond this one are averaged."""
        training = self.problem.experiment.training
        return min(training.rounds - 1, math.ceil((1 - training.averaging) * training.rounds))


ADD_REMOVE = "add-remove-one (for replace-one at most (2ε, (1 + e^ε) δ))"
"""Neighbours of DP-SGD: one record more or less. A replacement is one less and one more."""


LIMITS = ("gdp",)
"""Accountants of Opacus that say what many small steps cost in the limit: fewer may cost more."""


@dataclass(frozen=True)
class BaselineGuarantee:
    """Guarantee of a baseline, in the words of a run's summary: who is protected from whom.

    The multiplier is the noise's deviation over the clip, the largest of the clients'; `local` says that every client
    protects its own records, `holds` that epsilon is a bound, `nominal` that sampling or noise is not secure.
    """

    protects: str
    against: str
    public: tuple[str, ...]
    accountant: str
    multiplier: float
    local: bool
    relation: str = ADD_REMOVE
    bound: str = "clip.loss"
    holds: bool = True
    nominal: bool = True
    randomness: str = (
        "sampling and noise come from torch's Mersenne Twister in floating point, not from a secure generator (Opacus' "
        "secure_mode needs torchcsprng)"
    )


def by_opacus(scored: Scored, accountant: str, *, public: str, **stated: Any) -> BaselineGuarantee:
    """The guarantee of a model by Opacus's account of its steps; with a penalty the groups' shares are public, too."""
    known = (public,) if scored.gap is None else (public, "the share of each group")
    holds = accountant not in LIMITS
    return BaselineGuarantee(public=known, accountant=f"opacus {accountant}", holds=holds, **stated)


@dataclass(frozen=True)
class Trained:
    """Result of a baseline: flat parameters (r,), the worst epsilon of all steps, and bytes of all clients.

    Notes are released with the model. Where scores are changed afterwards, `processed` makes fair ones (n,) of scores
    (n,) and groups (n,).
    """

    theta: Tensor
    guarantee: BaselineGuarantee
    epsilon: float
    clients: int
    bytes_up: int
    bytes_down: int
    epsilon_by_client: Mapping[int, float] = field(default_factory=dict)
    notes: Mapping[str, float] = field(default_factory=dict)
    processed: Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[np.float64]] | None = None


Train = Callable[[BaselineTask], Trained]


class Average:
    """The mean of the last iterates: post-processing, free."""

    def __init__(self, after: int) -> None:
        self._after, self._seen, self._kept = after, 0, 0
        self._sum: Tensor | None = None

    def add(self, model: torch.nn.Module) -> None:
        """Count an iterate."""
        self._seen += 1
        if self._seen > self._after:
            theta = models.flatten(model).to(torch.float64)
            self._sum = theta if self._sum is None else self._sum + theta
            self._kept += 1

    @property
    def mean(self) -> Tensor:
        """Flat parameters (r,)."""
        if self._sum is None:
            raise ValueError(f"{self._seen} iterates were counted, and those after number {self._after} are averaged")
        return self._sum / self._kept


def train(task: BaselineTask) -> Trained:
    """One Poisson batch a round; alpha > 0 adds the squared gap of the groups' mean scores.

    Guarantee: (epsilon, delta) of all iterates for adding or removing one record of the pool, against any reader of
    them; the pool's keeper sees every record.
    """
    problem, records = task.problem, task.records
    experiment = problem.experiment
    accountant = str(task.arguments.get("accountant", "prv"))
    scored = Scored(problem)
    rows = Rows(problem.inputs(records), contrasts(problem, records), records.target)
    private = made_private(task, scored, rows, accountant)
    average = Average(task.averaged_after)
    for features, sides, target in private.batches(experiment.training.rounds):
        private.step(squared(scored, private.module(features, sides), target))
        average.add(scored.model)
    return Trained(
        average.mean,
        by_opacus(
            scored,
            accountant,
            protects="each record of every client",
            against="readers of the models; whoever pools the records sees them all",
            public="the number of records",
            multiplier=private.multiplier,
            local=False,
        ),
        epsilon=private.epsilon(task.delta),
        clients=experiment.federation.clients,
        bytes_up=len(records) * (records.features.shape[1] + 2) * 4,
        bytes_down=experiment.federation.clients * models.count_parameters(scored.model) * 4,
        notes=scored.notes,
    )
