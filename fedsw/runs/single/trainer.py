"""A trainer for one machine: the loop that a PyTorch user would write, with checkpoints, resume and the ledger."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsw._tools import files
from fedsw._tools.settings import whole
from fedsw._tools.text import upward
from fedsw.data import Records
from fedsw.data.units import repeats_of_records
from fedsw.learning.models import count_parameters, flatten, load_flat
from fedsw.learning.models.initial import parted
from fedsw.learning.objectives import Clip
from fedsw.learning.tasks.calibration import LogitCalibration, calibration_of
from fedsw.learning.tasks.divergence import Diverged, divergence, stopped_diverged
from fedsw.learning.tasks.own_task import made_up_features
from fedsw.mathematics.clipping import unchanged
from fedsw.privacy.accounting import BudgetExhausted, Ledger
from fedsw.privacy.accounting.lifetime import About, Cost, account_named, require_same
from fedsw.privacy.release import Released, release
from fedsw.runs import checkpoint, recovery, stepping
from fedsw.runs.accounts import Budgeted, kept_account, reserving
from fedsw.runs.directory import RunDirectory
from fedsw.runs.evaluation import group_thresholds
from fedsw.runs.evaluation.group_thresholds import Scores
from fedsw.runs.loop import TrainingLoop
from fedsw.runs.observer import Outcome
from fedsw.runs.run_files import RunFile
from fedsw.runs.single import _begun as begun
from fedsw.runs.single.objective import Batch, Objective, draw_batch
from fedsw.runs.single.training_plan import Plan

Line = dict[str, Any]

_SEEDED = {True: "with a seed (nominal)", False: "without a seed"}
_PARENT = Path("private-training")
"""Where folders of trainings are that were given none."""


def set_gradient(model: nn.Module, released: Released) -> None:
    """Put a released gradient (r,) into `.grad` of the trainable parameters, for any `torch.optim` optimizer.

    Raises:
        ValueError: if it has another number of coordinates than the model has trainable numbers.
    """
    _set_gradient(model, released.value)


def _set_gradient(model: nn.Module, released: Tensor) -> None:
    for parameter, part in parted(model, released):
        parameter.grad = part.to(parameter)


class PrivateTrainer:
    """Trains a model by released gradients only.

    `directory` holds the ledger, checkpoints, later releases, `metrics.jsonl`, and the training's settings. A trainer
    made over such a folder resumes it; only the trainer may step the optimizer and the scheduler. The ledger keeps
    every round that was ever charged, and a round that was charged but is not on file is done again as a fresh attempt,
    and charged again. Another plan, objective, clip, optimizer, scheduler or network is refused by name; a warning
    names settings that cannot be compared. `training.json` has the values that fedsw and torch set in the clear, and
    keyed digests of what a custom task, penalty or model holds; the key is in `keys` beside this machine's accounts.
    Records are not compared: a digest of them would be one more release.

    Args:
        model: any module of trainable layers that `fedsw.mathematics.clipping` knows.
        optimizer: of `torch.optim`, over the model's parameters; weight decay and the like are post-processing.
        objective, clip, plan: what is minimised, the norms, and what was settled for them.
        scheduler: of `torch.optim.lr_scheduler`, made with the optimizer; stepped once a round.
        directory: the training's folder; None for a new one, `private-training/<number>-<time>`, made at first use.
        observer: called after every round with its line of metrics: round, attempt, epsilon, sigma. Releasable.
        account: the data set of the account that the training counts in: its name, or the `Path` of the file. None for
            no account: the training is then not composed with other releases of the same records.

    Attributes:
        calibration: after `fit`, if the plan has a share for it: maps the logits of the model to those of calibrated
            probabilities, `trainer.calibration.logits(model(features))`. The model is unchanged.

    Raises:
        ValueError: if the optimizer does not hold exactly the model's trainable parameters, or a copy of it, or of the
            scheduler, cannot step once in every round.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        objective: Objective,
        clip: Clip,
        plan: Plan,
        *,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        directory: Path | str | None = None,
        observer: Callable[[Line], None] | None = None,
        account: str | Path | None = None,
    ) -> None:
        if plan.objective is not objective:
            raise ValueError("the plan was made for another objective; make it with fedsw.plan(objective, ...)")
        optimized = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        if optimized != {id(p) for p in model.parameters() if p.requires_grad}:
            raise ValueError("the optimizer holds other parameters than the model trains; give it model.parameters()")
        stepping.require_steps(optimizer, scheduler, plan.rounds)
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.objective, self.clip, self.plan = objective, clip, plan
        self._begun = begun.described(model, optimizer, scheduler, objective, clip, plan)
        self._directory, self._observer = directory, observer
        self._account = None if account is None else account_named(account)
        self._stepping, self.epsilon = OwnOptimizer(model, optimizer, scheduler), 0.0
        self.calibration: LogitCalibration | None = None

    @functools.cached_property
    def directory(self) -> Path:
        """The training's folder."""
        return files.fresh_folder(_PARENT) if self._directory is None else Path(self._directory)

    @property
    def rounds(self) -> int:
        """Rounds that the model has stepped along."""
        return self._stepping.steps

    @property
    def guarantee(self) -> str:
        """The plan's guarantee in words, and the account that composes it with other releases."""
        if self._account is None:
            return f"{self.plan.guarantee} This training counts in no account."
        return f"{self.plan.guarantee} This training counts in the account of data set {self._account.data!r}."

    def fit(self, records: Records, *, rounds: int | None = None) -> nn.Module:
        """Train on all remaining rounds, and return the model. `steps` runs them one by one.

        With ``rounds`` it runs that many of them, from the model's present weights, and not from those of the folder's
        checkpoint: for a client that receives a model in every message, with a new trainer over one folder. Steps of
        the optimizer, plan and ledger continue. The weights must not depend on the records except by releases.

        Guarantee: `plan.guarantee`, over this and every earlier call on the same folder; with an account also that of
        the account, over everything that counts there.

        A folder of a finished training gives a warning: the model is the one that it ended with.

        Raises:
            Diverged: if the model has diverged; no round after it is charged (`fedsw.learning.tasks.divergence`).
            BudgetExhausted: if the plan's epsilon is used up; the model is that of the rounds before.
            LimitReached: if the training does not fit below the account's limit; nothing is charged or drawn. For a
                round that was lost and is charged again: the model is that of the rounds before.
            ValueError: if the folder counts in another account than the named one; if it holds a training with other
                settings.
            LedgerReplaced: if the folder is a copy of one that released more, by the account; if its ledger lacks the
                row that the checkpoint recorded.
            RunBusy: if another process trains in the folder.
        """
        for _ in self.steps(records, rounds=rounds):
            pass
        return self.model

    def steps(self, records: Records, *, rounds: int | None = None) -> Iterator[Batch]:
        """Yield the batch of each remaining round; afterwards its gradient is charged, released and stepped along.

        The folder is held until the last round, or until the iterator is closed. What the caller computes from a batch
        is not noised. Guarantee, exceptions: those of `fit`.
        """
        self.plan.strata_of(records)  # refuses records that do not fit, before there is a folder
        sent = None if rounds is None else flatten(self.model)
        rounds = self.plan.rounds if rounds is None else whole(rounds, "rounds", least=1)
        files.private_folder(self.directory)
        with recovery.held(self.directory), self._counting() as counted, self._ledger() as ledger:
            counted.limit(ledger)
            if ledger.head().sequence:
                counted.take_over(ledger)
            try:
                if sent is not None:
                    load_flat(self.model, sent)
                yield from self._rounds(records, ledger, min(self.plan.rounds, self.rounds + rounds))
                if self.rounds < self.plan.rounds:
                    return  # the other rounds are still reserved in the account
                self.calibration = self._calibrated(records, ledger) if self.plan.calibration else None
            except (BudgetExhausted, Diverged):
                counted.settle()  # no further round is charged
                raise
            except GeneratorExit:  # closed between rounds: no note is needed
                raise
            except BaseException as fault:
                folder = str(self.directory)
                fault.add_note(f"what was released is kept: PrivateTrainer(..., directory={folder!r}) resumes")
                raise
            counted.settle()

    def _counting(self) -> AbstractContextManager[Budgeted]:
        """Reserve all rounds in the folder's account, if it has one."""
        account = kept_account(self.directory)
        require_same(self._account, account, self.directory)
        resumed = account is not None or (self.directory / RunFile.LEDGER).exists()
        if self._account is None:
            return nullcontext(Budgeted(self.directory, None, "", resumed=resumed))
        folder = RunDirectory(self.directory)
        name = folder.name()
        folder.keep_name(name)
        about = About(self.directory.name, "PrivateTrainer", str(self.directory.resolve()), self.plan.unprotected)
        return reserving(
            self.directory,
            self._account,
            name,
            Cost.one(self.plan.reserved()),
            about,
            resumed=resumed,
            remembered=[self.directory / RunFile.ACCOUNT],
        )

    def _rounds(self, records: Records, ledger: Ledger, last: int) -> Iterator[Batch]:
        self.epsilon = ledger.epsilon()
        if (repeats := repeats_of_records(records)) is not None:
            warnings.warn(
                f"{repeats}. Name the privacy unit, as_records(..., unit=...) and plan(unit=...): all rows of a person "
                "are then protected together",
                stacklevel=4,
            )
        if self.rounds >= self.plan.rounds:
            warnings.warn(
                f"{self.directory} holds a training that is finished: {self.rounds} rounds, epsilon "
                f"{upward(self.epsilon, 5)}. The model is the one that it ended with, and nothing was trained now; "
                "give another directory, or none, to train anew",
                stacklevel=4,
            )
        batches = self.plan.batches(records, ledger=ledger, first=self.rounds + 1)
        loop = _TrainerLoop(self, ledger, made_up_features(0, records.features.shape[1]))
        for _ in loop.rounds(self._stepping, self.directory, last, ledger):
            loop.batch = next(batches)
            yield loop.batch  # then it is released and stepped along
        if isinstance(loop.ended, BudgetExhausted):
            raise loop.ended
        if loop.ended:
            raise Diverged(loop.ended)

    def _calibrated(self, records: Records, ledger: Ledger) -> LogitCalibration | None:
        """The calibration of the trained model by one release of its scores, made now or on file.

        Scores that were charged and are not on file are not released again.
        """
        if (scores := group_thresholds.kept(self.directory)) is not None:
            return scores.calibration
        plan, counts, round_ = self.plan, self.objective.scores, self.plan.rounds + 1
        assert counts is not None
        missing = "scores were counted and charged once, and are not on file: they are not released again"
        if not any(entry.round == round_ for entry in ledger.entries()):
            batch = draw_batch(records, plan.strata_of(records), plan.sizes, seed=plan.seed, round_=round_, attempt=0)
            try:
                bounded = self.objective.count_scores(self.model, batch)
                released = release(bounded, replace(plan, multiplier=plan.scores), ledger)
            except BudgetExhausted as exhausted:
                missing = str(exhausted)
            else:
                values, self.epsilon = released.value.numpy(), released.spent
                calibration = calibration_of(counts, values, released.sigma, float(len(batch)))
                scores = Scores(values, released.sigma, np.array([len(batch)]), 1, 0, released.spent, calibration)
                group_thresholds.keep(self.directory, scores)
                return calibration
        warnings.warn(f"probabilities are those of the rounds, which are too sure: {missing}", stacklevel=3)
        return None

    def _ledger(self) -> Ledger:
        """The folder's ledger, with the model restored from its checkpoint; or a new one."""
        path = self.directory / RunFile.LEDGER
        state = checkpoint.load(self.directory)
        ledger = recovery.reopened(path, self.directory / RunFile.SUMMARY, state)
        if ledger is None:
            begun.keep(self.directory, self._begun)
            return Ledger.create(path, self.plan)
        try:
            self._require_same(ledger)
            begun.require_same(self.directory, self._begun)
            if state is not None:
                self._stepping.restore(state, self.directory)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _require_same(self, ledger: Ledger) -> None:
        promised = (ledger.groups, ledger.delta, ledger.budget, ledger.accountant, ledger.nominal)
        plan = self.plan
        if promised != (plan.strata, plan.delta, plan.epsilon, plan.accountant, plan.nominal):
            raise ValueError(
                f"{self.directory} holds a run of epsilon {upward(ledger.budget, 6)} at delta {upward(ledger.delta)} "
                f"for {', '.join(ledger.groups)} by {ledger.accountant}, {_SEEDED[ledger.nominal]}; this plan is for "
                f"epsilon {upward(plan.epsilon, 6)} at delta {upward(plan.delta)} for {', '.join(plan.strata)} by "
                f"{plan.accountant}, {_SEEDED[plan.nominal]}. Give every plan a folder of its own; on the "
                "same records what they spend adds up"
            )


class OwnOptimizer:
    """A model, with the user's optimizer and scheduler, which step it along released vectors (r,) only."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    ) -> None:
        self._model, self._optimizer, self._scheduler, self.steps = model, optimizer, scheduler, 0

    def step(self, released: Tensor) -> None:
        """Step along a released vector (r,)."""
        _set_gradient(self._model, released)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._scheduler is not None:
            self._scheduler.step()
        self.steps += 1

    def state(self) -> checkpoint.Checkpoint:
        """All that is needed to resume from here."""
        theta = flatten(self._model).cpu()
        content: dict[str, Any] = {"optimizer": self._optimizer.state_dict()}
        if self._scheduler is not None:
            content["scheduler"] = self._scheduler.state_dict()
        return checkpoint.Checkpoint(self.steps, theta, torch.zeros(0), content)

    def restore(self, state: checkpoint.Checkpoint, directory: Path) -> None:
        """Resume from a state in a folder; ValueError if it is of a model of another size."""
        if state.theta.numel() != count_parameters(self._model):
            raise ValueError(
                f"the checkpoint in {directory} is of a model with {state.theta.numel()} trainable numbers, this "
                f"one has {count_parameters(self._model)}; resume with the same model, or give another folder"
            )
        load_flat(self._model, state.theta)
        stepping.restore(self._optimizer, state.optimizer["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state.optimizer["scheduler"])
        self.steps = state.round
        for step in state.later:
            self.step(step.released)


@dataclass
class _TrainerLoop(TrainingLoop):
    """The rounds of a trainer: released on this machine, and stepped along by the user's optimizer."""

    trainer: PrivateTrainer
    ledger: Ledger
    made_up: Tensor
    batch: Batch = field(init=False)

    def released(self, round_: int) -> Outcome:
        """See `TrainingLoop`."""
        trainer, batch = self.trainer, self.batch
        bounded = trainer.objective.gradient(trainer.model, batch, trainer.clip)
        released = release(bounded, trainer.plan, self.ledger)
        return Outcome(released.value, released.sigma, released.spent, batch.attempt, 1)

    def unsound(self) -> str:
        """See `TrainingLoop`: by the model's weights, and made-up inputs as wide as the records."""
        trainer = self.trainer
        weights = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
        with unchanged(trainer.model):
            why = divergence(weights, lambda: trainer.model(self.made_up.to(weights[0])))
        if why is None:
            return ""
        words = {"spent": upward(trainer.epsilon, 5), "promised": upward(trainer.plan.epsilon, 6)}
        return stopped_diverged(why, round_=trainer.rounds, planned=trainer.plan.rounds, **words)

    def report(self, round_: int, outcome: Outcome) -> None:
        """See `TrainingLoop`."""
        self.trainer.epsilon = outcome.spent
        line: Line = {
            "round": round_,
            "attempt": outcome.attempt,
            "epsilon": outcome.spent,
            "sigma": outcome.sigma,
            "gradient_norm": float(torch.linalg.vector_norm(outcome.vector)),
        }
        RunDirectory(self.trainer.directory).append_metrics(line)
        if self.trainer._observer is not None:
            self.trainer._observer(line)
