"""A loop of Opacus' shape: batches, steps and noise are a trainer's; and a promise of additions and removals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedsw
from fedsw.privacy.accounting import Ledger, Step, epsilon_by
from fedsw.runs.single.objective import Batch, draw_batch
from fedsw.runs.single.trainer import PrivateTrainer

CLIP = fedsw.Clip(1.0, 1.0, 0.5)


pytestmark = pytest.mark.usefixtures("elsewhere")


def data(rows: int = 200, *, of: str = "classes") -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 1, 2, 2, generator=draw)
    told = x.flatten(1)[:, 0]
    return TensorDataset(x, (told > 0).long() if of == "classes" else told[:, None])


def network(outputs: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(3, outputs))


def made(source: TensorDataset, outputs: int = 2, **options: Any) -> tuple[nn.Module, Any, Any]:
    net = network(outputs)
    asked = {"max_grad_norm": 0.5, "target_epsilon": 20.0, "target_delta": 1e-4, "epochs": 3, "random_state": 1}
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    return fedsw.private(net, optimizer, DataLoader(source, batch_size=50), **{**asked, **options})


def looped(model: nn.Module, optimizer: Any, loader: Any, epochs: int = 3) -> int:
    steps = 0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            steps += 1
    return steps


def test_a_loop_ends_where_the_trainer_does_and_spends_what_it_does() -> None:
    source = data()
    model, optimizer, loader = made(source)
    assert looped(model, optimizer, loader) == 12 == 3 * len(loader)
    net = network()
    records = fedsw.as_records(source, classes=[0, 1])
    objective = fedsw.Objective(optimizer._rounds.trainer.objective.learnt, (), classes=2)
    plan = fedsw.plan(objective, CLIP, sizes=[200], rounds=12, epsilon=20.0, delta=1e-4, batch_size=50, random_state=1)
    flat = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), net)
    PrivateTrainer(flat, torch.optim.SGD(net.parameters(), lr=1.0), objective, CLIP, plan).fit(records)
    assert all(torch.equal(mine, its) for mine, its in zip(model.parameters(), net.parameters(), strict=True))
    assert 0 < optimizer.epsilon <= 20.0 and "nominal (20, 0.0001)" in optimizer.guarantee
    with Ledger.open(optimizer.directory / "ledger.sqlite") as ledger:
        assert len(ledger.entries()) == 12
    right = model(source.tensors[0]).argmax(dim=1) == source.tensors[1]
    assert float(right.double().mean()) > 0.8


def test_what_backward_left_has_no_part_in_a_step() -> None:
    one, other = made(data(), directory="one"), made(data(), directory="other")
    looped(*one)
    for _ in range(3):
        for _x, _y in other[2]:
            for parameter in other[0].parameters():
                parameter.grad = torch.full_like(parameter, 1e3)
            other[1].step()
    assert all(torch.equal(a, b) for a, b in zip(one[0].parameters(), other[0].parameters(), strict=True))


def test_a_batch_without_its_step_and_a_step_without_a_batch_are_refused() -> None:
    _, optimizer, loader = made(data())
    with pytest.raises(ValueError, match="there is no batch to step along"):
        optimizer.step()
    with pytest.raises(ValueError, match="was drawn and not stepped along"):
        list(loader)


def test_a_loop_goes_on_in_its_folder_and_ends_the_same() -> None:
    whole = made(data(), directory="whole")
    looped(*whole)
    first = made(data(), directory="part")
    looped(*first, epochs=1)
    first[1]._rounds._steps.close()
    again = made(data(), directory="part")
    assert looped(*again) == 8
    assert all(torch.equal(a, b) for a, b in zip(whole[0].parameters(), again[0].parameters(), strict=True))


def test_numbers_are_learnt_by_their_squared_error() -> None:
    model, optimizer, loader = made(data(of="numbers"), outputs=1, max_grad_norm=1.0)
    for _ in range(3):
        for _x, y in loader:
            assert y.shape[1] == 1
            optimizer.step()
    x, y = data(of="numbers").tensors
    assert float(((model(x) - y) ** 2).mean()) < float((y**2).mean())


# Additions and removals


def records(rows: int = 300) -> tuple[np.ndarray, np.ndarray, fedsw.data.DeclaredRecords]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 3))
    y = (x[:, 0] > 0).astype(int)
    return x, y, fedsw.as_records(x, target=y, classes=[0, 1])


def added(**options: Any) -> tuple[fedsw.Objective, fedsw.Plan]:
    objective = fedsw.Objective("classification", (), relation="add-remove")
    settled = {"sizes": [300], "rounds": 20, "epsilon": 4.0, "delta": 1e-5, "batch_fraction": 0.1, "seed": 1}
    return objective, fedsw.plan(objective, CLIP, **{**settled, **options})


def test_a_training_for_additions_and_removals_is_that_of_a_federation_of_one() -> None:
    _, _, all_of_them = records()
    objective, plan = added()
    torch.manual_seed(0)
    net, twin = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()
    twin.load_state_dict(net.state_dict())
    trainer = PrivateTrainer(net, torch.optim.SGD(net.parameters(), lr=0.5), objective, CLIP, plan)
    trainer.fit(all_of_them)
    privacy = {"epsilon": 4.0, "delta": 1e-5, "relation": "add-remove", "sampling": "poisson", "records": 300}
    training = {"rounds": 20, "batch_fraction": 0.1, "learning_rate": 0.5, "precision": "float64"}
    sections = {"objective": {"alpha": 0.0}, "clip": {"loss": 0.5}, "privacy": privacy, "training": training}
    result = fedsw.run(
        {"name": "twin", "seed": 1, **sections, "federation": {"clients": 1}}, model=twin, data=all_of_them
    )
    theirs = fedsw.load(result.directory, model=twin).model
    assert torch.allclose(net.weight, theirs.weight, rtol=0, atol=1e-12)  # type: ignore[arg-type]
    assert plan.multiplier == result.summary["guarantee"]["noise_multiplier"]
    assert trainer.epsilon == pytest.approx(result.summary["epsilon_spent"], abs=1e-9)
    assert "addition or removal" in trainer.guarantee and "replacement" not in trainer.guarantee


def test_epsilon_is_that_of_poisson_steps_and_a_replacement_s_is_larger() -> None:
    _, plan = added()
    steps = [(Step(0.1, 1 / plan.multiplier, "poisson"), 20)]
    assert epsilon_by("pld", steps, 1e-5) <= 4.0
    twice = [(Step(0.1, 2 / plan.multiplier, "poisson"), 20)]
    assert epsilon_by("pld", twice, 1e-5) > 8.0
    assert plan.sensitivity.value == pytest.approx(1.001 * 0.5 / 30)


def value(bounded: fedsw.Bounded) -> Tensor:
    return bounded._take()


def test_a_record_that_goes_moves_the_gradient_by_at_most_its_bound_whoever_the_others_are() -> None:
    x, y, _ = records(60)
    objective, plan = added(sizes=[60])
    torch.manual_seed(0)
    net = nn.Linear(3, 1).double()
    x[0] *= 1e3  # at its clip
    gradients = []
    for first in (0, 1):
        here = fedsw.as_records(x[first:], target=y[first:], classes=[0, 1])
        batch = Batch(1, 0, here, plan.batch, plan.rates)
        gradients.append(objective.gradient(net, batch, CLIP))
    moved = float((value(gradients[0]) - value(gradients[1])).norm())
    bound = gradients[0].sensitivity.value
    assert 0.99 * bound / 1.001 <= moved <= bound
    assert gradients[0].sensitivity == gradients[1].sensitivity == plan.sensitivity
    assert [charge.sampling for charge in gradients[0].charges] == ["poisson"]
    assert [charge.sampling_rate for charge in gradients[0].charges] == [0.1]


@pytest.mark.parametrize(("rows", "apart"), [(86, 2.0**-22), (256, 2.0**-16)])
def test_what_rounding_may_hide_does_not_follow_from_how_many_records_there_are(rows: int, apart: float) -> None:
    # Rows of 86 records take more memory than may be used, those of 85 do not; sums of sites that nearly cancel are cut
    # in the one way and not in the other.
    records = torch.zeros(rows, 16, 64)
    records[:, 0], records[:, 1] = 2.0**33, -(2.0**33) * (1 - apart)
    records[-1, 0], records[-1, 1] = -1e3, 0.0
    net = nn.Sequential(nn.Unflatten(1, (16, 64)), nn.Linear(64, 1024, bias=False), nn.Flatten(), nn.Linear(2**14, 1))
    for parameter, constant in ((net[1].weight, 0.0), (net[3].weight, 1.0), (net[3].bias, 0.0)):
        nn.init.constant_(parameter, constant)  # type: ignore[arg-type]
    net[3].requires_grad_(False)
    objective = fedsw.Objective("regression", (), classes=0, targets=1, relation="add-remove")
    none, ones = torch.zeros(rows, dtype=torch.int64), torch.ones(rows, 1)
    all_of_them = fedsw.data.Records(records.flatten(1), none, ones, torch.arange(rows))
    gradients = [
        objective.gradient(net, Batch(1, 0, all_of_them.part(0, end), (rows,), (0.1,)), CLIP)
        for end in (rows, rows - 1)
    ]
    moved = float((value(gradients[0]) - value(gradients[1])).norm())
    assert 0 < moved <= gradients[0].sensitivity.value


def test_every_record_joins_a_batch_by_itself() -> None:
    _, _, all_of_them = records()
    strata = [np.arange(300)]
    sizes = [
        len(draw_batch(all_of_them, strata, (30,), seed=None, round_=1, attempt=0, poisson=0.1)) for _ in range(400)
    ]
    assert np.mean(sizes) == pytest.approx(30, abs=6 * math.sqrt(27 / 400))
    assert np.var(sizes) == pytest.approx(27, rel=0.45)
    empty = draw_batch(all_of_them, strata, (30,), seed=None, round_=1, attempt=0, poisson=1e-9)
    assert len(empty) == 0 and empty.rates == (1e-9,)


def test_an_empty_batch_and_another_number_of_records_are_no_fault() -> None:
    _, _, few = records(20)
    objective, plan = added(rounds=5)
    net = nn.Linear(3, 1).double()
    trainer = PrivateTrainer(net, torch.optim.SGD(net.parameters(), lr=0.1), objective, CLIP, plan)
    trainer.fit(few)
    assert trainer.rounds == 5
    empty = Batch(1, 0, few.part(0, 0), plan.batch, plan.rates)
    assert float(value(objective.gradient(net, empty, CLIP)).abs().max()) == 0.0


class Own(fedsw.Task):
    def dimension(self, shape: Any, model: Any) -> int:
        return 2

    def outputs(self, raw: Tensor, batch: Any) -> Tensor:
        return raw

    def loss(self, raw: Tensor, batch: Any) -> Tensor:
        return raw.sum(dim=1) / len(raw)


def test_what_is_not_proven_of_additions_and_removals_is_refused() -> None:
    with pytest.raises(ValueError, match="proven of the losses of"):
        fedsw.Objective(Own(), (), relation="add-remove")
    with pytest.raises(ValueError, match="no bound for penalties"):
        fedsw.Objective("classification", [fedsw.Parity(0.5)], relation="add-remove")
    with pytest.raises(ValueError, match="calibration counts all records"):
        added(calibration=0.1)
    with pytest.raises(ValueError, match="choose 'replace-one' or 'add-remove'"):
        fedsw.Objective("classification", (), relation="both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="records=N"):
        made(data(), relation="add-remove")


def test_a_loop_may_promise_what_opacus_does() -> None:
    model, optimizer, loader = made(data(), relation="add-remove", records=200)
    looped(model, optimizer, loader)
    plan = optimizer._rounds.trainer.plan
    assert "addition or removal" in optimizer.guarantee
    replaced = made(data(), directory="other")[1]._rounds.trainer.plan
    assert plan.sigma < replaced.sigma  # of the same epsilon


def test_of_a_hidden_number_of_records_a_loop_shows_nothing() -> None:
    settled = []
    for rows in (200, 201, 20):
        _, optimizer, loader = made(data(rows), directory=str(rows), relation="add-remove", records=200)
        plan = optimizer._rounds.trainer.plan
        settled.append((len(loader), plan.rounds, plan.batch, plan.rates, plan.sigma, plan.guarantee))
    assert settled[0] == settled[1] == settled[2] and settled[0][:2] == (4, 12)
