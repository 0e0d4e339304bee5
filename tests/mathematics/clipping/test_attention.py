"""Attention and transformers are clipped as their naive Jacobians, though no hook sees torch's projections."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedsw.mathematics.clipping import Safety, Term, UnsupportedModule, clipped_sum, record
from fedsw.mathematics.clipping import tape as recording
from fedsw.mathematics.clipping.refusals import unrehearsed
from tests.mathematics.clipping.layers import encoder
from tests.mathematics.clipping.naive import autograd_sum, jacobian, naive_sum

pytestmark = pytest.mark.usefixtures("double")


class Crossed(nn.Module):
    """Queries from the first features of a site, keys from the middle ones, values from the last."""

    def __init__(self, attention, d, *, causal=False, padded=False, own=False, numbers=False, weights=None):
        super().__init__()
        self.attention, self.weights = attention, weights
        self.causal, self.padded, self.own, self.numbers = causal, padded, own, numbers
        self.last = nn.Linear(attention.embed_dim, d)

    def masks(self, x: Tensor) -> dict[str, Tensor]:
        n, sites = x.shape[:2]
        masks = {}
        if self.causal:
            masks["attn_mask"] = torch.ones(sites, sites, dtype=torch.bool).triu(1)
        if self.own:  # of every record and head, a function of the record; the first site is open to all
            far = ((x[:, :, None, 0] - x[:, None, :, 0]).abs() > 1) & (torch.arange(sites) > 0)
            masks["attn_mask"] = far.repeat_interleave(self.attention.num_heads, 0)
        if self.padded:
            masks["key_padding_mask"] = (x[:, :, 0] > 0.3) & (torch.arange(sites) > 0)
        if self.numbers:
            masks = {name: -0.7 * mask.double() for name, mask in masks.items()}
        return masks

    def forward(self, x: Tensor) -> Tensor:
        layer = self.attention
        q, k, v = x[..., : layer.embed_dim], x[..., -layer.kdim :], x[..., : layer.vdim]
        q, k, v = (x, x, x) if layer._qkv_same_embed_dim and x.shape[2] == layer.embed_dim else (q, k, v)
        options = {"need_weights": self.weights is not None, "average_attn_weights": self.weights != "apart"}
        mixed, weights = layer(q, k, v, is_causal=self.causal, **self.masks(x), **options)
        out = self.last(mixed.tanh().sum(1))
        return out if weights is None else out + weights.square().flatten(1).sum(1, keepdim=True)


def randomised(model, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    return model


def assert_exact(model, x, d, seed=0):
    """Gram matrices and clipped sums are those of Jacobians that torch's own forward gives, record by record."""
    q = torch.randn(len(x), d, generator=torch.Generator().manual_seed(seed))
    tape = record(model, x)
    torch.testing.assert_close(tape.raw.detach(), model(x).detach(), rtol=1e-10, atol=1e-12)
    jacobians = [jacobian(model, x, i) for i in range(len(x))]
    torch.testing.assert_close(tape.gram(tape.raw), torch.stack([j @ j.T for j in jacobians]), rtol=1e-8, atol=1e-10)
    norms = [float(torch.linalg.matrix_norm(j, ord=2)) for j in jacobians]
    for bound in (0.5 * min(norms), sum(norms) / len(norms)):
        tape = record(model, x)
        found = clipped_sum(tape, [Term(tape.raw, q, bound)], safety=Safety.off())
        torch.testing.assert_close(found, naive_sum(model, x, q, bound), rtol=1e-8, atol=1e-9)


@st.composite
def attentions(draw):
    """Any attention, with any masks, and records that fit it."""
    heads, size, n, d = (draw(st.integers(1, most)) for most in (3, 3, 4, 3))
    sites, wider, apart = draw(st.integers(1, 5)), draw(st.integers(0, 2)), draw(st.booleans())
    width = heads * size
    dims = {"kdim": draw(st.integers(1, width + wider)), "vdim": draw(st.integers(1, width + wider))} if apart else {}
    causal, own = draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    options = {name: draw(st.booleans()) for name in ("padded", "numbers")}
    seed = draw(st.integers(0, 10**6))
    torch.manual_seed(seed)
    dims |= {name: draw(st.booleans()) for name in ("bias", "add_bias_kv", "add_zero_attn")}
    layer = nn.MultiheadAttention(width, heads, batch_first=True, **dims)
    options["weights"] = draw(st.sampled_from([None, "averaged", "apart"]))
    if options["weights"] is None and options["numbers"]:
        causal = False  # the hint would be wrong: torch ignores a mask of numbers then
    model = randomised(Crossed(layer, d, causal=causal, own=own, **options), seed)
    return model.train(draw(st.booleans())), torch.randn(n, sites, width + wider), d


@settings(max_examples=40, deadline=None, derandomize=True)
@given(attentions())
def test_attention_is_clipped_exactly_as_its_naive_jacobian(case):
    assert_exact(*case)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    heads=st.integers(1, 2),
    size=st.integers(1, 3),
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    d=st.integers(1, 3),
    options=st.fixed_dictionaries(
        {
            "bias": st.booleans(),
            "norm_first": st.booleans(),
            "activation": st.sampled_from(["relu", "gelu", torch.tanh, nn.ELU()]),
        }
    ),
    training=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_a_transformer_is_clipped_exactly_as_its_naive_jacobian(heads, size, shape, d, options, training, seed):
    torch.manual_seed(seed)
    n, sites = shape
    width = heads * size
    model = Pooled(encoder(width, heads, **options), nn.Linear(width, d)).train(training)
    assert_exact(randomised(model, seed), torch.randn(n, sites, width), d, seed)


class Pooled(nn.Module):
    """A body on sequences, the mean over sites, and a last layer."""

    def __init__(self, body, last):
        super().__init__()
        self.body, self.last = body, last

    def forward(self, x):
        return self.last(self.body(x).mean(1))


class Decoded(nn.Module):
    """A sequence decoded against its own reverse."""

    def __init__(self, **options):
        super().__init__()
        self.decoder = nn.TransformerDecoderLayer(4, 2, 5, dropout=0.0, batch_first=True, **options)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.last(self.decoder(x, x.flip(1), tgt_mask=mask, tgt_is_causal=True).sum(1))


@pytest.mark.parametrize("norm_first", [True, False])
def test_decoders_and_stacks_of_layers_are_clipped_exactly(norm_first):
    torch.manual_seed(0)
    stack = nn.TransformerEncoder(encoder(4, 2, norm_first=norm_first), 2, enable_nested_tensor=False)
    for model in (Pooled(stack, nn.Linear(4, 2)), Decoded(norm_first=norm_first)):
        assert_exact(randomised(model, 1), torch.randn(3, 4, 4), 2)


PARTS = {
    "projections": lambda model: model.attention.in_proj_weight,
    "their bias": lambda model: model.attention.in_proj_bias,
    "output": lambda model: model.attention.out_proj.weight,
    "its bias": lambda model: model.attention.out_proj.bias,
}


@pytest.mark.parametrize("only", [True, False])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("training", [True, False])
def test_frozen_parts_of_attention_are_neither_measured_nor_released(part, only, training):
    torch.manual_seed(0)
    model = randomised(Crossed(nn.MultiheadAttention(4, 2, batch_first=True), 2), 0).train(training)
    model.requires_grad_(not only)
    PARTS[part](model).requires_grad_(only)
    assert_exact(model, torch.randn(4, 3, 4), 2)


def test_the_layer_is_as_it_was_when_its_pass_was_recorded():
    model = Crossed(nn.MultiheadAttention(4, 2, batch_first=True), 2)
    before = set(vars(model.attention))
    record(model, torch.randn(4, 3, 4))
    assert set(vars(model.attention)) == before and not model.attention._forward_pre_hooks
    with pytest.raises(UnsupportedModule, match="read the records as one sequence"):
        record(model.attention, *[torch.randn(4, 4)] * 3)
    assert set(vars(model.attention)) == before
    with pytest.raises(RuntimeError, match="stop"), recording.listening(model, 4):
        raise RuntimeError("stop")
    assert set(vars(model.attention)) == before


@pytest.mark.parametrize("weights", [None, "averaged"])
def test_a_record_with_every_site_masked_leaves_the_others_alone(weights):
    torch.manual_seed(0)
    model = Crossed(nn.MultiheadAttention(4, 2, batch_first=True), 2, padded=True, weights=weights)
    model.masks = lambda x: {"key_padding_mask": x[:, :, 0] > 5}
    x, q = torch.randn(4, 3, 4), torch.randn(4, 2)
    x[1, :, 0] = 6.0
    others = torch.tensor([0, 2, 3])
    tape = unrehearsed(model, x)
    found = clipped_sum(tape, [Term(tape.raw, q, 0.5)])
    alone = unrehearsed(model, x[others])
    expected = clipped_sum(alone, [Term(alone.raw, q[others], 0.5)])
    assert bool(found.isfinite().all())
    assert float((found - expected).norm()) <= 0.5 * float(q[1].norm())


def test_blocks_of_records_of_a_transformer_change_nothing(monkeypatch):
    torch.manual_seed(0)
    model, x, q = Pooled(encoder(4, 2), nn.Linear(4, 2)), torch.randn(7, 3, 4), torch.randn(7, 2)
    sums = []
    for rows in (7, 3):
        monkeypatch.setattr("fedsw.mathematics.clipping.tape._block_rows", lambda parameters, tensors, rows=rows: rows)
        tape = record(model, x)
        sums.append(clipped_sum(tape, [Term(tape.raw, q, 0.4)]))
    torch.testing.assert_close(*sums, rtol=1e-12, atol=1e-14)


def test_no_record_of_a_transformer_exceeds_its_bound_in_float32():
    torch.manual_seed(0)
    models = [Pooled(encoder(4, 2, norm_first=first), nn.Linear(4, 3)).float() for first in (False, True)]
    for seed in range(20):
        x, q = 10.0 ** (seed % 7) * torch.randn(1, 5, 4).float(), torch.randn(1, 3)
        tape = record(models[seed % 2], x)  # each is tried on made-up records once
        total = clipped_sum(tape, [Term(tape.raw, q, 0.1)])
        assert 0.05 * float(q.norm()) * 0.1 < float(total.norm()) <= 0.1 * float(q.norm())


class Written(nn.Module):
    """What the refusals suggest: attention of Linear layers and a function of torch."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(4, 4) for _ in range(4))
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        q, k, v = (each(x).unflatten(-1, (2, 2)).transpose(1, 2) for each in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.last(self.o(mixed).tanh().sum(1))


def test_attention_of_linear_layers_as_the_refusals_suggest_it_is_exact():
    torch.manual_seed(0)
    assert_exact(randomised(Written(), 0), torch.randn(4, 3, 4), 2)


def test_unclipped_contributions_of_a_transformer_are_its_plain_gradient():
    torch.manual_seed(0)
    model, x, q = Pooled(encoder(4, 2), nn.Linear(4, 2)), torch.randn(5, 3, 4), torch.randn(5, 2)
    tape = record(model, x)
    found = clipped_sum(tape, [Term(tape.raw, q, 1e9)], safety=Safety.off())
    torch.testing.assert_close(found, autograd_sum(model, model(x), q), rtol=1e-10, atol=1e-12)
