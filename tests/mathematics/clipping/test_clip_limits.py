"""What leaves is measured as it leaves: no backward pass, head or cancellation lets a record above its limit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fedsw.data.sources import Shape
from fedsw.learning import models
from fedsw.learning.tasks import Classification
from fedsw.learning.tasks.task import Inputs
from fedsw.mathematics.clipping import Safety, Term, clipped_sum, record
from fedsw.mathematics.clipping.refusals import unrehearsed


def weight(model, x, q, bound=1.0, head=lambda raw: raw):
    """How much one record's part of the sum weighs, relative to bound * ||q||."""
    assert len(x) == 1
    tape = record(model, x)
    total = clipped_sum(tape, [Term(head(tape.raw), q, bound)])
    return float(total.norm()) / (bound * float(q.norm()))


def worst(model, records, width, bound=1.0, head=lambda raw: raw, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return max(
        weight(model, x[None], torch.randn(1, width, dtype=torch.float64, generator=generator), bound, head)
        for x in records
    )


@pytest.mark.parametrize("classes", [3, 10])
@pytest.mark.parametrize("size", [1e4, 1e6, 1e7, 1e8, 1e15, 1e30])
def test_a_saturated_softmax_of_large_features_stays_below_the_bound(classes, size):
    generator = torch.Generator().manual_seed(classes)
    model = models.logistic(8, classes, seed=1)
    records = size * torch.randn(60, 8, generator=generator)
    given = Inputs(records, torch.zeros(60), Shape(8, ("a", "b"), classes, 0))
    for bound in (1.0, 0.1):
        found = worst(model, records, classes, bound, lambda raw: Classification().outputs(raw, given))
        assert found <= 1.0


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    exponent=st.floats(0, 12),
    hidden=st.sampled_from([(1, 3), (2, 2), (8, 8)]),
    activation=st.sampled_from(["relu", "tanh", "elu"]),
)
def test_no_record_of_a_network_with_a_softmax_exceeds_the_bound(seed, exponent, hidden, activation):
    model = models.mlp(4, hidden, 3, activation=activation, seed=seed)
    records = 10.0**exponent * torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    head = lambda raw: torch.softmax(raw, -1)  # noqa: E731
    assert worst(model, records, 3, 0.3, head, seed) <= 1.0


class Clamped(nn.Module):
    """A tensor hook that clamps gradients: a common trick, and no linear backward pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        z = self.layer(x)
        if z.requires_grad:
            z.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return z * 1000.0


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return z.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.sign()


class Signed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return Sign.apply(self.layer(x))


class Coarse(nn.Module):
    """Half precision inside a custom forward."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.layer(x)).to(torch.bfloat16).float()) * 30.0


@pytest.mark.parametrize("kind", [Clamped, Signed, Coarse])
@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 1e3])
def test_a_backward_pass_that_is_not_linear_loses_no_clip(kind, size):
    torch.manual_seed(0)
    model = kind()
    for _ in range(20):
        x, q = torch.randn(1, 3), size * torch.randn(1, 2, dtype=torch.float64)
        assert weight(model, x, q) <= 1.0


@pytest.mark.parametrize("size", [1e8, 1e10, 1e12])
def test_cancellation_inside_a_layer_loses_no_clip(size):
    for seed in range(60):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2), nn.Linear(2, 2))
        with torch.no_grad():
            model[0].weight[:, 2] = 0.0
        x, q = torch.randn(1, 3), torch.randn(1, 2, dtype=torch.float64)
        x[0, 2] = size
        assert weight(model, x, q) <= 1.0


class Difference(nn.Module):
    """First minus last site of a layer, in its first d outputs."""

    def __init__(self, layer, d, axis):
        super().__init__()
        self.layer, self.d, self.axis = layer, d, axis

    def forward(self, x):
        y = self.layer(x)
        y = y if self.axis == 1 else y.flatten(2).transpose(1, 2)
        return (y[:, 0] - y[:, -1])[:, : self.d]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("size", [1.0, 1e-3])
@pytest.mark.parametrize(("big", "own"), [(1e10, 90.0), (1e12, 8000.0)])
def test_a_jacobian_that_its_kernel_cannot_see_is_cut_all_the_same(big, own, size, d, dtype, way):
    model = Difference(nn.Linear(64, 64, bias=False), d, 1).to(dtype)
    x = torch.zeros(1, 2, 64, dtype=dtype)
    x[0, :, 0] = big
    x[0, 0, 1] = own  # ||J|| is this; the kernel of the sites cancels at its square over 10^20
    assert weight(model, x, size * torch.ones(1, d, dtype=torch.float64)) <= 1.0


def damage(model, honest, spoiled):
    """How far a sum over all records is from the sums over the honest ones and over the spoiled one together."""
    sums = []
    for records in (torch.cat([honest, spoiled]), honest, spoiled):
        tape = record(model, records)
        q = torch.ones(len(records), 1, dtype=torch.float64)
        sums.append(clipped_sum(tape, [Term(tape.raw, q, 1.0)]))
    assert float(sums[2].norm()) <= 1.0
    return float((sums[0] - sums[1] - sums[2]).norm())


@pytest.mark.parametrize("width", [1, 5000])
def test_a_record_whose_sites_cancel_leaves_the_other_records_of_a_sequence_alone(width, way):
    torch.manual_seed(0)
    model = Difference(nn.Linear(width, 1), 1, 1)
    honest = torch.randn(63, 2, width) / width**0.5
    spoiled = torch.full((1, 2, width), 1e30 / width)
    assert damage(model, honest, spoiled) <= 1e-4


@pytest.mark.parametrize("dimensions", [1, 2])
@pytest.mark.parametrize("size", [1e8, 1e15])
def test_a_record_whose_sites_cancel_leaves_the_other_records_of_a_convolution_alone(dimensions, size, way):
    torch.manual_seed(0)
    layer = (nn.Conv1d, nn.Conv2d)[dimensions - 1](8, 8, 3)
    shape = (8, *[6] * dimensions)
    model = Difference(layer, 1, 2)
    honest = torch.randn(63, *shape)
    spoiled = torch.full((1, *shape), size)
    assert damage(model, honest, spoiled) <= 1e-4


class Weighted(nn.Module):
    """sum_t w_t e(i_t) of an embedding, its weights w taken from what the last column of indices encodes."""

    def __init__(self, weights):
        super().__init__()
        self.layer, self.weights = nn.Embedding(3, 1), weights

    def forward(self, index):
        return (self.layer(index).squeeze(2) * self.weights[: len(index)]).sum(1, keepdim=True)


@pytest.mark.parametrize("n", [64, 4096])
def test_a_record_whose_indices_cancel_leaves_the_other_records_of_an_embedding_alone(n):
    weights = torch.full((n, 2), 0.5)
    weights[-1] = torch.tensor([1e30, -1e30])
    index = torch.zeros((n, 2), dtype=torch.int64)
    tape = record(Weighted(weights), index)
    total = clipped_sum(tape, [Term(tape.raw, torch.ones(n, 1, dtype=torch.float64), 1.0)])
    assert abs(float(total[0]) - (n - 1)) <= 1.0001


def test_one_record_moves_a_sum_of_many_embeddings_by_its_own_part(monkeypatch):
    n, index = 170_000, torch.zeros((170_000, 1), dtype=torch.int64)
    monkeypatch.setattr("fedsw.mathematics.clipping.tape._block_rows", lambda parameters, tensors: n)
    for seed in range(5):
        weights = 0.7 + 0.3 * torch.rand((n, 1), generator=torch.Generator().manual_seed(seed))
        sums = []
        for own in (1.0, -1.0):
            weights[5] = own
            tape = unrehearsed(Weighted(weights.clone()), index)  # whose rows differ by their place
            sums.append(clipped_sum(tape, [Term(tape.raw, torch.ones(n, 1, dtype=torch.float64), 2.0)]))
        assert float((sums[0] - sums[1]).norm()) == pytest.approx(2.0, abs=1e-4)


@pytest.mark.parametrize("safety", [Safety(), Safety.off()])
def test_a_record_within_its_limit_is_not_touched(safety):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, q = torch.randn(30, 4).double(), torch.randn(30, 2).double()
    tape = record(model, x)
    total = clipped_sum(tape, [Term(tape.raw, q, 1e3)], safety=safety)
    plain = torch.autograd.grad((model(x) * q).sum(), list(model.parameters()))
    torch.testing.assert_close(total, torch.cat([each.reshape(-1) for each in plain]), rtol=1e-12, atol=1e-12)


class Ends(nn.Module):
    """Sum of the last states of packed sequences, as long as the last number of their first time says."""

    def __init__(self):
        super().__init__()
        self.layer = nn.RNN(64, 256, batch_first=True)
        for parameter in self.layer.parameters():
            nn.init.zeros_(parameter)
        nn.init.eye_(self.layer.weight_hh_l0)

    def forward(self, x):
        packed = pack_padded_sequence(x[..., :-1], x[:, 0, -1].long(), batch_first=True, enforce_sorted=False)
        return self.layer(packed)[1][0].sum(1, keepdim=True)


class Bags(nn.Module):
    """Weighed sum of one row of a table, with as many weights as the last number says."""

    def __init__(self):
        super().__init__()
        self.layer = nn.EmbeddingBag(2, 64, mode="sum")

    def forward(self, x):
        lengths = x[:, 0, -1].long()
        weights = x[:, :, 0][torch.arange(x.shape[1]) < lengths[:, None]]
        starts = lengths.cumsum(0) - lengths
        return self.layer(torch.zeros(len(weights), dtype=torch.int64), starts, weights).sum(1, keepdim=True)


class Tagged(nn.Module):
    """A layer on all times of packed sequences of which none is trained, and the sum over a record's own."""

    def __init__(self, layer):
        super().__init__()
        self.frozen, self.layer = nn.RNN(64, 64, nonlinearity="relu", batch_first=True).requires_grad_(False), layer
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x):
        lengths = x[:, 0, -1].long()
        packed = pack_padded_sequence(x[..., :-1], lengths, batch_first=True, enforce_sorted=False)
        times = pad_packed_sequence(self.frozen(packed)[0], batch_first=True)[0].shape[1]
        filled = x[:, :times, :-1]
        out = self.layer(filled.mT).mT if isinstance(self.layer, nn.Conv1d) else self.layer(filled)
        return (out * (torch.arange(times) < lengths[:, None]).unsqueeze(2)).sum((1, 2)).unsqueeze(1)


CASES = {
    "recurrence": (Ends, 64, 16),
    "bags": (Bags, 1, 300),
    "above a frozen recurrence": (lambda: Tagged(nn.Linear(64, 1024)), 64, 16),
    "a convolution above it": (lambda: Tagged(nn.Conv1d(64, 64, 1)), 64, 300),
}


@pytest.mark.parametrize("apart", [2.0**-16, 2.0**-22])
@pytest.mark.parametrize(("made", "width", "longest"), CASES.values(), ids=CASES)
def test_how_a_record_is_cut_does_not_follow_from_how_long_another_is(made, width, longest, apart):
    model, short = made(), torch.zeros(40, longest, width + 1)
    short[:-1, 0, :-1], short[:-1, 1, :-1] = 2.0**33, -(2.0**33) * (1 - apart)
    short[:, 0, -1] = 2
    long = short.clone()
    long[-1, 0, -1] = longest
    tapes = [unrehearsed(model, x) for x in (short, long)]
    sums = [clipped_sum(tape, [Term(tape.raw, torch.ones(40, 1), 1.0)]) for tape in tapes]
    assert sums[0].norm() > 1
    torch.testing.assert_close(*sums, rtol=0, atol=1e-9)
