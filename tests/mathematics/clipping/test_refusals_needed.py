"""With its guard switched off, each case of a lost clip exceeds the bound: the guards are needed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedsw.mathematics.clipping import Safety, Term, clip_cotangents, clipped_sum, record
from fedsw.mathematics.clipping import tape as recording
from fedsw.mathematics.clipping.refusals import unrehearsed
from fedsw.mathematics.transport.sliced import project
from tests.mathematics.clipping.escapes import Bare, Functional, Tied, Twice
from tests.mathematics.clipping.naive import autograd_sum, weighed_sum


def _unguarded(monkeypatch):
    monkeypatch.setattr("fedsw.mathematics.clipping.refusals.check", lambda module: dict(module.named_parameters()))
    monkeypatch.setattr("fedsw.mathematics.clipping.tape.refuse_strays", lambda *anything: None)


def _released(model, x, q, bound):
    """Norm of what an ordinary backward pass releases with the cotangents that the tape would clip."""
    tape = unrehearsed(model, x)
    clipped = clip_cotangents(tape.gram(tape.raw), q, bound, safety=Safety.off())
    return float(autograd_sum(model, model(x), clipped).norm()) / (bound * float(q.norm()))


def _one_record(seed=0):
    torch.manual_seed(seed)
    return torch.randn(1, 3), torch.randn(1, 3)


def test_tied_weights_unguarded_exceed_the_bound_by_the_square_root_of_two(monkeypatch):
    x, q = _one_record()
    _unguarded(monkeypatch)
    assert _released(Tied(), x, q, 0.1) == pytest.approx(2**0.5, rel=1e-4)
    tape = unrehearsed(Tied(), x)
    assert float(clipped_sum(tape, [Term(tape.raw, q, 0.1)]).norm()) > 1.4 * 0.1 * float(q.norm())


def test_a_second_call_unguarded_exceeds_the_bound_by_the_square_root_of_two(monkeypatch):
    class Forgetful(set):
        def __contains__(self, item):
            return False

    make = recording.Notes

    def forgetful(n):
        notes = make(n)
        notes.seen = Forgetful()
        return notes

    monkeypatch.setattr(recording, "Notes", forgetful)
    x, q = _one_record()
    assert _released(Twice(), x, q, 0.1) == pytest.approx(2**0.5, rel=1e-4)


@pytest.mark.parametrize("build", [Bare, Functional])
def test_parameters_outside_layers_unguarded_exceed_the_bound(build, monkeypatch):
    x, q = _one_record()
    _unguarded(monkeypatch)
    model = build()
    with torch.no_grad():
        model.layer.weight.mul_(5)
    assert _released(model, x, q[:, : model(x).shape[1]], 0.1) > 1.2


def test_batch_norm_unguarded_lets_one_record_move_more_than_its_own_term(monkeypatch):
    _unguarded(monkeypatch)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 1))
    x, q = torch.randn(50, 3), torch.ones(50, 1)
    replaced = x.clone()
    replaced[0] = 100.0

    def total(batch):
        tape = unrehearsed(model, batch)
        return clipped_sum(tape, [Term(tape.raw, q, 1.0)])

    assert float((total(x) - total(replaced)).norm()) > 10 * 2.0


def test_cotangents_pulled_through_the_projection_exceed_the_bound_and_are_refused():
    # Singular values 40 and 0.4, outputs half-way between the two axes, just outside the ball.
    model, mix = nn.Linear(1, 2, bias=False), torch.diag(torch.tensor([1.0, 1e-2]))
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0], [100.0]]))
    x = torch.tensor([[40.0]])
    tape = record(model, x)
    head = tape.raw @ mix
    gram, worst = tape.gram(head), 0.0

    def projected(outputs, radius):
        return outputs * (radius / outputs.norm(dim=1, keepdim=True)).clamp(max=1.0)

    outputs = model(x) @ mix
    radius = float(outputs.detach().norm()) / 1.01
    assert torch.allclose(projected(outputs, radius).double(), project(outputs, radius), rtol=1e-5)
    for angle in torch.linspace(0, torch.pi, 64):
        q = torch.stack([angle.cos(), angle.sin()])[None]
        clipped = clip_cotangents(gram, q, 1.0)
        through = autograd_sum(model, projected(outputs, radius), clipped)
        worst = max(worst, float(through.norm()))
        assert float(weighed_sum(tape, [(head, clipped)]).norm()) <= 1.0
    assert worst > 10
