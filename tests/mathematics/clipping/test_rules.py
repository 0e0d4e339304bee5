"""Without safety margins, in float64, the engine is the naive loop over samples, for every layer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsw.mathematics.clipping import Safety, Term, clipped_sum, record
from fedsw.mathematics.clipping.rules import RULES, rule
from tests.mathematics.clipping.layers import NAMES, make
from tests.mathematics.clipping.naive import Flat, double_by_default, jacobian, naive_sum
from tests.pairwise import pairwise

pytestmark = pytest.mark.usefixtures("double")


def relative_error(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(("name", "sizes", "bias"), pairwise(NAMES, ((1, 1), (5, 2), (3, 4)), (True, False)))
def test_clipped_sums_equal_the_loop_over_samples(name, sizes, bias):
    n, d = sizes
    model, x = make(name, d, bias, n)
    q = torch.randn(n, d)
    norms = [float(torch.linalg.matrix_norm(jacobian(model, x, i), ord=2)) for i in range(n)]
    for bound in (0.3 * min(norms), 0.8 * max(norms), 2 * max(norms)):
        for mode in ("spectral", "row"):
            tape = record(model, x)
            found = clipped_sum(tape, [Term(tape.raw, q, bound, mode)], safety=Safety.off())
            assert relative_error(found, naive_sum(model, x, q, bound, mode)) < 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_gram_matrices_equal_those_of_materialised_jacobians(name):
    model, x = make(name, 3, True, 4)
    tape = record(model, x)
    expected = torch.stack([(j := jacobian(model, x, i)) @ j.T for i in range(4)])
    torch.testing.assert_close(tape.gram(tape.raw), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("frozen", ["weight", "bias"])
@pytest.mark.parametrize("name", ["linear", "linear-long-sequence", "conv2d", "layer-norm", "group-norm"])
def test_frozen_parameters_are_neither_measured_nor_released(name, frozen):
    model, x = make(name, 2, True, 4)
    for layer in model.modules():
        if type(layer) in RULES:
            getattr(layer, frozen).requires_grad_(False)
    q = torch.randn(4, 2)
    tape = record(model, x)
    found = clipped_sum(tape, [Term(tape.raw, q, 0.5)], safety=Safety.off())
    assert found.shape == (sum(p.numel() for p in model.parameters() if p.requires_grad),)
    assert relative_error(found, naive_sum(model, x, q, 0.5)) < 1e-9


def test_outputs_losses_and_latents_share_one_tape():
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(4, 2), nn.Linear(2, 4)

        def forward(self, x):
            latent = self.encoder(x)
            return latent, self.decoder(latent.tanh())

    torch.manual_seed(0)
    model, x, q = Autoencoder(), torch.randn(6, 4), torch.randn(6, 2)
    weight = torch.full((6,), 0.3)
    tape = record(model, x)
    latent, rebuilt = tape.raw
    loss = (rebuilt - x).square().sum(1)
    found = clipped_sum(tape, [Term(latent.sigmoid(), q, 0.2), Term(loss, weight, 1.5)], safety=Safety.off())
    expected = naive_sum(model, x, q, 0.2, head=lambda out, i: out[0].sigmoid())
    expected = expected + naive_sum(model, x, weight, 1.5, head=lambda out, i: (out[1] - x[i]).square().sum())
    assert relative_error(found, expected) < 1e-9


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm_is_measured_with_the_epsilon_of_its_type(eps):
    """On records near 0, where the epsilon of float32 decides, and that of float64 would be another layer."""
    torch.manual_seed(0)
    model, x, q = nn.RMSNorm(3, eps=eps).float(), 1e-4 * torch.randn(4, 3).float(), torch.randn(4, 3)
    tape = record(model, x)
    found = clipped_sum(tape, [Term(tape.raw, q, 1e9)], safety=Safety.off())
    assert relative_error(found, naive_sum(model, x, q, 1e9)) < 1e-6


def test_unclipped_contributions_are_the_plain_gradient():
    model, x = make("conv2d", 2, True, 5)
    tape = record(model, x)
    loss = tape.raw.square().sum(1)
    found = clipped_sum(tape, [Term(loss, torch.ones(5), 1e9)], safety=Safety.off())
    plain = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    assert relative_error(found, torch.cat([each.reshape(-1) for each in plain])) < 1e-12


def test_the_result_does_not_depend_on_how_records_are_blocked(monkeypatch):
    model, x = make("conv1d-dilated-grouped", 2, True, 7)
    q = torch.randn(7, 2)

    def run():
        tape = record(model, x)
        return clipped_sum(tape, [Term(tape.raw, q, 0.4)]), tape.raw.detach()

    whole, outputs = run()
    monkeypatch.setattr("fedsw.mathematics.clipping.tape._block_rows", lambda module, tensors: 3)
    monkeypatch.setattr(rule, "TILE", 100)
    blocked, blocked_outputs = run()
    torch.testing.assert_close(blocked, whole, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(blocked_outputs, outputs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_without_records_contributes_zero(name):
    model, x = make(name, 2, True, 2)
    tape = record(model, x[:0])
    assert tape.raw.shape == (0, 2)
    total = clipped_sum(tape, [Term(tape.raw, torch.zeros(0, 2), 1.0)])
    assert torch.equal(total, torch.zeros(tape.size))


def test_recording_works_where_gradients_are_off():
    model, x = make("linear", 2, True, 3)
    with torch.no_grad():
        tape = record(model, x)
        off = clipped_sum(tape, [Term(tape.raw, torch.ones(3, 2), 0.5)])
    tape = record(model, x)
    assert torch.equal(off, clipped_sum(tape, [Term(tape.raw, torch.ones(3, 2), 0.5)]))


def test_a_layer_that_no_head_reaches_gets_zero():
    class TwoHeads(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(3, 1), nn.Linear(3, 1)

        def forward(self, x):
            return self.left(x), self.right(x)

    model = TwoHeads()
    tape = record(model, torch.randn(4, 3))
    found = clipped_sum(tape, [Term(tape.raw[0], torch.ones(4, 1), 1.0)])
    assert bool(found[:4].any()) and not bool(found[4:].any())


def test_in_place_activations_after_a_layer_are_measured_where_the_layer_ended():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 2))
    x, q = torch.randn(5, 4), torch.randn(5, 2)
    tape = record(model, x)
    found = clipped_sum(tape, [Term(tape.raw, q, 0.5)], safety=Safety.off())
    assert relative_error(found, naive_sum(model, x, q, 0.5)) < 1e-9


def test_forward_hooks_of_the_user_are_part_of_the_function():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].register_forward_hook(lambda layer, args, output: output.tanh() * 2)
    x, q = torch.randn(5, 4), torch.randn(5, 2)
    tape = record(model, x)
    found = clipped_sum(tape, [Term(tape.raw, q, 0.5)], safety=Safety.off())
    assert relative_error(found, naive_sum(model, x, q, 0.5)) < 1e-9


@st.composite
def convolutions(draw):
    """Any grouped convolution of one or two dimensions, transposed or not, with an input that fits it."""
    axes, transposed, groups = draw(st.integers(1, 2)), draw(st.booleans()), draw(st.integers(1, 2))

    def each(low, high):
        return tuple(draw(st.integers(low, high)) for _ in range(axes))

    stride, dilation = each(1, 3), each(1, 2)
    options = {"stride": stride, "dilation": dilation, "padding": each(0, 2), "groups": groups}
    options["bias"] = draw(st.booleans())
    if transposed:
        options["output_padding"] = tuple(
            draw(st.integers(0, max(s, e) - 1)) for s, e in zip(stride, dilation, strict=True)
        )
    kinds = {
        (1, False): nn.Conv1d,
        (2, False): nn.Conv2d,
        (1, True): nn.ConvTranspose1d,
        (2, True): nn.ConvTranspose2d,
    }
    channels = (groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2)))
    torch.manual_seed(draw(st.integers(0, 99)))
    layer = kinds[axes, transposed](*channels, each(1, 3), **options)
    return layer, torch.randn(2, channels[0], *each(5, 7))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(convolutions())
def test_any_convolution_geometry_equals_the_loop(case):
    with double_by_default():
        layer, x = case[0].double(), case[1].double()
        if any(size < 1 for size in _size(layer, x)):
            return
        width = layer(x)[:1].numel()
        model = Flat(layer, nn.Tanh(), nn.Flatten(), nn.Linear(width, 2))
        q = torch.randn(2, 2)
        tape = record(model, x)
        found = clipped_sum(tape, [Term(tape.raw, q, 0.3)], safety=Safety.off())
        assert relative_error(found, naive_sum(model, x, q, 0.3)) < 1e-9


def _size(layer, x):
    for axis in range(len(layer.stride)):
        length, reach = x.shape[2 + axis], layer.dilation[axis] * (layer.kernel_size[axis] - 1)
        if layer.transposed:
            yield ((length - 1) * layer.stride[axis] - 2 * layer.padding[axis] + reach + layer.output_padding[axis])
        else:
            yield length + 2 * layer.padding[axis] - reach


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
def test_kernel_and_small_jacobian_measure_the_same(sites, wide, narrow, d, blocks):
    torch.manual_seed(sites)
    shared = torch.randn(3, blocks, sites, wide, dtype=torch.float64)
    varying = [torch.randn(3, blocks, sites, narrow, dtype=torch.float64) for _ in range(d)]
    one = rule.outer_gram(shared, varying, kernel=True)
    other = rule.outer_gram(shared, varying, kernel=False)
    rows = torch.stack([torch.einsum("nbto,nbtp->nbop", v, shared).flatten(1) for v in varying], 1)
    torch.testing.assert_close(one, rows @ rows.mT, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(other, rows @ rows.mT, rtol=1e-9, atol=1e-10)


def test_both_ways_of_measuring_sums_over_sites_are_taken():
    assert rule.outer_cost(sites=2, shared=50, varying=50, d=2)[0]
    assert not rule.outer_cost(sites=1000, shared=9, varying=1, d=2)[0]


def test_products_are_formed_where_sites_are_many_and_layers_narrow():
    assert rule.forming_is_cheaper(sites=196, shared=72, varying=16, d=6, copied=True)
    assert not rule.forming_is_cheaper(sites=2, shared=500, varying=500, d=6, copied=False)
