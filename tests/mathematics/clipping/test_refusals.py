"""What would lose the clip is refused by name, with the remedy."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from fedsw.mathematics.clipping import Term, UnsupportedModule, check, clipped_sum, record
from fedsw.mathematics.clipping.refusals import unrehearsed
from tests.mathematics.clipping.escapes import Apart, Bare, Functional, FunctionalBelow, OnlyFunctional, Tied, Twice


class Subclass(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 100


def _weight_norm():
    return nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))


def _old_weight_norm():
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(nn.Linear(3, 2))


def _gradient_hook():
    layer = nn.Linear(3, 2)
    layer.weight.register_hook(lambda gradient: 0 * gradient)
    return layer


def _later_hook():
    layer = nn.Linear(3, 2)
    layer.bias.register_post_accumulate_grad_hook(lambda parameter: None)
    return layer


def _backward_hook():
    layer = nn.Linear(3, 2)
    layer.register_full_backward_hook(lambda module, below, above: (below[0] * 100,))
    return layer


def _learned_statistic():
    layer = nn.BatchNorm1d(3, affine=False).eval()
    del layer.running_mean
    layer.running_mean = nn.Parameter(torch.zeros(3))
    return layer


REFUSED = {
    "batch norm": (lambda: nn.BatchNorm1d(3), "normalises over the batch.*use GroupNorm"),
    "batch norm without parameters": (lambda: nn.BatchNorm1d(3, affine=False), "use GroupNorm"),
    "batch norm without statistics": (
        lambda: nn.BatchNorm2d(3, affine=False, track_running_stats=False),
        "use GroupNorm",
    ),
    "batch norm in evaluation without statistics": (
        lambda: nn.BatchNorm1d(3, affine=False, track_running_stats=False).eval(),
        "in evaluation mode too.*use GroupNorm",
    ),
    "batch norm in evaluation with parameters": (
        lambda: nn.BatchNorm1d(3).eval(),
        "'weight', 'bias'.*use GroupNorm, or freeze it",
    ),
    "batch norm in evaluation with a learned statistic": (_learned_statistic, "'running_mean'.*use GroupNorm"),
    "frozen batch norm in training": (
        lambda: nn.BatchNorm2d(3).requires_grad_(False),
        r"normalises over the batch.*freeze it with requires_grad_\(False\) and call \.eval\(\)",
    ),
    "instance norm with statistics": (
        lambda: nn.InstanceNorm1d(3, track_running_stats=True),
        "running statistics.*track_running_stats=False",
    ),
    "dropout": (lambda: nn.Dropout(0.1), r"random in training mode.*\.eval\(\)"),
    "alpha dropout": (lambda: nn.AlphaDropout(0.1), r"\.eval\(\)"),
    "random slopes": (lambda: nn.RReLU(), r"\.eval\(\)"),
    "softmax over the batch": (lambda: nn.Softmax(dim=0), "dim=0.*set dim=-1"),
    "softmax without a dimension": (lambda: nn.LogSoftmax(), "dim=None.*set dim=-1"),
    "softmax counted from the back": (lambda: nn.LogSoftmax(dim=-2), "dim=-2.*count from the front"),
    "softmax over channels": (lambda: nn.Softmax2d(), r"use Softmax\(dim=1\)"),
    "frozen recurrence over the batch": (lambda: nn.GRU(3, 3).requires_grad_(False), "batch_first=True"),
    "frozen attention over the batch": (
        lambda: nn.MultiheadAttention(4, 2).requires_grad_(False),
        "batch_first=True",
    ),
    "frozen transformer over the batch": (
        lambda: nn.TransformerEncoderLayer(4, 2, dropout=0.0).requires_grad_(False),
        "self_attn.*batch_first=True",
    ),
    "gate over the batch": (lambda: nn.GLU(dim=0), "set dim=-1"),
    "flattened batch": (lambda: nn.Flatten(start_dim=0), "set start_dim=1"),
    "reshaped batch": (lambda: nn.Unflatten(0, (2, 2)), "set dim=1"),
    "attention over the batch": (lambda: nn.MultiheadAttention(4, 2), "second dimension.*set batch_first=True"),
    "transformer over the batch": (
        lambda: nn.TransformerEncoderLayer(4, 2, dropout=0.0),
        "self_attn.*set batch_first=True",
    ),
    "frozen recurrence with dropout": (
        lambda: nn.GRU(3, 3, 2, dropout=0.1, batch_first=True).requires_grad_(False),
        "random in training mode",
    ),
    "transformer with dropout": (
        lambda: nn.TransformerEncoderLayer(4, 2, batch_first=True),
        r"random in training mode.*call \.eval\(\)",
    ),
    "recurrence over the batch": (lambda: nn.GRU(3, 3), "second dimension.*set batch_first=True"),
    "recurrent cell": (lambda: nn.LSTMCell(3, 3), "use RNN, GRU or LSTM"),
    "largest of a bag": (lambda: nn.EmbeddingBag(3, 3, mode="max"), "use 'sum' or 'mean'"),
    "recurrence with weight norm": (
        lambda: nn.utils.weight_norm(nn.LSTM(3, 3, batch_first=True), "weight_hh_l0"),
        "computes its weight from.*use a plain LSTM",
    ),
    "bilinear": (lambda: nn.Bilinear(3, 3, 3), "use Linear on the outer product"),
    "learned slopes": (lambda: nn.PReLU(), "use LeakyReLU"),
    "bare parameter": (Bare, "the module.*'scale'.*supported layers"),
    "parameter list": (lambda: nn.ParameterList([torch.ones(2)]), "supported layers"),
    "tied weights": (Tied, "left.weight' and '1.0.right.weight' are one tensor"),
    "subclass": (lambda: Subclass(3, 2), "subclass may compute anything.*use Linear itself"),
    "weight norm": (_weight_norm, "use Linear itself"),
    "old weight norm": (_old_weight_norm, "computes its weight from.*use a plain Linear"),
    "uninitialised": (lambda: nn.LazyLinear(3), "use Linear itself"),
    "frequency-scaled embedding": (lambda: nn.Embedding(3, 3, scale_grad_by_freq=True), "=False"),
    "renormalised embedding": (lambda: nn.Embedding(3, 3, max_norm=1.0), "max_norm=None"),
    "backward hook": (_backward_hook, "has backward hooks.*remove them"),
    "hook on a gradient": (_gradient_hook, "hooks on the gradient of 'weight'.*never run"),
    "hook after a gradient": (_later_hook, "hooks on the gradient of 'bias'.*never run"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_modules_the_clip_would_miss_are_refused_before_any_data(name):
    build, message = REFUSED[name]
    model = nn.Sequential(nn.Identity(), nn.Sequential(build()))
    with pytest.raises(UnsupportedModule, match=r"(?s)1\.0.*" + message.replace("the module", "")):
        check(model)


ALLOWED = {
    "frozen recurrence along the second dimension": lambda: nn.GRU(3, 3, batch_first=True).requires_grad_(False),
    "dropout in evaluation": lambda: nn.Dropout(0.5).eval(),
    "dropout of nothing": lambda: nn.Dropout(0.0),
    "instance norm": lambda: nn.InstanceNorm1d(3),
    "frozen batch norm in evaluation": lambda: nn.BatchNorm1d(3).requires_grad_(False).eval(),
    "attention in evaluation": lambda: nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True).eval(),
    "activations and pooling": lambda: nn.Sequential(nn.SELU(), nn.AvgPool1d(2), nn.Upsample(4), nn.Softmax(-1)),
    "frozen parameter": lambda: nn.ParameterList([nn.Parameter(torch.ones(2), requires_grad=False)]),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_modules_without_trainable_parameters_are_free(name):
    check(nn.Sequential(nn.Linear(3, 3), ALLOWED[name]()))


def _deleted(pair, value):
    del pair.right.weight
    pair.right.weight = value


def _in_the_place_of_a_parameter(pair):
    pair.right._parameters["weight"] = pair.left.weight.T


VIEWS = {
    "an attribute that is a view": (
        lambda pair: _deleted(pair, pair.left.weight.T),
        r"'right' \(Linear\) has a weight that is computed from another tensor.*memory of its own",
    ),
    "an attribute that is a detached view": (
        lambda pair: _deleted(pair, pair.left.weight.detach().T),
        "'right'.*computed from another tensor",
    ),
    "a view in the place of a parameter": (_in_the_place_of_a_parameter, "'right'.*computed from another tensor"),
    "a parameter on the same memory": (
        lambda pair: setattr(pair.right, "weight", nn.Parameter(pair.left.weight.data.T)),
        "'left.weight' and 'right.weight' lie in the same memory.*clone",
    ),
    "a bias inside a weight": (
        lambda pair: setattr(pair.right, "bias", nn.Parameter(pair.left.weight.data[0])),
        "'left.weight'.*same memory",
    ),
    "a frozen view of a trained weight": (
        lambda pair: setattr(pair.right, "weight", nn.Parameter(pair.left.weight.data, requires_grad=False)),
        "'left.weight' and 'right.weight'",
    ),
}


def _pair():
    return nn.Sequential(OrderedDict(left=nn.Linear(3, 3), right=nn.Linear(3, 3)))


@pytest.mark.parametrize("name", VIEWS)
def test_a_weight_that_is_a_view_of_another_is_refused_by_name(name):
    share, message = VIEWS[name]
    pair = _pair()
    share(pair)
    for look in (check, lambda model: record(model, torch.randn(4, 3))):
        with pytest.raises(UnsupportedModule, match=message):
            look(pair)


def test_parameters_side_by_side_in_one_memory_are_not_refused():
    pair, flat = _pair(), torch.randn(24)
    pair.left.weight, pair.left.bias = nn.Parameter(flat[:9].view(3, 3)), nn.Parameter(flat[9:12])
    pair.right.weight, pair.right.bias = nn.Parameter(flat[12:21].view(3, 3)), nn.Parameter(flat[21:])
    assert len(check(pair)) == 4
    frozen = nn.Linear(3, 3, bias=False).requires_grad_(False)
    check(nn.Sequential(frozen, nn.Linear(3, 3), frozen))


CALLED = {
    "called twice": (Twice, r"module 'core' \(Linear\) is called twice"),
    "functional use": (Functional, "'layer.weight' reaches the output outside the layer"),
    "functional use below a layer": (FunctionalBelow, "'below.weight' reaches the output outside the layer"),
    "only functional use": (OnlyFunctional, "'layer.weight' reaches the output outside the layer"),
    "records not first": (lambda: Apart(lambda z: z.T), r"returned shape \(3, 6\) for 6 records"),
    "records summed": (lambda: Apart(lambda z: z.mean()), "lead with the records"),
    "records merged": (
        lambda: nn.Sequential(nn.Linear(3, 4), _Reshape(3, 8), nn.Linear(8, 8), _Reshape(6, 4)),
        r"module '2' \(Linear\) maps \(3, 8\).* for 6 records",
    ),
    "normalised over records": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm((6, 4), elementwise_affine=False)),
        "LayerNorm.*nothing else may be computed along it",
    ),
    "without gradient": (lambda: Apart(lambda z: z, 3).requires_grad_(True), "runs without gradient"),
}


class _Reshape(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.shape = shape

    def forward(self, x):
        return x.reshape(self.shape)


@pytest.mark.parametrize("name", CALLED)
def test_what_only_a_forward_pass_shows_is_refused(name, monkeypatch):
    build, message = CALLED[name]
    model = build()
    if name == "without gradient":
        forward = model.layer.forward
        monkeypatch.setattr(model.layer, "forward", torch.no_grad()(forward))
    with pytest.raises(UnsupportedModule, match=message):
        record(model, torch.randn(6, 3))
    for layer in model.modules():
        assert not layer._forward_hooks


def test_overwritten_inputs_are_refused():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            hidden = self.first(x)
            out = self.second(hidden)
            hidden += out
            return hidden

    tape = unrehearsed(Residual(), torch.randn(4, 3))
    with pytest.raises(UnsupportedModule, match="'second'.*overwritten"):
        tape.gram(tape.raw)
    with pytest.raises(UnsupportedModule, match="'second'.*overwritten"):
        record(Residual(), torch.randn(4, 3))
    x = torch.randn(4, 3)
    tape = record(nn.Sequential(nn.Linear(3, 2)), x)
    tape.gram(tape.raw)
    x.zero_()
    with pytest.raises(UnsupportedModule, match="'0'.*overwritten.*fresh batch"):
        clipped_sum(tape, [Term(tape.raw, torch.ones(4, 2), 1.0)])


def test_a_head_with_a_parameter_of_its_own_is_refused():
    model = nn.Linear(3, 3)
    tape = record(model, torch.randn(4, 3))
    with pytest.raises(UnsupportedModule, match="'weight' reaches the output outside the layer"):
        tape.gram(tape.raw @ model.weight)


def test_heads_and_inputs_are_checked():
    tape = record(nn.Linear(3, 2), torch.randn(4, 3))
    for head, message in (
        (tape.raw.detach(), "does not depend on tape.raw"),
        (torch.zeros(4, 2, requires_grad=True), "does not depend on tape.raw"),
        (tape.raw.mean(0), "n = 4"),
        (tape.raw.reshape(4, 2, 1), "n = 4"),
    ):
        with pytest.raises(ValueError, match=message):
            tape.gram(head)
    with pytest.raises(ValueError, match="one cotangent to every output"):
        Term(tape.raw, torch.ones(4), 1.0)
    with pytest.raises(ValueError, match="leading dimension"):
        record(nn.Bilinear(3, 3, 2).requires_grad_(False), torch.randn(4, 3), torch.randn(5, 3))
    for returned in ([], {}, {"z": None}, {0: torch.zeros(4)}):
        with pytest.raises(ValueError, match="a tuple of tensors, or a dict of tensors by name"):
            unrehearsed(Apart(lambda z, returned=returned: returned), torch.randn(4, 3))


SEQUENCES = {
    "recurrence": lambda: nn.GRU(4, 4, batch_first=True),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
}


class Pretrained(nn.Module):
    """A frozen layer on sequences below a trained one."""

    def __init__(self, frozen):
        super().__init__()
        self.frozen, self.last = frozen.requires_grad_(False), nn.Linear(4, 1)

    def forward(self, x):
        seen = self.frozen(x)
        seen = seen[0] if isinstance(seen, tuple) else seen
        return self.last(seen if seen.dim() == 2 else seen.mean(1))


@pytest.mark.parametrize("name", SEQUENCES)
@pytest.mark.parametrize("evaluated", [True, False])
def test_frozen_layers_on_sequences_are_refused_where_they_would_read_the_records_as_one(name, evaluated):
    model = Pretrained(SEQUENCES[name]()).train(not evaluated)
    x = torch.randn(5, 4)
    with torch.no_grad():
        before, x[0] = model(x), x[0] + 5.0
        assert float((model(x)[1:] - before[1:]).abs().max()) > 1e-3  # one record moves the others' outputs
    with pytest.raises(UnsupportedModule, match=r"read the records as one sequence.*\(records, sites, features\)"):
        record(model, x)
    assert record(model, torch.randn(5, 3, 4)).raw.shape == (5, 1)


def test_frozen_attention_is_refused_where_it_would_read_the_records_as_one():
    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True).requires_grad_(False)
            self.last = nn.Linear(4, 1)

        def forward(self, x):
            return self.last(self.attention(query=x, key=x, value=x)[0])

    with pytest.raises(UnsupportedModule, match="read the records as one sequence"):
        record(Attending(), torch.randn(5, 4))
