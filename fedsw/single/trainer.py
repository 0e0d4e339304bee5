"""A trainer for one machine: the loop that a PyTorch user would write, with checkpoints, resume and the ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedsw.accounting import Ledger
from fedsw.data import Records
from fedsw.models import count_parameters, flatten, load_flat
from fedsw.objectives import Clip
from fedsw.privacy.release import Released, release
from fedsw.runs import checkpoint, recovery
from fedsw.runs.files import LEDGER, METRICS, SUMMARY
from fedsw.single.objective import Objective
from fedsw.single.plan import Plan

Line = dict[str, Any]


def set_gradient(model: nn.Module, released: Released) -> None:
    """Put a released gradient (r,) into `.grad` of the trainable parameters, for any `torch.optim` optimizer.

    Raises:
        ValueError: if it has another number of coordinates than the model has trainable numbers.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sizes = [parameter.numel() for parameter in parameters]
    if released.value.shape != (sum(sizes),):
        raise ValueError(f"the release has shape {tuple(released.value.shape)}; the model trains {sum(sizes)} numbers")
    for parameter, part in zip(parameters, torch.split(released.value, sizes), strict=True):
        parameter.grad = part.reshape(parameter.shape).to(parameter)


class PrivateTrainer:
    """Trains a model by released gradients alone.

    In `directory` are kept: the ledger, a checkpoint after every round, and `metrics.jsonl`. Made again over a folder
    that holds them, the trainer goes on: the ledger keeps every round that was ever charged, and a round that was
    charged but is not in the checkpoint is done again as a fresh attempt, and charged again.

    Args:
        model: any module whose trainable layers `fedsw.clipping` knows.
        optimizer: of `torch.optim`, over the model's parameters; weight decay and the like are post-processing.
        objective, clip, plan: what is minimised, the norms, and what was settled for them.
        scheduler: of `torch.optim.lr_scheduler`; stepped once a round.
        directory: where to keep the run.
        observer: called after every round with its line of metrics: round, attempt, epsilon, sigma. Releasable.

    Raises:
        ValueError: if the optimizer does not hold exactly the model's trainable parameters, or the folder holds a run
            of another guarantee.
        LedgerReplaced: if the ledger in the folder is older than the checkpoint remembers.
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
        directory: Path | str = "private-training",
        observer: Callable[[Line], None] | None = None,
    ) -> None:
        if plan.objective is not objective:
            raise ValueError("the plan was made for another objective; make it with fedsw.plan(objective, ...)")
        held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        if held != {id(p) for p in model.parameters() if p.requires_grad}:
            raise ValueError("the optimizer holds other parameters than the model trains; give it model.parameters()")
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.objective, self.clip, self.plan = objective, clip, plan
        self.directory, self._observer = Path(directory), observer
        self.rounds, self.epsilon = 0, 0.0

    def fit(self, records: Records) -> nn.Module:
        """Train on all rounds that are left, and return the model.

        Guarantee: `plan.guarantee`, over this and every earlier call on the same folder.

        Raises:
            BudgetExhausted: if the plan's epsilon is used up; the model is that of the rounds before.
            RunBusy: if another process trains in the folder.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with recovery.held(self.directory), self._ledger() as ledger:
            self.epsilon = ledger.epsilon()
            checkpoints = checkpoint.Checkpoints(self.directory)
            for batch in self.plan.batches(records, ledger=ledger, first=self.rounds + 1):
                recovery.require_space(self.directory, checkpoints.size)
                bounded = self.objective.gradient(self.model, batch, self.clip)
                released = release(bounded, self.plan, ledger)
                self._step(released)
                self.rounds, self.epsilon = batch.round, released.spent
                checkpoints.save(self._state(ledger))
                self._report(batch.attempt, released)
        return self.model

    def _step(self, released: Released) -> None:
        set_gradient(self.model, released)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()

    def _ledger(self) -> Ledger:
        """The folder's ledger, with the model brought to where its checkpoint is; or a new one."""
        path = self.directory / LEDGER
        state = checkpoint.load(self.directory)
        found = recovery.reopened(path, self.directory / SUMMARY, state)
        if found is None:
            return Ledger.create(path, self.plan)
        try:
            self._require_same(found)
            if state is not None:
                self._restore(state)
        except BaseException:
            found.close()
            raise
        return found

    def _require_same(self, ledger: Ledger) -> None:
        kept = (ledger.groups, ledger.delta, ledger.budget, ledger.accountant, ledger.nominal)
        plan = self.plan
        if kept != (plan.strata, plan.delta, plan.epsilon, plan.accountant, plan.nominal):
            raise ValueError(
                f"{self.directory} holds a run of epsilon {ledger.budget:.6g} at delta {ledger.delta:.3g} for "
                f"{', '.join(ledger.groups)} by {ledger.accountant}; this plan is for epsilon {plan.epsilon:.6g} at "
                f"delta {plan.delta:.3g} for {', '.join(plan.strata)} by {plan.accountant}. Give every plan a folder "
                "of its own; on the same records what they spend adds up"
            )

    def _state(self, ledger: Ledger) -> checkpoint.Checkpoint:
        theta = flatten(self.model).cpu()
        kept: dict[str, Any] = {"optimizer": self.optimizer.state_dict()}
        if self.scheduler is not None:
            kept["scheduler"] = self.scheduler.state_dict()
        return checkpoint.Checkpoint(self.rounds, theta, torch.zeros(0), kept, ledger.head())

    def _restore(self, state: checkpoint.Checkpoint) -> None:
        if state.theta.numel() != count_parameters(self.model):
            raise ValueError(
                f"the checkpoint in {self.directory} is of a model with {state.theta.numel()} trainable numbers, this "
                f"one has {count_parameters(self.model)}; go on with the same model, or give another folder"
            )
        load_flat(self.model, state.theta)
        self.optimizer.load_state_dict(state.optimizer["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state.optimizer["scheduler"])
        self.rounds = state.round

    def _report(self, attempt: int, released: Released) -> None:
        line: Line = {
            "round": self.rounds,
            "attempt": attempt,
            "epsilon": released.spent,
            "sigma": released.sigma,
            "gradient_norm": _norm(released.value),
        }
        with (self.directory / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        if self._observer is not None:
            self._observer(line)


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))
