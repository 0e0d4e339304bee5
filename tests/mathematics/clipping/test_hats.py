"""A layer of places is the linear layer of the hats that they stand for: its outputs, its clips, and what it adds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsw.mathematics.clipping import Safety, Term, clipped_sum, record
from fedsw.mathematics.clipping.rules import HatLinear, hats
from tests.mathematics.clipping.naive import naive_sum

SIZES, SCALE = (4, 3, 5), 1 / math.sqrt(3)
WIDTH = sum(SIZES)
MAPS = {"no map": False, "map": True}


def layer_of(outputs: int, mapped: bool, dtype: torch.dtype = torch.float64) -> HatLinear:
    torch.manual_seed(1)
    parts = {"centre": torch.rand(WIDTH).double() / 3, "matrix": torch.randn(WIDTH, WIDTH).double()} if mapped else {}
    layer = HatLinear(SIZES, SCALE, outputs, dtype=dtype, **parts)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(outputs, WIDTH))
        layer.bias.copy_(torch.randn(outputs))
    return layer


def places_of(n: int) -> torch.Tensor:
    """Numbers in three columns, some of them on knots, at the ends, categories and none at all."""
    torch.manual_seed(2)
    places = torch.rand(n, 3).double() * (torch.tensor(SIZES) - 1)
    places[::3] = places[::3].round()
    places[1::5, 1] = SIZES[1]
    return places


def numbers_of(layer: HatLinear, places: torch.Tensor) -> torch.Tensor:
    """What a linear layer would take, written by a loop: hats, behind the map."""
    filled = torch.zeros(len(places), WIDTH, dtype=torch.float64)
    for row, record_places in enumerate(places.tolist()):
        start = 0
        for place, size in zip(record_places, SIZES, strict=True):
            lower, part = int(place), place - int(place)
            if lower < size:
                filled[row, start + lower] += SCALE * (1 - part)
            if part:
                filled[row, start + lower + 1] += SCALE * part
            start += size
    return filled if layer.matrix is None else (filled - layer.centre) @ layer.matrix


def linear_of(layer: HatLinear) -> nn.Linear:
    linear = nn.Linear(WIDTH, len(layer.bias), dtype=layer.weight.dtype)
    linear.load_state_dict(layer.state_dict())
    return linear


def exact(places: torch.Tensor, layer: HatLinear) -> torch.Tensor:
    """Places that the layer's inputs have every digit of."""
    return (places * 2**layer.bits).floor() / 2**layer.bits


@pytest.mark.parametrize("mapped", MAPS.values(), ids=MAPS)
@pytest.mark.parametrize("outputs", [1, 3])
def test_outputs_are_those_of_the_linear_layer_of_hats(outputs, mapped):
    layer = layer_of(outputs, mapped)
    places = exact(places_of(17), layer)
    torch.testing.assert_close(layer(layer.inputs(places)), linear_of(layer)(numbers_of(layer, places)))


@pytest.mark.parametrize("mapped", MAPS.values(), ids=MAPS)
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("frozen", [None, "weight", "bias"])
def test_clipped_sums_are_the_naive_loop_over_the_linear_layer_of_hats(outputs, mapped, frozen, monkeypatch):
    monkeypatch.setattr(hats, "_TILE", 4)
    monkeypatch.setattr(hats, "_FEW", 3)
    layer = layer_of(outputs, mapped)
    places, linear = exact(places_of(11), layer), linear_of(layer)
    if frozen is not None:
        for each in (layer, linear):
            getattr(each, frozen).requires_grad_(False)
    q, numbers = torch.randn(11, outputs).double(), numbers_of(layer, places)
    lengths = (numbers.square().sum(1) + 1).sqrt()
    for bound in (0.5 * float(lengths.min()), float(lengths.median()), 2 * float(lengths.max())):
        for mode in ("spectral", "row"):
            tape = record(layer, layer.inputs(places))
            found = clipped_sum(tape, [Term(tape.raw, q, bound, mode)], safety=Safety.off())
            expected = naive_sum(linear, numbers, q, bound, mode)
            assert float((found - expected).norm() / expected.norm()) < 1e-6, (bound, mode)  # lengths are float32


@pytest.mark.parametrize("mapped", MAPS.values(), ids=MAPS)
def test_runs_of_records_are_summed_apart(mapped, monkeypatch):
    monkeypatch.setattr(hats, "_TILE", 3)
    layer = layer_of(2, mapped)
    inputs, q = layer.inputs(places_of(9)), torch.randn(9, 2).double()
    tape = record(layer, inputs)
    apart = clipped_sum(tape, [Term(tape.raw, q, 1.0)], runs=[4, 0, 5])
    for rows, found in zip((slice(0, 4), slice(4, 4), slice(4, 9)), apart, strict=True):
        alone = record(layer, inputs[rows])
        torch.testing.assert_close(found, clipped_sum(alone, [Term(alone.raw, q[rows], 1.0)]))


@pytest.mark.parametrize("mapped", MAPS.values(), ids=MAPS)
def test_a_length_is_never_rounded_down(mapped):
    layer = layer_of(1, mapped)
    places = exact(places_of(200), layer)
    stored = layer.squares(layer.inputs(places))
    true = numbers_of(layer, places).square().sum(1)
    assert bool((stored >= true * (1 - 1e-12)).all()) and bool((stored <= true * (1 + 2**-22)).all())
    assert float((stored / true).max()) > 1 + 2**-30  # float32 rounds some of them


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=3, max_size=3),
    st.booleans(),
    st.floats(0.01, 10.0),
)
def test_no_places_bring_a_record_above_its_clip(places, mapped, bound):
    layer = layer_of(2, mapped, torch.float32)
    inputs, q = layer.inputs(torch.tensor([places])), torch.tensor([[0.6, -0.8]]).double()
    tape = record(layer, inputs)
    assert float(clipped_sum(tape, [Term(tape.raw, q, bound)]).norm()) <= bound


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4))
def test_no_number_leads_beyond_the_slots(numbers):
    layer = layer_of(2, True)
    inputs = torch.tensor([numbers], dtype=torch.int32)
    tape = record(layer, inputs)
    assert bool(torch.isfinite(tape.raw).all())
    found = clipped_sum(tape, [Term(tape.raw, torch.ones(1, 2).double(), 1.0)])
    assert found.shape == (2 * WIDTH + 2,) and bool(torch.isfinite(found).all())


@pytest.mark.parametrize("length", [1.0, math.nan, -math.inf])
def test_a_record_whose_length_is_none_adds_nothing(length):
    layer = layer_of(2, True)
    inputs, q = layer.inputs(places_of(3)), torch.ones(3, 2).double()
    inputs[1, -1] = torch.tensor([length], dtype=torch.float32).view(torch.int32)[0]
    tape, others = record(layer, inputs), record(layer, inputs[[0, 2]])
    found = clipped_sum(tape, [Term(tape.raw, q, 1.0)])
    torch.testing.assert_close(found, clipped_sum(others, [Term(others.raw, q[:2], 1.0)]))


def test_the_backward_pass_is_that_of_the_linear_layer_of_hats():
    layer = layer_of(3, True)
    places, linear = exact(places_of(7), layer), linear_of(layer)
    layer(layer.inputs(places)).sin().sum().backward()
    linear(numbers_of(layer, places)).sin().sum().backward()
    torch.testing.assert_close(layer.weight.grad, linear.weight.grad)
    torch.testing.assert_close(layer.bias.grad, linear.bias.grad)


def test_a_map_that_hides_all_of_a_record_loses_no_clip():
    """What is measured as 0 and what is added are sums of large numbers, which are rounded otherwise."""
    centre, matrix = torch.full((6,), SCALE / 2, dtype=torch.float64), 1e8 * torch.ones(6, 6)
    layer = HatLinear((2, 2, 2), SCALE, 1, centre=centre, matrix=matrix, dtype=torch.float64)
    layer.bias.requires_grad_(False)
    torch.manual_seed(0)
    for row in layer.inputs(torch.rand(50, 3)):
        tape = record(layer, row[None])
        q = torch.rand(1, 1).double()
        assert float(clipped_sum(tape, [Term(tape.raw, q, 1e-12)]).norm()) <= 1e-12 * float(q)


def test_one_record_moves_a_sum_of_many_behind_a_wide_map_by_its_own_part():
    """Before the map all parts are long, and nearly cancel: in float32 a record would move how the others round."""
    numbers = HatLinear((5, 5, 5), SCALE, 1, dtype=torch.float64)
    places = torch.full((3_000, 3), 0.3, dtype=torch.float64)
    hats = numbers.hats(numbers.inputs(places[:1]), torch.float64)[0]
    centre, matrix = (1 - 2**-16) * hats, 2.0**18 * torch.eye(len(hats), dtype=torch.float64)
    layer = HatLinear((5, 5, 5), SCALE, 1, centre=centre, matrix=matrix)
    layer.bias.requires_grad_(False)
    inputs, q = layer.inputs(places), torch.ones(len(places), 1).double()

    def total(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        tape = record(layer, rows)
        return clipped_sum(tape, [Term(tape.raw, weights, 0.01)])

    other = q.clone()
    other[-1] = -1.0
    moved = (total(inputs, q) - total(inputs, other)).norm()
    assert 0.01 < float(moved) <= 0.02
