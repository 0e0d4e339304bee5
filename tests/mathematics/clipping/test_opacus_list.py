"""Every kind of layer that Opacus clips, in the shapes and with the options of its own tests, is clipped exactly.

Written anew: integers at the ends of Opacus' ranges, options in all combinations, records first (Opacus takes them
second, too). The quick part has a few cases of each kind, spread over the grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fedsw.mathematics.clipping import Safety, Term, UnsupportedModule, clipped_sum, record
from fedsw.mathematics.clipping.refusals import unrehearsed
from tests.mathematics.clipping.naive import jacobian, spectral_clip

pytestmark = pytest.mark.usefixtures("double")
layers = pytest.importorskip("opacus.layers")

D = 2
Case = tuple[Callable[[], nn.Module], Callable[[int], Tensor], int]
"""A layer, with records first and one tensor out; records; how many."""


class Headed(nn.Module):
    """A layer and two numbers of its output, which are no linear function of it."""

    def __init__(self, layer: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.layer = layer
        with torch.no_grad():
            width = layer(x).flatten(1).shape[1] if len(x) else 1
        self.register_buffer("matrix", torch.randn(width, D) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (0.7 * self.layer(x).flatten(1)).sin() @ self.matrix


def assert_exact(case: Case, seed: int = 0) -> None:
    build, draw, n = case
    torch.default_generator.manual_seed(seed)
    layer, x = build(), draw(max(n, 1))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    model, x = Headed(layer, x), x[:n]
    tape, q = unrehearsed(model, x), torch.randn(n, D)
    torch.testing.assert_close(tape.raw.detach(), model(x).detach(), rtol=1e-10, atol=1e-12)
    jacobians = [jacobian(model, x, i) for i in range(n)]
    grams = [j @ j.T for j in jacobians]
    torch.testing.assert_close(
        tape.gram(tape.raw), torch.stack(grams) if n else torch.zeros(0, D, D), rtol=1e-8, atol=1e-9
    )
    bound = sum(float(torch.linalg.matrix_norm(j, ord=2)) for j in jacobians) / n if n else 1.0
    found = clipped_sum(tape, [Term(tape.raw, q, bound)], safety=Safety.off())
    expected = sum(
        (spectral_clip(j, bound).T @ cotangent for j, cotangent in zip(jacobians, q, strict=True)),
        torch.zeros_like(found),
    )
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def product(**options) -> Iterator[dict]:
    for values in itertools.product(*options.values()):
        yield dict(zip(options, values, strict=True))


def normals(*shape: int) -> Callable[[int], Tensor]:
    return lambda n: torch.randn(n, *shape)


def linear() -> Iterator[Case]:
    for o in product(n=(0, 3), z=(1, 4), h=(1, 3), w=(10, 17), dims=(2, 3, 4), bias=(True, False)):
        shape = {2: (o["w"],), 3: (o["z"], o["w"]), 4: (o["z"], o["h"], o["w"])}[o["dims"]]
        yield lambda o=o: nn.Linear(o["w"], o["w"] + 2, bias=o["bias"]), normals(*shape), o["n"]


def convolutions(kind, sizes, paddings, dilations, strides, kernels) -> Iterator[Case]:
    for number, o in enumerate(
        product(
            c=(1, 6), size=sizes, twice=(True, False), kernel=kernels, stride=strides, padding=paddings,
            dilation=dilations, groups=(1, 3),
        )
    ):  # fmt: skip
        out = 2 * o["c"] if o["twice"] else max(o["c"] // 2, 1)
        if o["padding"] == "same" and o["stride"] != 1 or o["c"] % o["groups"] or out % o["groups"]:
            continue
        settings = {key: o[key] for key in ("stride", "padding", "dilation", "groups")}
        build = lambda o=o, out=out, settings=settings: kind(o["c"], out, o["kernel"], **settings)  # noqa: E731
        yield build, normals(o["c"], *o["size"]), 2 * (number % 16 > 0)


def embedding() -> Iterator[Case]:
    for o in product(n=(0, 3), t=(1, 5), q=(1, 4), r=(1, 2), v=(2, 32), d=(10, 17), dims=(2, 3, 4), pad=(None, 1)):
        shape = (o["t"], o["q"], o["r"])[: o["dims"] - 1]
        draw = lambda n, v=o["v"], shape=shape: torch.randint(0, v, (n, *shape))  # noqa: E731
        yield lambda o=o: nn.Embedding(o["v"], o["d"], padding_idx=o["pad"]), draw, o["n"]


class Bags(nn.Module):
    """Bags of the indices of a record, those from 1 on; in one row each, or one after the other with offsets."""

    def __init__(self, o: dict) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(
            o["v"], o["d"], mode=o["mode"], padding_idx=o["pad"], include_last_offset=o["last"] and o["ragged"]
        )
        self.ragged, self.weighed = o["ragged"], o["weighed"] and o["mode"] == "sum"

    def forward(self, index: Tensor) -> Tensor:
        weights = index.to(torch.float64).cos() if self.weighed else None
        if not self.ragged:
            return self.bags(index, per_sample_weights=weights)
        real = index > 0
        offsets = torch.cat([index.new_zeros(1), real.sum(1).cumsum(0)])
        offsets = offsets if self.bags.include_last_offset else offsets[:-1]
        return self.bags(index[real] - 1, offsets, None if weights is None else weights[real])


def embedding_bag() -> Iterator[Case]:
    for o in product(
        n=(4, 8), size=(3, 7), v=(10, 32), d=(10, 17), mode=("sum", "mean"), ragged=(True, False), pad=(None, 2),
        weighed=(True, False), last=(True, False),
    ):  # fmt: skip
        yield lambda o=o: Bags(o), lambda n, o=o: torch.randint(0, o["v"], (n, o["size"])), o["n"]


def group_norm() -> Iterator[Case]:
    for o in product(n=(0, 3), c=(1, 4, 8), h=(5, 10), w=(4, 8), groups=(1, 4, "C")):
        groups = o["c"] if o["groups"] == "C" else o["groups"]
        if o["c"] % groups == 0:
            yield lambda o=o, groups=groups: nn.GroupNorm(groups, o["c"]), normals(o["c"], o["h"], o["w"]), o["n"]


def instance_norm() -> Iterator[Case]:
    for n, c, sizes in itertools.product((1, 4), (1, 3), [(5,), (10,), (4, 5), (8, 10), (1, 4, 5), (4, 8, 10)]):
        kind = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[len(sizes) - 1]
        yield lambda kind=kind, c=c: kind(c, affine=True), normals(c, *sizes), n


def normalisations() -> Iterator[Case]:
    for kind, n, z, h, w, dims, of in itertools.product(
        (nn.LayerNorm, nn.RMSNorm), (1, 4), (1, 4), (1, 3), (5, 10), (2, 3, 4), (1, 2, 3)
    ):
        shape = {2: (w,), 3: (z, w), 4: (z, h, w)}[dims]
        if of < dims:
            yield lambda kind=kind, shape=shape, of=of: kind(shape[-of:]), normals(*shape), n


class First(nn.Module):
    """What attention or recurrence makes of one sequence, or of its features in three."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = x.unbind(-1)
        return self.layer(q, k, v)[0]


def attention() -> Iterator[Case]:
    for kind, n, t, heads, bias, learned, zero, apart in itertools.product(
        (layers.DPMultiheadAttention, nn.MultiheadAttention), (1, 4), (16, 20), (1, 2), *[(True, False)] * 4
    ):
        options = {"bias": bias, "add_bias_kv": learned, "add_zero_attn": zero, "batch_first": True}
        options |= {"kdim": 4, "vdim": 4} if apart else {}
        yield lambda kind=kind, heads=heads, o=options: First(kind(4, heads, **o)), normals(t, 4, 3), n


class Recurred(nn.Module):
    """All states of a recurrence and the last ones; of sequences as long as their first number says, if packed."""

    def __init__(self, layer: nn.Module, packed: bool, *, ordered: bool = False) -> None:
        super().__init__()
        self.layer, self.packed, self.ordered = layer, packed, ordered

    def forward(self, x: Tensor) -> Tensor:
        if self.packed:
            lengths = 1 + (100 * x[:, 0, 0].abs().clamp(max=1e6)).long() % x.shape[1]
            ordered = self.ordered and bool((lengths[1:] <= lengths[:-1]).all())
            states, last = self.layer(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=ordered))
            states = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])[0]
        else:
            states, last = self.layer(x)
        last = last if isinstance(last, tuple) else (last,)
        return torch.cat([states.flatten(1), *(each.transpose(0, 1).flatten(1) for each in last)], 1)


RECURRENCES = {
    "LSTM": nn.LSTM,
    "LSTM with projections": lambda *sizes, **o: nn.LSTM(*sizes, proj_size=3, **o),
    "GRU": nn.GRU,
    "RNN": nn.RNN,
    "RNN of relu": lambda *sizes, **o: nn.RNN(*sizes, nonlinearity="relu", **o),
    "DPLSTM": layers.DPLSTM,
    "DPGRU": layers.DPGRU,
    "DPRNN": layers.DPRNN,
}


def recurrence(name: str) -> Iterator[Case]:
    sizes = itertools.cycle([(4, 8), (5, 10)])  # in turns: each of the three ways to pack meets both
    for (n, t, count, bias, both, packed), (d, hidden) in zip(
        itertools.product((1, 3), (1, 3), (1, 2), (True, False), (True, False), ("no", "sorted", "unsorted")),
        sizes,
        strict=False,
    ):
        options = {"bias": bias, "bidirectional": both, "batch_first": True}
        build = lambda d=d, hidden=hidden, count=count, o=options, p=packed: Recurred(  # noqa: E731
            RECURRENCES[name](d, hidden, count, **o), p != "no", ordered=p == "sorted"
        )
        yield build, normals(t, d), n


class Turned(nn.Module):
    """A layer that takes records second, between turns."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.transpose(0, 1)).transpose(0, 1)


def sequence_bias() -> Iterator[Case]:
    kind = type(layers.DPMultiheadAttention(2, 1, add_bias_kv=True).seq_bias_k)
    for n, t, d in itertools.product((0, 1, 4), (10, 20), (4, 8)):
        yield lambda d=d, kind=kind: kind(d, batch_first=True), normals(t, d), n
        yield lambda d=d, kind=kind: Turned(kind(d)), normals(t, d), n


class Biased(nn.Module):
    """Biases that a module of one's own holds, on either side of a sum, one a feature, a site or a record."""

    def __init__(self, sites: int, features: int) -> None:
        super().__init__()
        self.bias, self.site_bias = nn.Parameter(torch.zeros(features)), nn.Parameter(torch.zeros(1, sites, 1))
        self.all_bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.add((self.site_bias + (x + self.bias).tanh()).sin(), self.all_bias)


def bare_biases() -> Iterator[Case]:
    for n, t, d in itertools.product((1, 4), (1, 5), (1, 4)):
        yield lambda t=t, d=d: Biased(t, d), normals(t, d), n


KINDS: dict[str, Callable[[], Iterator[Case]]] = {
    "Linear": linear,
    "Conv1d": lambda: convolutions(nn.Conv1d, ((6,), (10,)), (0, 1, 2, "same", "valid"), (1, 2), (1, 2), (2, 3)),
    "Conv2d": lambda: convolutions(nn.Conv2d, ((11, 17),), (0, 2, "same", "valid"), (1, 3), (1, 2), (2, 4)),
    "Conv3d": lambda: convolutions(
        nn.Conv3d, ((3, 6, 7),), (0, (1, 2, 3), "same"), (1, (1, 2, 2)), (1, (1, 2, 3)), (2, (1, 2, 3))
    ),
    "Embedding": embedding,
    "EmbeddingBag": embedding_bag,
    "GroupNorm": group_norm,
    "InstanceNorm": instance_norm,
    "LayerNorm and RMSNorm": normalisations,
    "MultiheadAttention": attention,
    "SequenceBias": sequence_bias,
    "bare biases": bare_biases,
} | {name: lambda name=name: recurrence(name) for name in RECURRENCES}


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_opacus_list_are_clipped_exactly(kind):
    cases = list(KINDS[kind]())
    for case in (*cases[1 :: len(cases) // 3], cases[-1]):
        assert_exact(case)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_case_of_opacus_list_is_clipped_exactly(kind):
    for case in KINDS[kind]():
        assert_exact(case)


class Twice(nn.Module):
    """A recurrence read twice in one pass, or a bias that is added twice."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return (self.layer(x)[0] + self.layer(2 * x)[0]).flatten(1)


class Used(nn.Module):
    """A parameter of one's own in some function."""

    def __init__(self, use: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.bias, self.use = nn.Parameter(torch.ones(shape)), use

    def forward(self, x: Tensor) -> Tensor:
        return self.use(x, self.bias)


REFUSED = {
    "recurrence twice": (lambda: Twice(nn.GRU(3, 3, batch_first=True)), (4, 3), "called twice"),
    "Opacus' recurrence twice": (lambda: Twice(layers.DPGRU(3, 3, batch_first=True)), (4, 3), "called twice"),
    "Opacus' recurrence, batch second": (lambda: layers.DPGRU(3, 3), (4, 3), "set batch_first=True"),
    "Opacus' recurrence with dropout": (
        lambda: layers.DPLSTM(3, 3, 2, dropout=0.1, batch_first=True),
        (4, 3),
        "at random in training mode",
    ),
    "recurrence without gradient": (
        lambda: Used(torch.no_grad()(lambda x, b: x + b), 3),
        (3,),
        "reaches no output|without gradient|does not",
    ),
    "records read as channels": (lambda: nn.InstanceNorm1d(5, affine=True), (4,), "must count the records"),
    "the largest of a bag": (lambda: nn.EmbeddingBag(4, 3, mode="max"), (3,), "use 'sum' or 'mean'"),
    "a bias that multiplies": (lambda: Used(lambda x, b: x * b, 3), (3,), "outside the layer that owns it"),
    "a bias added twice": (lambda: Used(lambda x, b: (x + b).tanh() + b, 3), (3,), "called twice"),
    "a bias in place": (lambda: Used(lambda x, b: x.clone().add_(b), 3), (3,), "outside the layer"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_uses_that_lose_the_clip_are_refused(name):
    build, shape, message = REFUSED[name]
    with pytest.raises(UnsupportedModule, match=message):
        x = torch.randint(0, 4, (5, *shape)) if "bag" in name else torch.randn(5, *shape)
        record(build(), x)


def test_a_bias_with_a_row_a_record_is_refused_without_a_rehearsal_too():
    with pytest.raises(UnsupportedModule, match="outside the layer that owns it"):
        unrehearsed(Used(lambda x, b: x + b, 5, 3), torch.randn(5, 3))
