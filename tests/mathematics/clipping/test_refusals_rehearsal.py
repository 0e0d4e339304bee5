"""What mixes records inside a forward of one's own is refused by `record` itself, whatever the batch."""

from __future__ import annotations

import gc
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fedsw.learning import models
from fedsw.mathematics.clipping import Term, UnsupportedModule, clipped_sum, probe_independence, record
from fedsw.mathematics.clipping import refusals as rehearsal
from fedsw.mathematics.clipping.refusals import unrehearsed
from tests.mathematics.clipping.escapes import Apart
from tests.mathematics.clipping.naive import autograd_sum


class Exchanged(nn.Module):
    """Takes sites for records: (n, T, w) becomes (T, n, w), which nobody sees where T = n."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.first(x.transpose(0, 1))).mean(1)


class Stable(nn.Module):
    """A layer that starts at 0, above a mean over the batch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        nn.init.zeros_(self.last.weight)

    def forward(self, x):
        z = self.first(x)
        return z + self.last(torch.tanh(z.mean(0, keepdim=True)).expand_as(z))


class LongestMean(nn.Module):
    """A mean over all times of packed sequences, of which there are as many as the longest record has."""

    def __init__(self):
        super().__init__()
        self.recurrence, self.last = nn.GRU(1, 2, batch_first=True), nn.Linear(2, 1)

    def forward(self, x):
        lengths = (x != 0).sum(1).clamp(min=1)
        packed = pack_padded_sequence(x.unsqueeze(2), lengths, batch_first=True, enforce_sorted=False)
        return self.last(pad_packed_sequence(self.recurrence(packed)[0], batch_first=True)[0].mean(1))


def _hooked():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    model[1].register_forward_hook(lambda module, given, out: out - out.mean(0))
    return model


MIXING = {
    "a batch mean": lambda: Apart(lambda z: z - z.mean(0)),
    "a softmax over the batch": lambda: Apart(lambda z: z.softmax(0)),
    "functional dropout": lambda: Apart(lambda z: F.dropout(z, 0.5)),
    "functional dropout that hardly ever drops": lambda: Apart(lambda z: F.dropout(z, 1e-6)),
    "records turned round": lambda: Apart(lambda z: z.flip(0)),
    "a running sum over records": lambda: Apart(lambda z: z.cumsum(0)),
    "a neighbour": lambda: Apart(lambda z: z.roll(1, 0)),
    "below a layer that starts at 0": Stable,
    "a forward hook": _hooked,
    "a mean as long as the longest record": LongestMean,
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_what_mixes_records_is_refused_when_it_is_recorded(name, n):
    with pytest.raises(UnsupportedModule, match=r"record|random"):
        record(MIXING[name](), torch.randn(n, 3))


class CutToLongest(nn.Module):
    """A sum over real sites, formed after the batch was cut to its longest record: exact, but of a private length."""

    def __init__(self, pad=None, left=False):
        super().__init__()
        self.left = left
        self.pad, self.table = pad, nn.Embedding(9, 3).requires_grad_(False)
        self.first, self.last = nn.Linear(3, 2), nn.Linear(2, 1)

    def forward(self, x, real=None):
        if real is None:
            real = x.abs().sum(-1) != 0 if self.pad is None else x != self.pad
        if self.left:
            x, real = x.flip(1), real.flip(1)
        real = real != 0
        longest = max(int((real * torch.arange(1, real.shape[1] + 1)).max()), 1)
        x, real = x[:, :longest], real[:, :longest].unsqueeze(2)
        return self.last((torch.tanh(self.first(x if self.pad is None else self.table(x))) * real).sum(1))


CUT = {
    "numbers": lambda: (CutToLongest(), torch.randn(4, 12, 3)),
    "numbers of a mask": lambda: (CutToLongest(), torch.randn(4, 12, 3), torch.ones(4, 12, dtype=torch.bool)),
    "numbers after zeros": lambda: (CutToLongest(left=True), torch.randn(4, 12, 3)),
    "indices after zeros": lambda: (CutToLongest(0, left=True), torch.randint(2, 9, (4, 12))),
    "indices up to a 0": lambda: (CutToLongest(0), torch.randint(2, 9, (4, 12))),
    "indices up to a 1": lambda: (CutToLongest(1), torch.randint(2, 9, (4, 12))),
    "indices of a mask": lambda: (CutToLongest(0), torch.randint(2, 9, (4, 12)), torch.ones(4, 12, dtype=torch.int64)),
}


@pytest.mark.parametrize("name", CUT)
def test_a_batch_that_is_cut_to_its_longest_record_is_refused(name):
    model, *inputs = CUT[name]()
    with pytest.raises(UnsupportedModule, match="longest of a batch"):
        record(model, *inputs)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_sites_taken_for_records_are_refused_where_there_are_as_many_of_them(n):
    with pytest.raises(UnsupportedModule, match="records|record 0 alone"):
        record(Exchanged(), torch.randn(n, n, 2))


def test_sites_taken_for_records_unrehearsed_exceed_the_bound():
    torch.manual_seed(0)
    model, n, bound = Exchanged(), 6, 0.05
    x, sums = torch.randn(n, n, 2), []
    for value in (100.0, -100.0):
        x[0] = value
        tape = unrehearsed(model, x)
        sums.append(clipped_sum(tape, [Term(tape.raw, torch.ones(n, 1), bound)]))
    assert float((sums[0] - sums[1]).norm()) > 2.6 * 2 * bound  # 2 * bound: what one replaced record may move


def test_honest_code_is_recorded_as_before_and_rehearsed_once(monkeypatch):
    looks = []
    examine = rehearsal.examine
    monkeypatch.setattr(rehearsal, "examine", lambda *given: looks.append(1) or examine(*given))
    model, x = Apart(lambda z: z.softmax(-1) + z.cumsum(1)), torch.randn(5, 3)
    q = torch.randn(5, 3)
    found = clipped_sum(tape := record(model, x), [Term(tape.raw, q, 1e9)])
    torch.testing.assert_close(found, autograd_sum(model, model(x), q).double(), rtol=1e-4, atol=1e-5)
    for n in (0, 1, 2, 9):
        record(model, torch.randn(n, 3))
    assert len(looks) == 1
    record(model.eval(), x)  # another mode may be another module
    assert len(looks) == 2
    record(model.train(), x)
    assert len(looks) == 2
    record(Apart(torch.tanh), x)
    assert len(looks) == 3


def test_models_of_fedsw_and_layers_of_torch_are_not_rehearsed(monkeypatch):
    monkeypatch.setattr(rehearsal, "rehearsed", lambda *given: pytest.fail("rehearsed"))
    record(models.mlp(3, (4,), 1, activation="tanh", seed=0), torch.randn(5, 3))
    record(models.ImageAutoencoder(28, 2, seed=0), torch.rand(2, 784))
    record(nn.Sequential(nn.Linear(3, 2), nn.Tanh()), torch.randn(5, 3))


def test_a_rehearsal_moves_no_generator_no_parameter_and_no_buffer():
    model, honest = Apart(lambda z: F.dropout(z, 0.3)), Apart(torch.tanh)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.randn(4)
    torch.manual_seed(3)
    assert rehearsal.rehearsed(model, [torch.zeros(2, 3)]) is not None
    assert rehearsal.rehearsed(honest, [torch.zeros(2, 3)]) is None
    assert torch.equal(torch.randn(4), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_whether_a_module_is_refused_depends_on_no_value_of_a_record(caplog):
    """Values that its own code cannot take are never tried on a module that passes on made-up ones."""
    tried = []
    for value in (1e3, 7.0):
        torch.manual_seed(0)
        model = Apart(lambda z: logging.getLogger().warning(z.tolist()) or z)  # what is closed over is put back
        caplog.clear()
        record(model, torch.full((4, 3), value))
        tried.append([line.msg for line in caplog.records])
    assert len(tried[0]) > 1 and tried[0][:-1] == tried[1][:-1] and tried[0][-1] != tried[1][-1]


class Tokens(nn.Module):
    """Indices, of which every table has two, and a mask."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(2, 4), nn.Linear(4, 2)

    def forward(self, index, mask):
        weight = mask.to(self.table.weight.dtype).unsqueeze(2)
        return self.last((self.table(index) * weight).sum(1) / weight.sum(1).clamp(min=1.0))


class Pixels(nn.Module):
    """Casts bytes to float32 itself, and so takes no float64 parameters."""

    def __init__(self, mix=False):
        super().__init__()
        self.layer, self.mix = nn.Linear(4, 2), mix

    def forward(self, x):
        z = self.layer(x.float() / 255)
        return z - z.mean(0) if self.mix else z


class Logarithms(nn.Module):
    """Takes positive numbers only."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x.log())


class Keeping(nn.Module):
    """Remembers its last hidden values, with their graph."""

    def __init__(self):
        super().__init__()
        self.layer, self.hidden = nn.Linear(3, 2), None

    def forward(self, x):
        self.hidden = self.layer(x)
        return self.hidden.tanh()


def test_honest_code_of_every_kind_passes():
    record(Tokens(), torch.randint(0, 2, (5, 7)), torch.rand(5, 7) > 0.5)
    record(Pixels(), torch.randint(0, 256, (5, 4), dtype=torch.uint8))
    with pytest.raises(UnsupportedModule, match="differs between the batch and the record alone"):
        record(Pixels(mix=True), torch.randint(0, 256, (5, 4), dtype=torch.uint8))
    record(Logarithms(), torch.rand(5, 3) + 0.1)
    model = Keeping()
    model(torch.randn(2, 3))
    record(model, torch.randn(5, 3))


class Picky(nn.Module):
    """Takes no values but those near 7."""

    def __init__(self, mix=False):
        super().__init__()
        self.layer, self.mix = nn.Linear(2, 2), mix

    def forward(self, x):
        if not bool(((x - 7).abs() < 1).all()):
            raise RuntimeError("not near 7")
        return self.layer(x - x.mean(0) if self.mix else x)


def test_code_that_takes_no_made_up_records_is_probed_by_its_owner():
    model, x = Picky(), 7 + 0.5 * torch.rand(4, 2)
    with pytest.raises(UnsupportedModule, match=r"not near 7\)\. Call probe_independence"):
        record(model, x)
    probe_independence(model, 7 + 0.5 * torch.rand(3, 2))
    assert record(model, x).records == 4
    with pytest.raises(UnsupportedModule, match="mixes records|alone"):
        probe_independence(Picky(mix=True), 7 + 0.5 * torch.rand(3, 2))


def test_what_is_remembered_of_a_module_goes_with_it():
    gc.collect()
    before = len(rehearsal._passed)
    model = Apart(torch.tanh)
    record(model, torch.randn(2, 3))
    assert len(rehearsal._passed) == before + 1
    del model
    gc.collect()
    assert len(rehearsal._passed) == before


def test_a_module_of_truth_values_alone_is_recorded():
    class Marked(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 1)

        def forward(self, marks):
            return self.last(marks.float())

    record(Marked(), torch.ones(5, 4, dtype=torch.bool))
