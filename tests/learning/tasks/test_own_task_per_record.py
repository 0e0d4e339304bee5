"""Laws of the probe that both one machine and a federation rest on: row i depends on record i alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedsw.data.sources import Shape
from fedsw.learning.models import flatten
from fedsw.learning.tasks.own_task import MADE_UP, made_up_features, made_up_targets, require_per_record
from fedsw.learning.tasks.task import Inputs
from fedsw.mathematics.clipping import UnsupportedModule

GIVEN = Inputs(made_up_features(0, 4), made_up_targets(2, 0), Shape(4, ("0", "1"), 2, 0))


def of_zero() -> nn.Module:
    """A model whose last layer starts at 0, so that all records have the same values."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    return model


def apart(raw, inputs):
    return [raw, raw[:, 0] ** 2]


def centred(raw, inputs):
    return [raw, raw[:, 0] ** 2 - (raw[:, 0] ** 2).mean()]


def by_class(raw, inputs):
    return [raw, raw[:, 0] / torch.bincount(inputs.target, minlength=2)[inputs.target]]


def single_precision(raw, inputs):
    return [raw @ torch.ones((1, 1)), raw[:, 0]]


def single_precision_mixed(raw, inputs):
    return [raw @ torch.ones((1, 1)), raw[:, 0] ** 2 - (raw[:, 0] ** 2).mean()]


@pytest.mark.parametrize("compared", [apart, single_precision])
def test_code_that_keeps_records_apart_passes_in_whatever_precision_it_takes(compared):
    require_per_record(of_zero(), GIVEN, compared)


@pytest.mark.parametrize("compared", [centred, by_class, single_precision_mixed])
def test_mixing_is_found_through_a_layer_that_starts_at_zero_and_in_single_precision(compared):
    model = of_zero()
    if compared is not by_class:
        raw = model(GIVEN.features)
        whole = compared(raw, GIVEN)[1]
        assert torch.equal(whole, torch.zeros(MADE_UP))  # as the model stands, nothing of it shows
    with pytest.raises(UnsupportedModule, match="row i may depend on record i only; the .* of record 0 differs"):
        require_per_record(model, GIVEN, compared)


def test_neither_the_model_nor_a_random_generator_moves():
    model = of_zero()
    before, state = flatten(model), torch.get_rng_state()
    require_per_record(model, GIVEN, apart)
    assert torch.equal(before, flatten(model)) and torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_the_users_code_raises_is_what_is_said():
    def broken(raw, inputs):
        raise RuntimeError("no such head")

    with pytest.raises(RuntimeError, match="no such head"):
        require_per_record(of_zero(), GIVEN, broken)
