"""What is Opacus' own in a baseline: sampling, clipping, noise and accounting. It is imported where it is used."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

MISSING = (
    "it trains with Opacus, which is not installed: `pip install 'fedsw[compare]'` (or `pip install opacus`); "
    "fedsw's own methods need nothing more"
)


def installed() -> bool:
    """Whether Opacus can be imported."""
    return importlib.util.find_spec("opacus") is not None


def load(module: str = "opacus") -> Any:
    """A module of Opacus.

    Raises:
        ModuleNotFoundError: if Opacus is not installed, with the remedy.
    """
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
    """What Opacus turns into Poisson batches at the rate 1/m, with m the whole number that is nearest to 1/fraction."""
    batches = max(1, round(1 / fraction))
    size = math.ceil(len(rows) / batches)
    return DataLoader(rows, batch_size=size, generator=generator, collate_fn=_as_it_is)


@functools.lru_cache(maxsize=256)
def calibrated(epsilon: float, delta: float, rate: float, steps: int, accountant: str) -> float:
    """Opacus' noise multiplier for (epsilon, delta) over `steps` Poisson batches at that rate; 0 for epsilon = inf.

    Guarantee: for adding or removing one record, by Opacus' accountant; standard deviation over the clip.
    """
    if math.isinf(epsilon):
        return 0.0
    with quiet():
        found = load("opacus.accountants.utils").get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=rate, steps=steps, accountant=accountant
        )
    return float(found)


@dataclass(frozen=True)
class Private:
    """A model that Opacus trains.

    Attributes:
        module: gives gradients per record.
        optimizer: clips them, adds noise, divides by the expected batch and steps.
        loader: Poisson batches, `1 / rate` of them an epoch.
        engine: knows the accountant, which counts every step.
        multiplier: standard deviation of the noise over the clip.
    """

    module: Any
    optimizer: Any
    loader: Any
    engine: Any
    multiplier: float

    @property
    def rate(self) -> float:
        """The probability with which a record is in a batch."""
        return 1 / len(self.loader)

    def epsilon(self, delta: float) -> float:
        """What Opacus' accountant says of the steps so far; infinite without noise."""
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


def made_private(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    epsilon: float,
    delta: float,
    steps: int,
    clip: float,
    accountant: str,
    noise: torch.Generator,
) -> Private:
    """A model under Opacus' PrivacyEngine, with the noise that `steps` batches need.

    Guarantee: (epsilon, delta) of all iterates together for adding or removing one record of the loader, if the loss
    is a mean of terms that each depend on one record. The number of records and the rate are public.
    """
    multiplier = calibrated(epsilon, delta, 1 / len(loader), steps, accountant)
    with quiet():
        engine = load().PrivacyEngine(accountant=accountant)
        module, optimizer, loader = engine.make_private(
            module=module,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=multiplier,
            max_grad_norm=clip,
            noise_generator=noise,
        )
    return Private(module, optimizer, loader, engine, multiplier)


@contextmanager
def quiet() -> Iterator[None]:
    """Without Opacus' warnings: what they say of the generator stands in every row."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _as_it_is(batch: Any) -> Any:
    return batch
