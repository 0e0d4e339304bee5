"""Laws of where epsilon is computed: the processor's digits stay, another device is never below them."""

import math
from dataclasses import replace

import pytest
import torch

from fedsw.experiment import ExperimentError
from fedsw.federation.trust.round_plan import make_plan
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Charge, Composition, Ledger, Step, epsilon, epsilon_by, noise_multiplier, steps
from fedsw.privacy.accounting import pld as composed
from fedsw.privacy.accounting.pld import ROUND_OFF, accounting_device, round_off
from tests.federations import sites_of, small

CPU = torch.device("cpu")
STEPS = {Step(0.01, 1.0): 500, Step(0.2, 0.1): 30}
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_a_device_without_float64_leaves_it_to_the_processor():
    assert accounting_device("mps") == accounting_device(torch.device("mps")) == accounting_device("cpu")
    assert epsilon(STEPS, 1e-6, device="mps") == epsilon(STEPS, 1e-6)


def test_every_door_takes_a_device_and_the_processors_digits_stay(tmp_path):
    assert epsilon_by("pld", STEPS, 1e-6, device="cpu") == epsilon(STEPS, 1e-6)
    asked = {"sampling_rate": 0.1, "steps": 50}
    assert noise_multiplier(1.0, 1e-5, **asked, device=CPU) == noise_multiplier(1.0, 1e-5, **asked)
    assert steps(1.0, 1e-5, sampling_rate=0.1, noise_multiplier=4.0, device="cpu") == steps(
        1.0, 1e-5, sampling_rate=0.1, noise_multiplier=4.0
    )
    charge = Charge("all", 0.1, 1.0)
    with Ledger.create(tmp_path / "a", groups=["all"], delta=1e-5, epsilon=9.0, device="mps") as ledger:
        spent = ledger.spend(1, 0, [charge], 2.0)
    with Ledger.open(tmp_path / "a", device="cpu") as ledger:
        assert ledger.epsilon() == spent == epsilon({Step(0.1, 0.5): 1}, 1e-5)


@pytest.mark.parametrize("device", ["tpu", "abacus:0"])
def test_an_unknown_device_is_named(device, tmp_path):
    for ask in (
        lambda: epsilon(STEPS, 1e-6, device=device),
        lambda: Ledger.create(tmp_path / "a", groups=["all"], delta=1e-5, epsilon=9.0, device=device),
    ):
        with pytest.raises(ValueError, match=f"accounting device is '{device}'; choose one of cpu, cuda"):
            ask()


@pytest.mark.parametrize("sampling", ["without-replacement", "poisson"])
@pytest.mark.parametrize(("p", "mu", "count"), [(0.01, 1.0, 500), (0.3, 0.5, 3), (1.0, 20.0, 2), (0.001, 0.3, 10**5)])
def test_where_numpy_has_no_80_bits_torch_computes_the_same_on_the_processor(p, mu, count, sampling, monkeypatch):
    steps = {Step(p, mu, sampling): count}
    here = epsilon(steps, 1e-6)
    monkeypatch.setattr(composed, "extended", lambda: False)
    assert accounting_device("cpu") == CPU == accounting_device("mps")
    assert epsilon(steps, 1e-6) == pytest.approx(here, rel=1e-6)
    assert round_off(steps, CPU) == round_off(steps)


def test_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="'cuda', but this machine offers none"):
        Composition(device="cuda")


def test_off_the_processor_three_times_the_round_off_is_set_aside(monkeypatch):
    assert round_off(STEPS, torch.device("cuda")) == pytest.approx(3 * round_off(STEPS), rel=1e-12)
    here = Composition(STEPS)
    lowest, delta = here.epsilon(1e-9), here.delta(math.inf)
    monkeypatch.setattr(composed, "round_off_factor", lambda device: ROUND_OFF)
    there = Composition(STEPS)
    assert there.epsilon(1e-9) > lowest and there.delta(math.inf) == pytest.approx(3 * delta, rel=1e-12)


@needs_cuda
@pytest.mark.parametrize("delta", [1e-10, 1e-5])
@pytest.mark.parametrize(("p", "mu", "count"), [(0.01, 1.0, 5000), (0.3, 0.5, 3), (1.0, 0.1, 100), (0.001, 1.0, 100)])
def test_on_cuda_epsilon_is_the_processors_or_hardly_above(p, mu, count, delta):
    here, there = (epsilon({Step(p, mu): count}, delta, device=device) for device in ("cpu", "cuda"))
    assert here <= there <= here * (1 + (0.02 if delta < 1e-9 else 1e-6))


def test_the_servers_accountant_follows_the_models_device_unless_it_is_named(monkeypatch):
    problem = Problem.from_experiment(small())

    def device(*overrides):
        return replace(problem, experiment=small(*overrides)).accounting_device

    assert device() == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device("training.device=cuda") == device("privacy.device=cuda") == torch.device("cuda")
    assert device("training.device=cuda", "privacy.device=cpu") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExperimentError, match=r"privacy\.device is 'cuda' but this machine offers none.*use 'cpu'"):
        device("privacy.device=cuda")


def test_the_plan_is_calibrated_on_the_accountants_device_before_anything_is_spent(monkeypatch):
    problem = Problem.from_experiment(small("privacy.device=cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExperimentError, match=r"privacy\.device is 'cuda'"):
        make_plan(problem, sites_of((100, 100)))
