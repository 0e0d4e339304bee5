"""Outputs by name: a penalty on one and a loss on another are clipped together, each at its own bound."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedsw.mathematics.clipping import Safety, Term, UnsupportedModule, clipped_sum, probe_independence, record
from fedsw.mathematics.clipping.refusals import unrehearsed
from tests.mathematics.clipping.naive import naive_sum

pytestmark = pytest.mark.usefixtures("double")


class Heads(nn.Module):
    """Codes, logits, a value and the number of the record's largest feature, of one body."""

    kind = dict

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 5), nn.Tanh())
        self.code, self.logits, self.value = nn.Linear(5, 2), nn.Linear(5, 3), nn.Linear(5, 1)

    def forward(self, x):
        seen = self.body(x)
        parts = {"code": self.code(seen), "logits": self.logits(seen), "value": self.value(seen)[:, 0]}
        return self.kind({**parts, "largest": x.argmax(1)})


class Ordered(Heads):
    kind = OrderedDict


def made(build=Heads):
    torch.manual_seed(0)
    return build(), torch.randn(6, 4), torch.randint(0, 3, (6,))


@pytest.mark.parametrize("build", [Heads, Ordered])
def test_a_penalty_and_a_loss_on_outputs_by_name_are_clipped_as_the_naive_loop(build):
    model, x, target = made(build)
    q, weight = torch.randn(6, 2), torch.full((6,), 0.3)
    tape = record(model, x)
    assert list(tape.raw) == ["code", "logits", "value", "largest"]
    assert {name: tuple(each.shape) for name, each in tape.raw.items()} == {
        "code": (6, 2),
        "logits": (6, 3),
        "value": (6,),
        "largest": (6,),
    }
    loss = F.cross_entropy(tape.raw["logits"], target, reduction="none") + tape.raw["value"].square()
    terms = [Term(tape.raw["code"].sigmoid(), q, 0.1), Term(loss, weight, 0.5)]
    found = clipped_sum(tape, terms, safety=Safety.off())
    expected = naive_sum(model, x, q, 0.1, head=lambda out, i: out["code"].sigmoid())
    expected = expected + naive_sum(
        model,
        x,
        weight,
        0.5,
        head=lambda out, i: F.cross_entropy(out["logits"], target[i : i + 1]) + out["value"].square(),
    )
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_one_record_of_outputs_by_name_moves_the_sum_by_the_bounds_of_its_terms():
    model, x, target = made()
    for i in range(6):
        tape = record(model, x[i : i + 1] * 100)
        loss = F.cross_entropy(tape.raw["logits"], target[i : i + 1], reduction="none")
        q = torch.randn(1, 2)
        total = clipped_sum(tape, [Term(tape.raw["code"], q, 0.1), Term(loss, torch.ones(1), 0.02)])
        assert float(total.norm()) <= 0.1 * float(q.norm()) + 0.02


def test_outputs_by_name_come_in_blocks_of_records_and_for_none(monkeypatch):
    model, x, _ = made()
    whole = record(model, x).raw
    assert record(model, x[:0]).raw["code"].shape == (0, 2)
    monkeypatch.setattr("fedsw.mathematics.clipping.tape._block_rows", lambda parameters, tensors: 2)
    for name, value in record(model, x).raw.items():
        torch.testing.assert_close(value, whole[name])


class Mixed(Heads):
    def forward(self, x):
        parts = super().forward(x)
        return {**parts, "logits": parts["logits"] - parts["logits"].mean(0)}


class Changing(nn.Module):
    """Other outputs, or the same in another order, for a batch that begins with a positive number."""

    def __init__(self, otherwise):
        super().__init__()
        self.layer, self.otherwise = nn.Linear(1, 1), otherwise

    def forward(self, x):
        z = self.layer(x)
        return {"a": z, "b": 2 * z} if float(x[0]) > 0 else self.otherwise(z)


def test_mixing_in_an_output_by_name_is_refused():
    with pytest.raises(UnsupportedModule, match="differs between the batch and the record alone"):
        record(Mixed(), torch.randn(4, 4))
    with pytest.raises(UnsupportedModule, match="output of record 0"):
        probe_independence(Heads(), torch.randn(4, 4), heads=lambda raw: [raw["code"] - raw["code"].mean(0)])
    probe_independence(Heads(), torch.randn(4, 4), heads=lambda raw: [raw["code"], raw["value"]])


def test_outputs_by_name_keep_their_names_whatever_their_order(monkeypatch):
    monkeypatch.setattr("fedsw.mathematics.clipping.tape._block_rows", lambda parameters, tensors: 1)
    x = torch.tensor([[1.0], [-1.0]])
    model = Changing(lambda z: {"b": 2 * z, "a": z})
    raw = unrehearsed(model, x).raw
    torch.testing.assert_close(raw["b"], 2 * raw["a"])
    for otherwise, message in (
        (lambda z: {"a": z}, r"\['a'\] for some records and \['a', 'b'\]"),
        (lambda z: {"a": z, "b": z, "c": z}, "same names always"),
        (lambda z: (z, z), "of another form"),
        (lambda z: z, "of another form"),
    ):
        with pytest.raises(UnsupportedModule, match=message):
            unrehearsed(Changing(otherwise), x)
