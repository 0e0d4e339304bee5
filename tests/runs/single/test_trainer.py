"""The trainer: the plain loop, any optimizer and scheduler, and stops that forget nothing."""

from __future__ import annotations

import json
import math

import pytest
import torch

import fedsw
from fedsw.learning.models import flatten, load_flat
from fedsw.learning.objectives import Clip
from fedsw.learning.tasks.divergence import Diverged
from fedsw.runs.checkpoint import Checkpoints
from fedsw.runs.recovery import RunBusy, held
from tests.runs.single.examples import Scores, model, records

CLIP = Clip(output=0.5, jacobian=1.0, loss=1.0)
OBJECTIVE = fedsw.Objective(Scores(), [fedsw.Parity(0.5)])
ROUNDS = 6


def plan(**other):
    asked = {"sizes": (24, 24), "batch_fraction": 0.5, "rounds": ROUNDS, "epsilon": 5.0, "delta": 1e-3, "seed": 2}
    return fedsw.plan(OBJECTIVE, CLIP, **{**asked, **other})


def trainer(folder, found=None, make=torch.optim.Adam, **other):
    net = model()
    optimizer = make(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    return fedsw.PrivateTrainer(
        net, optimizer, OBJECTIVE, CLIP, found or plan(), scheduler=schedule, directory=folder, **other
    )


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_the_trainer_is_the_loop_that_one_would_write(tmp_path, make):
    found, net = plan(), model()
    optimizer = make(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    with fedsw.Ledger.create(tmp_path / "l.sqlite", found) as ledger:
        for batch in found.batches(records()):
            fedsw.set_gradient(net, fedsw.release(OBJECTIVE.gradient(net, batch, CLIP), found, ledger))
            optimizer.step()
            schedule.step()
    ours = trainer(tmp_path / "run", found, make)
    assert torch.equal(flatten(ours.fit(records())), flatten(net))
    assert ours.epsilon == pytest.approx(5.0, rel=1e-3) and ours.rounds == ROUNDS


class Stop(Exception):
    pass


def stopping_after(rounds: int):
    def observe(line):
        if line["round"] == rounds:
            raise Stop

    return observe


def test_a_stopped_training_goes_on_to_the_same_model_and_epsilon(tmp_path):
    whole = trainer(tmp_path / "whole")
    whole.fit(records())
    with pytest.raises(Stop):
        trainer(tmp_path / "parts", observer=stopping_after(3)).fit(records())
    again = trainer(tmp_path / "parts")
    assert torch.equal(flatten(again.fit(records())), flatten(whole.model))
    assert again.epsilon == whole.epsilon
    lines = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]


def test_a_round_that_was_charged_and_lost_is_charged_again_as_a_fresh_attempt(tmp_path, monkeypatch):
    found = plan(epsilon=5.0, rounds=3)
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "take", lambda *a: (_ for _ in ()).throw(Stop()))
        with pytest.raises(Stop):
            trainer(tmp_path / "run", found).fit(records())
    again = trainer(tmp_path / "run", found)
    with pytest.raises(fedsw.BudgetExhausted):  # the lost round took the last one's place
        again.fit(records())
    with fedsw.Ledger.open(tmp_path / "run" / "ledger.sqlite", read_only=True) as ledger:
        assert sorted({(e.round, e.attempt) for e in ledger.entries()}) == [(1, 0), (1, 1), (2, 0)]
    assert again.rounds == 2


def test_a_folder_of_another_guarantee_or_model_is_refused(tmp_path):
    with pytest.raises(Stop):
        trainer(tmp_path / "run", observer=stopping_after(2)).fit(records())
    with pytest.raises(ValueError, match="holds a run of epsilon 5 .*; this plan is for epsilon 4"):
        trainer(tmp_path / "run", plan(epsilon=4.0)).fit(records())
    (tmp_path / "run" / "ledger.sqlite").unlink()
    with pytest.raises(ValueError, match=r"ledger\.sqlite is gone"):
        trainer(tmp_path / "run").fit(records())


def test_two_trainers_do_not_share_a_folder(tmp_path):
    (tmp_path / "run").mkdir()
    with held(tmp_path / "run"), pytest.raises(RunBusy):
        trainer(tmp_path / "run").fit(records())


def test_an_optimizer_of_other_parameters_is_refused(tmp_path):
    net = model()
    optimizer = torch.optim.SGD(list(net.parameters())[:2], lr=0.1)
    with pytest.raises(ValueError, match="the optimizer holds other parameters"):
        fedsw.PrivateTrainer(net, optimizer, OBJECTIVE, CLIP, plan(), directory=tmp_path)


def test_a_plan_without_noise_spends_infinity_and_says_so(tmp_path):
    found = trainer(tmp_path / "run", plan(epsilon=math.inf))
    found.fit(records())
    assert found.epsilon == math.inf and "epsilon is infinite" in found.plan.guarantee


def released(folder) -> list[tuple[int, int]]:
    with fedsw.Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        return sorted({(entry.round, entry.attempt) for entry in ledger.entries()})


class Diverging(torch.optim.SGD):
    """Steps that double, as those of a rate and a weight decay that do not fit."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(1e200)


@pytest.mark.parametrize("make", [Diverging, lambda p, lr: torch.optim.SGD(p, lr=1e308), lambda p, lr: Nan(p, lr=1.0)])
def test_a_training_that_diverged_charges_no_further_round_and_says_what_is_left(tmp_path, make):
    """Its weights are public. It had paid for noise alone, in every round that was left."""
    ours = trainer(tmp_path / "run", make=make)
    with pytest.raises(Diverged, match=r"stopped after round \d: .* of 6 rounds are left .* epsilon .* of 5 is spent"):
        ours.fit(records())
    charged = released(tmp_path / "run")
    assert 1 <= ours.rounds == len(charged) < ROUNDS
    with pytest.raises(Diverged, match=f"stopped after round {ours.rounds}"):
        trainer(tmp_path / "run", make=make).fit(records())
    assert released(tmp_path / "run") == charged


class Nan(torch.optim.SGD):
    """An optimizer at fault."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.fill_(math.nan)


def test_a_network_whose_outputs_overflow_has_diverged_before_its_weights_do(tmp_path):
    layers = [torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)]
    net = torch.nn.Sequential(*layers)
    objective = fedsw.Objective("classification", [fedsw.Parity(0.5)])
    found = fedsw.plan(objective, CLIP, sizes=(24, 24), batch_fraction=0.5, rounds=9, epsilon=5.0, delta=1e-3, seed=2)
    ours = fedsw.PrivateTrainer(
        net, torch.optim.SGD(net.parameters(), lr=1e16), objective, CLIP, found, directory=tmp_path / "run"
    )
    with pytest.raises(Diverged, match="made-up inputs is not finite"):
        ours.fit(records())
    assert len(released(tmp_path / "run")) == 1


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_rounds_a_message_are_the_whole_training_if_the_model_comes_back_as_it_left(tmp_path, make):
    whole = trainer(tmp_path / "whole", make=make)
    whole.fit(records())
    sent = flatten(model())
    for _ in range(3):  # each message meets a new process, and gets the weights
        ours = trainer(tmp_path / "parts", make=make)
        load_flat(ours.model, sent)
        sent = flatten(ours.fit(records(), rounds=2))
    assert torch.equal(sent, flatten(whole.model)) and ours.epsilon == whole.epsilon
    with fedsw.Ledger.open(tmp_path / "parts" / "ledger.sqlite", read_only=True) as ledger:
        assert ledger.released_rounds() == len(ledger.entries()) / 2 == ROUNDS
    with pytest.warns(UserWarning, match="holds a training that is finished"):
        trainer(tmp_path / "parts", make=make).fit(records(), rounds=2)


def test_rounds_a_message_start_at_the_weights_that_were_sent_under_the_same_ledger(tmp_path):
    ours = trainer(tmp_path, plan(epsilon=math.inf), make=torch.optim.SGD)
    ours.fit(records(), rounds=1)
    ours = trainer(tmp_path, plan(epsilon=math.inf), make=torch.optim.SGD)
    load_flat(ours.model, torch.full_like(flatten(ours.model), 0.3))
    moved = flatten(ours.fit(records(), rounds=1)) - 0.3
    assert 0 < float(moved.norm()) <= 0.01 * 2 * (CLIP.loss + CLIP.output * CLIP.jacobian) and ours.rounds == 2
    with pytest.raises(ValueError, match="rounds"):
        ours.fit(records(), rounds=0)
