"""Laws of a CUDA device: it computes what the processor computes, and no bound is exceeded there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.node import Node
from fedsw.learning.models import flatten
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.clipping import Term, clipped_sum, record
from fedsw.mathematics.transport.ranks import ranked
from fedsw.mathematics.transport.sliced import cotangents, directions, sliced_w2
from fedsw.runs import checkpoint
from tests.federation.sketch_runs import sketched
from tests.federations import Federation, small
from tests.laws.runs.test_matching_runs import GENERATOR, experiment

DEVICES = ("cpu", "cuda")
CODES = ("objective.task=representation", "model.kind=encoder-decoder", "model.latent=3", "slicing.directions=7")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


@pytest.mark.parametrize(
    "asked",
    [
        lambda *more: small(*more, "model.kind=mlp", "model.hidden=[5]"),
        lambda *more: small(*more, *CODES, "federation.sites=1"),
        lambda *more: experiment(GENERATOR, *more),
    ],
    ids=["classes", "codes", "generator"],
)
def test_a_seeded_run_ends_where_the_processors_ends(tmp_path, asked):
    ends, shown = [], []
    for number, device in enumerate(DEVICES):
        federation = Federation(tmp_path / str(number))
        more = ("seed=3", "training.precision=float64", f"training.device={device}", "privacy.device=cpu")
        shown.append(federation.run(asked(*more))["held_out"])
        ends.append(checkpoint.load(federation.folder / "run1").theta)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)
    assert shown[1] == pytest.approx(shown[0], abs=1e-6)


def test_a_seeded_sketch_in_stages_teaches_what_it_teaches_on_the_processor(tmp_path):
    shown = []
    for number, device in enumerate(DEVICES):
        federation = Federation(tmp_path / str(number))
        more = ("seed=3", "training.precision=float64", f"training.device={device}", "privacy.device=cpu")
        parts = "{kind='features', map='learnt'}, {kind='moments', map='learnt', projected=4}"
        stages = (
            "sketch.hidden=5",
            "sketch.averaging=0.5",
            "training.rounds=3",
            f"sketch.stages=[{{parts=[{parts}]}}]",
        )
        shown.append(federation.run(sketched(*stages, *more)))
    here, there = shown
    assert there["held_out"]["sw2"] == pytest.approx(here["held_out"]["sw2"], rel=1e-3)
    assert there["sketch"]["distance"] == pytest.approx(here["sketch"]["distance"], rel=1e-3)
    (own,), (other,) = here["sketch"]["later"], there["sketch"]["later"]
    assert other["distance"] == pytest.approx(own["distance"], rel=1e-2)


def _node(device: str, *overrides: str) -> Node:
    task = Problem.from_experiment(small(f"training.device={device}", "privacy.device=cpu", *overrides))
    records = held_records(task, {"partition-id": 0, "num-partitions": 2}).records
    return Node(task, records, task.cells_of(records), task.build_model())


@pytest.mark.parametrize("pieces", [(), ("training.micro_batch=7",)], ids=["whole", "in pieces"])
@pytest.mark.parametrize("kind", [("model.kind=mlp", "model.hidden=[5]"), CODES], ids=["classes", "codes"])
def test_a_contribution_is_the_processors(kind, pieces):
    answers = []
    for device in DEVICES:
        node = _node(device, "training.precision=float64", *kind, *pieces)
        records = node.draw(bytes(32), [20, 13])
        batch, outputs = node.forward(flatten(node.model).cpu(), records, 1, 0)
        q = torch.randn(outputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        vector, _ = node.task.clipped.contribution(batch, q, 0.01)
        answers.append((outputs, vector))
    for here, there in zip(*answers, strict=True):
        assert there.device.type == "cpu"
        torch.testing.assert_close(there, here, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("steep", [1.0, 100.0])
@pytest.mark.parametrize("clip", [1e-30, 0.01, 1e30])
def test_a_contribution_never_weighs_more_than_its_clip_bound(precision, steep, clip):
    node = _node("cuda", f"training.precision={precision}", f"clip.jacobian={clip}", f"clip.loss={clip}", *CODES)
    records = node.draw(bytes(32), [20, 20])
    batch, outputs = node.forward(flatten(node.model).cpu() * steep, records, 1, 0)
    q = torch.randn(outputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    vector, _ = node.task.clipped.contribution(batch, q, 0.5 / 40)
    assert 0 < float(vector.norm()) <= node.task.most_pulled(q, 0.5 / 40)


@pytest.mark.parametrize("grouped", [1, 2])
def test_clipped_sums_of_convolutions_are_the_processors(grouped):
    torch.manual_seed(4)
    network = nn.Sequential(
        *(nn.Conv2d(2, 4, 3, groups=grouped), nn.Tanh(), nn.ConvTranspose2d(4, 2, 3, groups=grouped)),
        *(nn.Flatten(), nn.Linear(128, 2)),
    ).double()
    images, q = torch.randn(23, 2, 8, 8, dtype=torch.float64), torch.randn(23, 2, dtype=torch.float64)
    found = []
    for device in DEVICES:
        tape = record(network.to(device), images.to(device))
        found.append(clipped_sum(tape, [Term(tape.raw, q.to(device), 0.4)]).cpu())
    torch.testing.assert_close(found[1], found[0], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("ties", ["shared", "stable"])
def test_ranks_and_cotangents_are_the_processors_whatever_is_tied(ties):
    generator = torch.Generator().manual_seed(3)
    own, other = (torch.randint(-2, 3, (n, 2), generator=generator).double() / 2 for n in (301, 173))
    theta = directions(2, 16, normals=torch.randn(2, 16, dtype=torch.float64, generator=generator))
    here = cotangents(own, other, theta, ties=ties)
    there = cotangents(own.cuda(), other.cuda(), theta.cuda(), ties=ties)
    for found, wanted in zip(there, here, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(sliced_w2(own.cuda(), other.cuda(), theta.cuda()).cpu(), sliced_w2(own, other, theta))
    rows = own.T.contiguous()
    assert torch.equal(ranked(rows.cuda(), "stable").order.cpu(), ranked(rows, "stable").order)
