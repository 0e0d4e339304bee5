"""`private`: model, optimizer and loader for a loop of Opacus' shape, over `PrivateTrainer`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedsw._tools.settings import whole
from fedsw.data import Records, as_records
from fedsw.learning.objectives import Clip
from fedsw.runs.single.objective import Batch, Objective, PlainLoss
from fedsw.runs.single.trainer import PrivateTrainer
from fedsw.runs.single.training_plan import plan


class _Rounds:
    """The rounds of a trainer, one by one: the drawn batch, until its step."""

    def __init__(self, trainer: PrivateTrainer, records: Records) -> None:
        self.trainer, self._records = trainer, records
        self._steps: Iterator[Batch] | None = None
        self._drawn: Batch | None = None

    def batch(self) -> Batch | None:
        """The batch of the round to come; None after the last."""
        if self._steps is None:
            self._steps = self.trainer.steps(self._records)
            self._drawn = next(self._steps, None)
        return self._drawn

    def step(self) -> None:
        """Charge, release and step along the gradient of the batch."""
        if self._steps is None or self._drawn is None:
            raise ValueError("there is no batch to step along: call step() once for each batch of the loader")
        self._drawn = next(self._steps, None)


class PrivateLoader:
    """The secret batches of a training, an epoch at each iteration.

    It yields the x and y of each batch, which takes one `optimizer.step()`. Anything else that is computed from them
    has no noise: a loss that is printed is not covered by the guarantee.
    """

    def __init__(self, rounds: _Rounds, batches: int, shape: tuple[int, ...]) -> None:
        self._rounds, self._batches, self._shape = rounds, batches, shape

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self._batches):
            if (batch := self._rounds.batch()) is None:
                return
            records = batch.records
            yield records.features.reshape(-1, *self._shape), records.target
            if self._rounds.batch() is batch:
                raise ValueError("a batch was drawn and not stepped along: call optimizer.step() for each")


class PrivateOptimizer:
    """An optimizer that steps along released gradients only; whatever `backward` left in `.grad` is overwritten.

    Attributes:
        optimizer: the one that it was made of, for schedulers.
        epsilon: spent so far.
        guarantee: of all rounds, in words.
        directory: the training's folder, with its ledger.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, rounds: _Rounds) -> None:
        self.optimizer, self._rounds = optimizer, rounds

    @property
    def epsilon(self) -> float:
        """Spent so far, for the delta that was asked for."""
        return self._rounds.trainer.epsilon

    @property
    def guarantee(self) -> str:
        """See `PrivateTrainer.guarantee`."""
        return self._rounds.trainer.guarantee

    @property
    def directory(self) -> Path:
        """See `PrivateTrainer.directory`."""
        return self._rounds.trainer.directory

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's own; its rates may be changed between rounds."""
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget what `backward` left."""
        self.optimizer.zero_grad(set_to_none)

    def step(self) -> None:
        """Charge the batch's round, release its clipped gradient with noise, and step along it; raises as `fit`."""
        self._rounds.step()


def private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    max_grad_norm: float,
    target_epsilon: float,
    target_delta: float | str,
    epochs: int,
    relation: Literal["replace-one", "add-remove"] = "replace-one",
    records: int | None = None,
    random_state: int | None = None,
    directory: Path | str | None = None,
    account: str | Path | None = None,
) -> tuple[nn.Module, PrivateOptimizer, PrivateLoader]:
    """Give a model, an optimizer and a loader for a private loop: epochs, batches, `optimizer.step()`.

    A step minimises the cross-entropy of as many classes as the model has outputs, or the squared error if y has
    floats, whatever loss the loop computes. Batches, noise, ledger and folder are `PrivateTrainer`'s.

    Guarantee: `optimizer.guarantee`, (target_epsilon, target_delta)-differential privacy of all epochs together for
    the replacement of one record, or with `relation` "add-remove" for its addition or removal, as Opacus has it, a
    weaker promise: at the same noise a replacement has a larger epsilon (docs/guarantees/sampling.md).

    Args:
        model: of layers that `fedsw.mathematics.clipping` knows.
        optimizer: of `torch.optim`, over its parameters.
        loader: its data set has a length and items (x, y); of the loader only the size of batches is taken.
        max_grad_norm: C, the l2 norm that gradients of records are clipped to.
        records: with "add-remove" a public number of records, not counted, which sums and epochs are divided by.
        random_state: makes batches and noise reproducible, and epsilon nominal.
        directory, account: as of `PrivateTrainer`.

    Raises:
        ValueError, BadRecords: naming what does not fit; nothing was spent.
    """
    if (relation == "add-remove") != (records is not None):
        raise ValueError(
            "relation 'add-remove' hides the number of records, and divides by a public number: give both, relation "
            "and records=N, or neither"
        )
    x, y = loader.dataset[0]
    x, y = torch.as_tensor(x), torch.as_tensor(y)
    net = model if x.ndim == 1 else nn.Sequential(nn.Unflatten(1, tuple(x.shape)), model)
    task = PlainLoss()
    if y.is_floating_point():
        learnt = as_records(loader.dataset)
        objective = Objective(task, (), classes=0, targets=learnt.target.shape[1], relation=relation)
    else:
        weights = next(model.parameters())
        with torch.no_grad():
            outputs = net(torch.zeros((2, x.numel()), dtype=weights.dtype, device=weights.device)).shape[1]
        learnt = as_records(loader.dataset, classes=range(outputs))
        objective = Objective(task, (), classes=outputs, relation=relation)
    if loader.batch_size is None:
        raise ValueError("the loader has no batch_size; make it with one")
    # The number of batches would show a hidden number of records: an epoch has those of the public number.
    batches = len(loader) if records is None else math.ceil(whole(records, "records", least=1) / loader.batch_size)
    clip = Clip(1.0, 1.0, max_grad_norm)
    settled = plan(
        objective,
        clip,
        sizes=(len(learnt) if records is None else records,),
        rounds=epochs * batches,
        epsilon=target_epsilon,
        delta=target_delta,
        batch_size=min(loader.batch_size, len(learnt)) if records is None else loader.batch_size,
        seed=random_state,
    )
    trainer = PrivateTrainer(net, optimizer, objective, clip, settled, directory=directory, account=account)
    rounds = _Rounds(trainer, learnt)
    return model, PrivateOptimizer(optimizer, rounds), PrivateLoader(rounds, batches, tuple(x.shape))
