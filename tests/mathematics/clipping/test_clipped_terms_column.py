"""A module that returns one column per record: its layers are measured once, heads by the chain rule."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from fedsw.mathematics.clipping import (
    Safety,
    Term,
    UnsupportedModule,
    clip_cotangents,
    clipped_sum,
    record,
)
from fedsw.mathematics.clipping import (
    tape as recording,
)
from tests.mathematics.clipping.naive import Flat, jacobian, naive_sum, weighed_sum

HEADS = {
    "raw": lambda raw: raw,
    "probability": lambda raw: torch.sigmoid(raw) - 0.5,
    "loss": lambda raw: nn.functional.softplus(raw[:, 0]),
    "two classes": lambda raw: torch.softmax(torch.cat([raw, 2 * raw.tanh()], 1), 1),
    "three powers": lambda raw: torch.cat([raw, raw.square(), raw**3], 1),
}


class WithLatent(nn.Module):
    """A latent without gradient beside the one column."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, x):
        return x.detach().cumsum(1), self.layers(x)


SINGLE = ("raw", "probability", "loss")  # of one number per record: all clipped at once

SCALES = (0.0, 1e-30, 1e-3, 1.0, 1e6, 1e30, 1e200, math.inf, math.nan)

MODELS = {
    "logistic": lambda: nn.Linear(4, 1),
    "wrapped": lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 1, bias=False))),
    "deep": lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.ELU(), nn.Linear(6, 1)),
    "activated": lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1), nn.Softplus()),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), Flat(nn.Conv1d(2, 1, 2))),
}


def passed(values, backward):
    """The values unchanged; their gradient is what `backward` makes of it."""

    class Passed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return backward(gradient)

    return Passed.apply(values)


def _relative(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("rows", [100, 3])
@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("mode", ["spectral", "row"])
@pytest.mark.parametrize("heads", [tuple(HEADS), SINGLE, SINGLE[1:2]], ids=["all", "single", "one"])
def test_clipped_sums_of_several_heads_equal_the_loop(model_name, mode, rows, heads, monkeypatch):
    monkeypatch.setattr(recording, "_block_rows", lambda module, tensors: rows)
    torch.manual_seed(0)
    model, x = MODELS[model_name]().double(), torch.randn(7, 4, dtype=torch.float64)
    tape = record(model, x)
    terms, expected = [], 0.0
    for head in map(HEADS.get, heads):
        values = head(tape.raw)
        q = torch.randn_like(values)
        norms = sorted(float(jacobian(model, x, i, lambda out, i: head(out)).norm()) for i in range(7))  # noqa: B023
        bound = norms[3]
        terms.append(Term(values, q, bound, mode))
        expected = expected + naive_sum(model, x, q, bound, mode, head=lambda out, i: head(out))  # noqa: B023
    assert _relative(clipped_sum(tape, terms, safety=Safety.off()), expected) < 1e-9


def test_a_latent_without_gradient_beside_the_column_changes_nothing():
    torch.manual_seed(0)
    model, x = WithLatent().double(), torch.randn(6, 4, dtype=torch.float64)
    tape = record(model, x)
    q = torch.randn(6, 1, dtype=torch.float64)
    found = clipped_sum(tape, [Term(tape.raw[1].sigmoid(), q, 0.05)], safety=Safety.off())
    assert _relative(found, naive_sum(model, x, q, 0.05, head=lambda out, i: out[1].sigmoid())) < 1e-9


def test_the_layers_are_walked_once_for_all_heads(caplog):
    def counted(gradient):
        logging.getLogger().warning("walked")  # what a function closes over is put back after the pass
        return gradient

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 1)

        def forward(self, x):
            return self.last(passed(self.first(x), counted))

    model = Watched()
    record(model, torch.randn(5, 3))  # rehearsed once, which walks too
    caplog.clear()
    tape = record(model, torch.randn(5, 3))
    heads = [tape.raw.sigmoid(), tape.raw.tanh(), torch.cat([tape.raw, tape.raw.exp()], 1)]
    clipped_sum(tape, [Term(head, torch.ones_like(head), 1.0) for head in heads])
    assert len(caplog.records) == 1  # what was measured is weighed and added


def test_a_hook_that_changes_the_gradient_of_the_only_layers_output_is_measured():
    """The backprop of a layer whose output is the module's is the cotangent itself, unless a hook stands between."""

    class Hooked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x):
            out = self.layer(x)
            out.register_hook(lambda gradient: 3 * gradient)
            return out

    torch.manual_seed(0)
    model, x = Hooked().double(), torch.randn(4, 3, dtype=torch.float64)
    q = torch.ones(4, 1, dtype=torch.float64)
    tape = record(model, x)
    for bound in (1.0, 1e9):
        found = clipped_sum(tape, [Term(tape.raw, q, bound)], safety=Safety.off())
        assert _relative(found, naive_sum(model, x, q, bound)) < 1e-9


@pytest.mark.parametrize("ratio", [10.0, 1e4])
@pytest.mark.parametrize("seed", range(5))
def test_no_record_leaves_above_its_bound_in_float32(seed, ratio):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    x = torch.randn(1, 8)
    for head in HEADS.values():
        tape = record(model, x)
        values = head(tape.raw)
        gram = tape.gram(values)
        bound = float(torch.linalg.eigvalsh(gram[0])[-1]) ** 0.5 / ratio
        for _ in range(3):
            q = torch.randn_like(values)
            norm = float(clipped_sum(tape, [Term(values, q, bound)]).norm())
            assert norm <= bound * float(q.double().norm())


def _head_by_head(tape, terms):
    clipped = [clip_cotangents(tape.gram(each.head), each.cotangents, each.bound, mode=each.mode) for each in terms]
    finite = [torch.where(q.isfinite(), q, 0.0) for q in clipped]
    return weighed_sum(tape, [(term.head, q) for term, q in zip(terms, finite, strict=True)])


@given(
    seed=st.integers(0, 2**20),
    scales=st.lists(st.sampled_from(SCALES), min_size=5, max_size=5),
    bounds=st.lists(st.sampled_from([1e-20, 0.1, 3.0, math.inf]), min_size=3, max_size=3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_clipping_all_heads_at_once_is_clipping_one_after_the_other(seed, scales, bounds, dtype):
    """Values that overflow, vanish or are not finite included, in the records and in the heads."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).to(dtype)
    spoil = torch.tensor(scales, dtype=dtype)
    x = torch.randn(5, 4, dtype=dtype) * spoil.roll(1)[:, None]
    tape = record(model, x)

    def heads(raw, rows=slice(None)):
        return [raw[:, 0] * spoil[rows], raw.sigmoid() + spoil.roll(2)[rows, None], raw.square()]

    terms = [Term(head, torch.randn_like(head), bound) for head, bound in zip(heads(tape.raw), bounds, strict=True)]
    expected = _head_by_head(tape, terms)

    def part(place):
        rows = slice(place, place + 1)
        own = record(model, x[rows])
        pairs = zip(heads(own.raw, rows), terms, strict=True)
        return _head_by_head(own, [Term(head, term.cotangents[rows], term.bound) for head, term in pairs])

    cancelled = 1e-6 * max(float(part(place).abs().max()) for place in range(5))  # records may cancel, in float32
    torch.testing.assert_close(clipped_sum(tape, terms), expected, rtol=1e-5, atol=1e-30 + cancelled)


@pytest.mark.parametrize("heads", [1, 2])
def test_what_would_escape_the_clip_is_refused_for_one_column_too(heads):
    def terms(head):
        return [Term(each, torch.ones_like(each), 1.0) for each in [tape.raw.tanh(), head][2 - heads :]]

    model, x = nn.Linear(3, 1), torch.randn(4, 3)
    tape = record(model, x)
    with pytest.raises(ValueError, match=r"does not depend on tape\.raw"):
        clipped_sum(tape, terms(tape.raw.detach().sigmoid()))
    with pytest.raises(UnsupportedModule, match="'weight' reaches the output outside"):
        clipped_sum(tape, terms(tape.raw * model.weight.sum()))
    x.zero_()
    with pytest.raises(UnsupportedModule, match="input was overwritten"):
        clipped_sum(tape, terms(tape.raw.sigmoid()))


def test_a_module_of_several_columns_has_no_slopes():
    tape = record(nn.Linear(3, 2), torch.randn(4, 3))
    limits = torch.ones(4, dtype=torch.float64)
    for refused in (
        lambda: tape.slopes([tape.raw[:, 0]]),
        lambda: tape.clipped_column(lambda rows, squares: (squares, squares > 0), limits, [4]),
    ):
        with pytest.raises(ValueError, match=r"more than one number per record.*gram and clipped"):
            refused()


def test_a_head_that_no_gradient_reaches_has_slope_zero():
    torch.manual_seed(0)
    tape = record(nn.Linear(3, 1), torch.randn(4, 3))
    heads = [passed(tape.raw, lambda gradient: None), tape.raw.sigmoid()]
    assert not tape.slopes(heads)[0].any()
    both = clipped_sum(tape, [Term(head, torch.ones_like(head), 0.1) for head in heads])
    torch.testing.assert_close(both, clipped_sum(tape, [Term(heads[1], torch.ones(4, 1), 0.1)]))


@pytest.mark.parametrize("fault", ["head", "slope", "cotangent"])
def test_a_record_that_is_not_finite_in_one_head_is_removed_from_all(fault):
    torch.manual_seed(0)
    model, x = MODELS["deep"]().double(), torch.randn(4, 4, dtype=torch.float64)
    bad = torch.tensor([0.0, 0.0, torch.inf, 0.0], dtype=torch.float64)
    others = [0, 1, 3]

    def contribution(rows, spoiled):
        tape = record(model, x[rows])
        first, second = tape.raw.sigmoid(), tape.raw[:, 0].tanh()
        q = torch.ones(len(rows), 1, dtype=torch.float64)
        if spoiled == "head":
            second = second + bad[rows]
        elif spoiled == "slope":
            second = second * (1 + bad[rows])
        elif spoiled == "cotangent":
            q = q + bad[rows][:, None]
        return clipped_sum(tape, [Term(first, q, 1.0), Term(second, torch.ones(len(rows)), 1.0)])

    expected = contribution(others, None)
    if fault == "cotangent":  # only its own term loses the record
        tape = record(model, x[2:3])
        expected = expected + clipped_sum(tape, [Term(tape.raw[:, 0].tanh(), torch.ones(1), 1.0)])
    torch.testing.assert_close(contribution([0, 1, 2, 3], fault), expected)


class Checkpointed(nn.Module):
    """Its first layers run a second time, recorded, in the middle of a backward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.Linear(5, 1)

    def forward(self, x):
        return self.last(checkpoint(self.first, x, use_reentrant=False))


class Recorded(nn.Module):
    """An activation whose backward pass records its forward pass anew and pulls back through it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 1)

    def forward(self, x):
        class Tanh(torch.autograd.Function):
            @staticmethod
            def forward(ctx, values):
                ctx.save_for_backward(values)
                return values.tanh()

            @staticmethod
            def backward(ctx, gradient):
                with torch.enable_grad():
                    again = ctx.saved_tensors[0].detach().requires_grad_()
                    return torch.autograd.grad(again.tanh(), again, gradient)[0]

        return self.last(Tanh.apply(self.first(x)))


@pytest.mark.parametrize("make", [Checkpointed, Recorded])
def test_a_backward_pass_may_record_a_forward_pass(make):
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(6, 4, dtype=torch.float64)
    layers = [*model.first, model.last] if make is Checkpointed else [model.first, nn.Tanh(), model.last]
    plain, q = nn.Sequential(*layers), torch.randn(6, 1, dtype=torch.float64)

    def run(module):
        tape = record(module, x)
        heads = (tape.raw.sigmoid(), tape.raw[:, 0].tanh())
        return clipped_sum(tape, [Term(head, q.reshape(head.shape), 0.3) for head in heads], safety=Safety.off())

    assert _relative(run(model), run(plain)) < 1e-12


def test_what_is_returned_can_be_trained_with():
    """Measured without autograd's notes, returned as ordinary tensors: they may enter a graph of the caller."""
    tape = record(nn.Linear(3, 1), torch.randn(4, 3))
    head = tape.raw.sigmoid()
    returned = [clipped_sum(tape, [Term(head, torch.ones_like(head), 1.0)])]
    returned += [tape.gram(head), tape.slopes([head])]
    for values in returned:
        weight = torch.ones_like(values, requires_grad=True)
        (weight * values).sum().backward()
        assert torch.equal(weight.grad, values)
