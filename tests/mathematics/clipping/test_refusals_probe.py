"""Mixing that no structural check can see is caught by a rehearsal on made-up records."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedsw.mathematics.clipping import UnsupportedModule, check, probe_independence
from tests.mathematics.clipping.escapes import Apart

MIXING = {
    "centred over the batch": Apart(lambda z: z - z.mean(0)),
    "neighbour": Apart(lambda z: z + z.roll(1, 0)),
    "attention over records": Apart(lambda z: torch.softmax(z @ z.T, -1) @ z),
    "functional batch norm": Apart(lambda z: F.batch_norm(z, None, None, training=True)),
    "random": Apart(lambda z: z + torch.randn_like(z)),
    "changed gradients": Apart(lambda z: _tripled(z)),
}


def _tripled(z):
    z = z * 1.0
    z.register_hook(lambda gradient: gradient / gradient.norm())
    return z


class RunningMean(nn.Module):
    """Leaves a statistic of its records in a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        z = self.layer(x)
        self.mean.add_(z.detach().mean(0))
        return z


@pytest.mark.parametrize("name", MIXING)
def test_mixing_in_a_custom_forward_is_caught_by_probing(name):
    check(MIXING[name])
    with pytest.raises(
        UnsupportedModule, match="differs between the batch and the record alone|alone cannot|draws random numbers"
    ):
        probe_independence(MIXING[name], torch.randn(4, 3))


def test_buffers_that_remember_records_are_caught_by_probing():
    model = RunningMean()
    with pytest.raises(UnsupportedModule, match="buffer 'mean' changes"):
        probe_independence(model, torch.randn(4, 3))
    assert torch.equal(model.mean, torch.zeros(2))


def test_mixing_in_a_head_is_caught_by_probing():
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    probe_independence(model, x)
    probe_independence(model, x, heads=lambda raw: [raw, raw.tanh().sum(1, keepdim=True)])
    with pytest.raises(UnsupportedModule, match="output of record 0"):
        probe_independence(model, x, heads=lambda raw: [raw - raw.mean(0)])
    with pytest.raises(ValueError, match="at least 2"):
        probe_independence(model, x[:1])


def test_clean_models_pass_the_probe_unchanged():
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(12, 3)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    probe_independence(model, torch.randn(3, 2, 5))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32


class Counter(RunningMean):
    """Counts its records in a frozen parameter, or one that trains."""

    def __init__(self, trains):
        super().__init__()
        del self.mean
        self.mean = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.trains = trains

    def forward(self, x):
        (self.layer.bias if self.trains else self.mean).data.add_(float(len(x)))
        return self.layer(x)


@pytest.mark.parametrize("trains", [False, True])
def test_parameters_that_remember_records_are_caught_by_probing(trains):
    model = Counter(trains)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(UnsupportedModule, match=f"parameter '{'layer.bias' if trains else 'mean'}' changes"):
        probe_independence(model, torch.randn(4, 3))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_frozen_layer_with_max_norm_is_refused_before_any_data(kind):
    model = nn.Sequential(kind(5, 3, max_norm=1.0).requires_grad_(False), nn.Linear(3, 2))
    with pytest.raises(UnsupportedModule, match="shorten all rows once, before training"):
        check(model)
