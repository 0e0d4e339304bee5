"""Attention that would lose the clip is refused by name, with the remedy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from fedsw.mathematics.clipping import UnsupportedModule, check, record
from fedsw.mathematics.clipping.refusals import unrehearsed
from tests.mathematics.clipping.layers import encoder


def _attention(**options):
    return nn.MultiheadAttention(4, 2, **{"batch_first": True, **options})


def _patched():
    layer = _attention()
    layer.forward = lambda *given: given
    return layer


def _other_output():
    layer = _attention()
    layer.out_proj = OwnLinear(4, 4).requires_grad_(False)
    return layer


class OwnLinear(nn.Linear):
    pass


class OwnAttention(nn.MultiheadAttention):
    pass


REFUSED = {
    "with another forward": (_patched, "forward of its own.*use MultiheadAttention as it is"),
    "with another output": (_other_output, "out_proj of type OwnLinear.*use Linear itself"),
    "of one's own": (
        lambda: OwnAttention(4, 2, batch_first=True),
        "use MultiheadAttention itself, or Linear projections and torch.nn.functional.scaled_dot_product",
    ),
    "with dropout": (lambda: _attention(dropout=0.1), r"random in training mode.*set dropout=0\.0"),
    "frozen with dropout": (
        lambda: _attention(dropout=0.1).requires_grad_(False),
        r"random in training mode.*call \.eval\(\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_attention_that_the_clip_would_miss_is_refused_before_any_data(name):
    build, message = REFUSED[name]
    with pytest.raises(UnsupportedModule, match=r"'0' \(.*Attention\).*" + message):
        check(nn.Sequential(build()))


class Twofold(nn.Module):
    """One attention layer, used in two ways in one pass."""

    def __init__(self, second):
        super().__init__()
        self.attention, self.second = nn.MultiheadAttention(4, 2, batch_first=True), second

    def forward(self, x):
        return (self.attention(x, x, x)[0] + self.second(self.attention, x)).sum(1)


TWOFOLD = {
    "called twice": (lambda layer, x: layer(x, x, x)[0], r"\(MultiheadAttention\) is called twice"),
    "its forward called": (lambda layer, x: layer.forward(x, x, x)[0], r"\(MultiheadAttention\) is called twice"),
    "its output layer called": (lambda layer, x: layer.out_proj(x), r"'attention\.out_proj'.*is called twice"),
    "a weight used": (lambda layer, x: F.linear(x, layer.in_proj_weight[:4]), "'attention.in_proj_weight' reaches"),
    "no gradient": (torch.no_grad()(lambda layer, x: layer(x, x, x)[0]), "called twice"),
    "unbatched": (lambda layer, x: layer.forward(x[:, 0], x[:, 0], x[:, 0])[0][:, None], "called twice|records first"),
}


@pytest.mark.parametrize("name", TWOFOLD)
def test_attention_that_is_used_twice_in_a_pass_is_refused(name):
    use, message = TWOFOLD[name]
    with pytest.raises(UnsupportedModule, match=message):
        record(Twofold(use), torch.randn(5, 3, 4))


class Once(nn.Module):
    """One use of an attention layer."""

    def __init__(self, use, attention=None):
        super().__init__()
        self.attention, self.use = attention or _attention(), use

    def forward(self, x):
        return self.use(self.attention, x).sum(1)


def _turned(layer, x):
    x = x.transpose(0, 1)
    return layer(x, x, x)[0].transpose(0, 1)


def _checkpointed(layer, x):
    return checkpoint(lambda z: layer(z, z, z)[0], x, use_reentrant=False)


ONCE = {
    "run again in the backward pass": (_checkpointed, "CheckpointError"),
    "records attend to one another": (_turned, "for 5 records"),
    "its forward on two dimensions": (lambda layer, x: layer.forward(*[x[:, 0]] * 3)[0][:, None], "for 5 records"),
    "without gradient": (torch.no_grad()(lambda layer, x: layer(x, x, x)[0]), "runs without gradient"),
    "keys of other records": (lambda layer, x: layer(x, x.flip(0), x.flip(0))[0], "differs between the batch"),
    "weights over records": (lambda layer, x: layer(x, x, x)[0].softmax(0), "differs between the batch"),
}


@pytest.mark.parametrize("name", ONCE)
def test_attention_that_mixes_records_or_cannot_be_recorded_is_refused(name):
    use, message = ONCE[name]
    with pytest.raises(UnsupportedModule, match=message):
        record(Once(use), torch.randn(5, 3, 4))


def test_projections_that_are_views_of_another_weight_are_refused():
    pair = nn.ModuleList([nn.MultiheadAttention(4, 2, batch_first=True) for _ in range(2)])
    del pair[1].in_proj_weight
    pair[1].in_proj_weight = pair[0].in_proj_weight.detach().flip(0)
    with pytest.raises(UnsupportedModule, match="'1'.*in_proj_weight that is computed from another tensor"):
        check(pair)
    pair[1].in_proj_weight = pair[0].in_proj_weight
    with pytest.raises(UnsupportedModule, match="'0.in_proj_weight' and '1.in_proj_weight' are one tensor"):
        check(pair)


def test_a_hint_of_a_causal_mask_needs_the_mask():
    with pytest.raises(ValueError, match="is_causal only says.*pass attn_mask"):
        unrehearsed(Once(lambda layer, x: layer(x, x, x, is_causal=True)[0]), torch.randn(5, 3, 4))


def test_a_transformers_activation_that_mixes_records_is_refused():
    for mixing in (lambda z: z - z.mean(0), lambda z: z.softmax(0)):
        with pytest.raises(UnsupportedModule, match="differs between the batch"):
            record(encoder(4, 2, activation=mixing), torch.randn(5, 3, 4))
    record(encoder(4, 2, activation=torch.tanh), torch.randn(5, 3, 4))


def test_a_mask_of_all_records_is_not_taken_for_one_row_a_record():
    layer, x = encoder(4, 2), torch.randn(5, 5, 4)
    with pytest.raises(UnsupportedModule, match="does not take made-up records"):
        record(layer, x, torch.zeros(5, 5))
    padding = torch.zeros(5, 5, dtype=torch.bool)
    assert record(layer, x, None, padding).raw.shape == (5, 5, 4)


def test_only_attention_of_torch_gets_another_forward():
    layer = OwnAttention(4, 2, batch_first=True).requires_grad_(False)
    layer.out_proj.requires_grad_(True)
    with pytest.raises(UnsupportedModule, match="'attention.out_proj.weight' reaches the output outside the layer"):
        record(Once(lambda layer, x: layer(x, x, x)[0], layer), torch.randn(5, 3, 4))
