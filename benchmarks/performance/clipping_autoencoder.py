"""One private step of the MNIST autoencoder (RLL Table 3), batch 600 and d = 6: its encoder alone, one term, both terms.

Against plain autodiff (time and memory), the same clip of Jacobians materialised by vmap(jacrev), and Opacus' per-sample
gradients with one backward pass for every column.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from benchmarks.performance.clipping_networks import interleaved, peak, row, settle
from fedsw.learning.models import ImageAutoencoder, count_parameters
from fedsw.mathematics.clipping import Term, clipped_sum, record

BATCH, D, BOUND = 600, 6, 6**0.5
CHUNK = 60  # records of which vmap(jacrev) forms Jacobians at once


class Step:
    """The network, a batch, and the cotangents that rank matching would give."""

    def __init__(self, batch: int, device: str = "cpu") -> None:
        torch.manual_seed(0)
        self.model = ImageAutoencoder(latent=D).to(device)
        self.x = torch.rand(batch, 784).to(device)
        self.q = (torch.randn(batch, D, dtype=torch.float64) / batch).to(device)
        self.weights = torch.full((batch,), 0.9 / batch, dtype=torch.float64, device=device)

    def losses(self, logits: Tensor) -> Tensor:
        """Cross-entropy of every image."""
        return F.binary_cross_entropy_with_logits(logits, self.x, reduction="none").mean(1)

    def plain(self) -> None:
        """Autodiff of both terms."""
        codes, logits = self.model(self.x)
        total = (codes * self.q.float()).sum() + (self.losses(logits) * self.weights.float()).sum()
        torch.autograd.grad(total, list(self.model.parameters()))

    def both(self) -> Tensor:
        """Both terms clipped."""
        tape = record(self.model, self.x)
        codes, logits = tape.raw
        return clipped_sum(tape, [Term(codes, self.q, BOUND), Term(self.losses(logits), self.weights, 1.0)])

    def plain_loss(self) -> None:
        """Autodiff of the loss."""
        total = (self.losses(self.model(self.x)[1]) * self.weights.float()).sum()
        torch.autograd.grad(total, list(self.model.parameters()))

    def loss(self) -> Tensor:
        """The loss clipped."""
        tape = record(self.model, self.x)
        return clipped_sum(tape, [Term(self.losses(tape.raw[1]), self.weights, 1.0)])

    def plain_encoder(self) -> None:
        """Autodiff of the encoder."""
        total = (self.model.encoder(self.x) * self.q.float()).sum()
        torch.autograd.grad(total, list(self.model.encoder.parameters()))

    def encoder(self) -> Tensor:
        """The encoder's Jacobians clipped."""
        tape = record(self.model.encoder, self.x)
        return clipped_sum(tape, [Term(tape.raw, self.q, BOUND)])

    def materialised(self) -> Tensor:
        """The encoder's clip from Jacobians that exist."""
        encoder = self.model.encoder
        parameters = {name: p.detach() for name, p in encoder.named_parameters()}

        def output(values: dict[str, Tensor], one: Tensor) -> Tensor:
            result: Tensor = functional_call(encoder, values, (one[None],))[0]
            return result

        total = torch.zeros(count_parameters(encoder), dtype=torch.float64)
        for start in range(0, len(self.x), CHUNK):
            part = slice(start, start + CHUNK)
            jacobians = vmap(jacrev(output), in_dims=(None, 0))(parameters, self.x[part])
            total += _clipped(torch.cat([each.flatten(2) for each in jacobians.values()], 2), self.q[part])
        return total

    def opacus(self, wrapped: Any) -> Tensor:
        """The encoder's clip from Opacus' per-sample gradients, one pass, forward and back, a column."""
        columns = []
        for r in range(D):
            for parameter in wrapped.parameters():
                parameter.grad_sample = None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wrapped(self.x)[:, r].sum().backward()
            columns.append(torch.cat([p.grad_sample.flatten(1) for p in wrapped.parameters()], 1))
        wrapped.zero_grad()
        return _clipped(torch.stack(columns, 1), self.q)


def _clipped(j: Tensor, q: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((j @ j.mT).double())
    weights = (BOUND / values.clamp(min=1e-30).sqrt()).clamp(max=1.0)
    turned = (vectors * weights[:, None, :]) @ vectors.mT @ q[:, :, None]
    return (j.mT @ turned.float()).sum(0)[:, 0].double()


def measure(quick: bool) -> list[dict[str, object]]:
    from opacus import GradSampleModule

    settle()
    step, turns = Step(8 if quick else BATCH), 1 if quick else 15
    times = interleaved(
        {name: getattr(step, name) for name in ("plain", "both", "plain_loss", "loss", "plain_encoder", "encoder")},
        turns,
    )
    slow = interleaved({"materialised": step.materialised, "encoder": step.encoder}, 1 if quick else 3)
    wrapped = GradSampleModule(copy.deepcopy(step.model.encoder), loss_reduction="sum")
    hooks = interleaved({"opacus": lambda: step.opacus(wrapped), "encoder": step.encoder}, 1 if quick else 5)
    ours = step.encoder()
    for other in (step.materialised(), step.opacus(wrapped)):
        assert float((ours - other).norm()) <= 1e-3 * float(ours.norm())  # they clip without our margins
    name = f"autoencoder of RLL Table 3, batch {len(step.x)}, d = {D}"
    memory, plain_memory = peak(step.both), peak(step.plain)
    return [
        row(f"{name}: penalty and loss clipped", "plain autodiff", times["both"], times["plain"], 5, faster=False),
        row(f"{name}: loss alone clipped", "plain autodiff", times["loss"], times["plain_loss"], 3, faster=False),
        row(f"{name}: encoder alone", "plain autodiff", times["encoder"], times["plain_encoder"], 5, faster=False),
        row(f"{name}: encoder alone", "vmap(jacrev)", slow["encoder"], slow["materialised"], 40, faster=True),
        row(f"{name}: encoder alone", "Opacus, d passes", hooks["encoder"], hooks["opacus"], 5, faster=True),
        {
            "what": f"{name}: peak memory of a step, bytes",
            "against": "plain autodiff",
            "ours": memory,
            "other": plain_memory,
            "ratio": memory / plain_memory,
            "goal": "at most 3 times as much",
            "met": memory <= 3 * plain_memory,
            "spread": "tensors of one step, by torch's profiler",
            "note": "",
        },
    ]
