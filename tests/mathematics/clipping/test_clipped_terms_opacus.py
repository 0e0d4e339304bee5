"""Opacus' per-sample gradients as an independent oracle for the norms."""

from __future__ import annotations

import pytest
import torch

from fedsw.mathematics.clipping import Safety, Term, clipped_sum, record
from tests.mathematics.clipping.layers import NAMES, make

# Opacus has no transposed convolution and no attention of torch's own, pads with zeros whatever the mode, and gives
# padding_idx a gradient.
UNLIKE = ("transpose", "circular", "reflect", "and-padding", "attention", "transformer")
SHARED = [name for name in NAMES if not any(word in name for word in UNLIKE)]


@pytest.mark.parametrize("name", SHARED)
def test_per_sample_norms_and_clipped_sums_agree_with_opacus(name):
    grad_sample = pytest.importorskip("opacus.grad_sample")
    model, x = make(name, 1, True, 6)
    model, x = model.double(), x.double() if x.is_floating_point() else x
    tape = record(model, x)
    gram = tape.gram(tape.raw)
    bound = float(gram.sqrt().median())
    total = clipped_sum(tape, [Term(tape.raw, torch.ones(6, 1), bound)], safety=Safety.off())

    wrapped = grad_sample.GradSampleModule(model, loss_reduction="sum")
    wrapped(x).sum().backward()
    samples = torch.cat([p.grad_sample.reshape(6, -1) for p in wrapped.parameters()], 1)
    norms = samples.norm(dim=1)
    torch.testing.assert_close(gram[:, 0, 0].sqrt(), norms, rtol=1e-9, atol=0)
    clipped = samples * (bound / norms).clamp(max=1)[:, None]
    torch.testing.assert_close(total, clipped.sum(0), rtol=1e-9, atol=1e-10)
