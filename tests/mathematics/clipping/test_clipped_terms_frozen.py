"""Frozen backbones in evaluation mode, BatchNorm and fused attention included, under heads that are trained exactly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedsw.mathematics.clipping import Safety, Term, UnsupportedModule, clipped_sum, record
from tests.mathematics.clipping.layers import encoder
from tests.mathematics.clipping.naive import jacobian, naive_sum

pytestmark = pytest.mark.usefixtures("double")


class Residual(nn.Module):
    """Two convolutions, each with BatchNorm, around a path past them."""

    def __init__(self, channels):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Pretrained(nn.Module):
    """A backbone that is frozen, between a layer below it and a head above it."""

    def __init__(self, below, backbone, head):
        super().__init__()
        self.below, self.backbone, self.head = below, backbone.requires_grad_(False), head

    def forward(self, x):
        return self.head(self.backbone(self.below(x)))


class Sequences(Pretrained):
    """The same on sequences of which the last sites are padding."""

    def forward(self, x):
        padding = torch.arange(x.shape[1]) >= 1 + (x[:, :1, 0] > 0) + (x[:, :1, 1] > 0)
        seen = self.backbone(self.below(x), src_key_padding_mask=padding)
        return self.head(torch.where(padding[:, :, None], 0.0, seen).sum(1))


def images(below):
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), Residual(4), nn.AvgPool2d(2), nn.Flatten(1))
    for layer in backbone.modules():
        if isinstance(layer, nn.BatchNorm2d):
            for statistic in (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data):
                statistic.copy_(0.5 + torch.rand(4))
    return Pretrained(below, backbone, nn.Linear(16, 2)), torch.randn(5, 2, 6, 6)


def sequences(below, backbone):
    torch.manual_seed(0)
    return Sequences(below, backbone, nn.Linear(4, 2)), torch.randn(6, 3, 4)


def stack(**options):
    return nn.TransformerEncoder(encoder(4, 2, **options), 2, enable_nested_tensor=not options.get("norm_first", False))


BACKBONES = {
    "images": lambda: images(nn.Identity()),
    "images above a layer that trains": lambda: images(nn.Conv2d(2, 2, 1)),
    "a transformer": lambda: sequences(nn.Identity(), encoder(4, 2)),
    "a transformer of one odd head": lambda: sequences(nn.Identity(), encoder(4, 1, activation="gelu")),
    "a transformer above a layer that trains": lambda: sequences(nn.Linear(4, 4), encoder(4, 2, norm_first=True)),
    "transformers on nested sequences": lambda: sequences(nn.Identity(), stack()),
    "transformers above a layer that trains": lambda: sequences(nn.Linear(4, 4), stack()),
    "transformers with norms first": lambda: sequences(nn.Identity(), stack(norm_first=True)),
}


@pytest.mark.parametrize("name", BACKBONES)
def test_heads_on_frozen_backbones_are_clipped_exactly(name):
    model, x = BACKBONES[name]()
    model.eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    q = torch.randn(len(x), 2)
    norms = [float(torch.linalg.matrix_norm(jacobian(model, x, i), ord=2)) for i in range(len(x))]
    tape = record(model, x)
    torch.testing.assert_close(tape.raw.detach(), model(x).detach(), rtol=1e-9, atol=1e-11)
    with torch.no_grad():  # where torch takes its fused path
        torch.testing.assert_close(tape.raw.detach(), model(x), rtol=1e-9, atol=1e-11)
    assert tape.size == sum(p.numel() for p in model.parameters() if p.requires_grad)
    for bound in (0.5 * min(norms), sum(norms) / len(norms)):
        tape = record(model, x)
        found = clipped_sum(tape, [Term(tape.raw, q, bound)], safety=Safety.off())
        torch.testing.assert_close(found, naive_sum(model, x, q, bound), rtol=1e-8, atol=1e-9)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_batch_norm_of_a_frozen_backbone_is_refused_until_it_no_longer_looks_at_the_batch():
    model, x = images(nn.Identity())
    with pytest.raises(UnsupportedModule, match=r"'backbone\.1'.*GroupNorm, or freeze it .* call \.eval\(\)"):
        record(model.train(), x)
    model.eval().backbone[1].requires_grad_(True)
    with pytest.raises(UnsupportedModule, match=r"'backbone\.1'.*holds 'weight', 'bias'.*GroupNorm, or freeze it"):
        record(model, x)
    model.backbone[1].requires_grad_(False)
    assert record(model, x).records == 5


def test_one_record_below_a_frozen_batch_norm_moves_no_other():
    model, x = images(nn.Conv2d(2, 2, 1))
    other = x.clone()
    other[0] *= 1e3
    for_x, for_other = (record(model.eval(), each).raw.detach() for each in (x, other))
    torch.testing.assert_close(for_x[1:], for_other[1:], rtol=1e-12, atol=0)


def test_frozen_attention_takes_its_own_path_again_after_a_record():
    for enabled in (True, False):
        torch.backends.mha.set_fastpath_enabled(enabled)
        try:
            model, x = sequences(nn.Identity(), stack())
            record(model.eval(), x)
            assert torch.backends.mha.get_fastpath_enabled() is enabled
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("frozen", [nn.BatchNorm1d(4), nn.SyncBatchNorm(4)])
def test_every_kind_of_batch_norm_is_refused_in_training_mode(frozen):
    with pytest.raises(UnsupportedModule, match="over the batch"):
        record(nn.Sequential(frozen.requires_grad_(False).train(), nn.Linear(4, 1)), torch.randn(5, 4))
