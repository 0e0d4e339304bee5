"""Laws of a node: its sample, its bound, and that a cold process answers like a warm one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsw._tools.randomness import Stream
from fedsw.federation.node import node as nodes
from fedsw.federation.node.held_records import held_records
from fedsw.federation.node.node import Node
from fedsw.learning.models import flatten
from fedsw.learning.tasks.problem import Problem
from tests.federations import small


def _node(*overrides: str) -> Node:
    task = Problem.from_experiment(small("objective.alpha=0.5", *overrides))
    config = {"partition-id": 0, "num-partitions": 2}
    records = held_records(task, config).records
    return Node(task, records, task.cells_of(records), task.build_model())


def _cotangents(records, seed=0) -> torch.Tensor:
    return torch.randn(len(records), 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_a_sample_has_the_asked_counts_of_distinct_own_records_of_each_cell():
    node = _node()
    records = node.draw(bytes(32), [7, 11])
    assert torch.equal(records.sensitive.bincount(), torch.tensor([7, 11]))
    assert len(set(records.ids.tolist())) == 18 and set(records.ids.tolist()) <= set(node.records.ids.tolist())


@pytest.mark.parametrize("seed", [(), ("seed=4",)], ids=["secret", "seeded"])
def test_no_batch_holds_a_record_twice_whatever_its_counts(seed):
    """With replacement, a batch of every record of a cell would be of distinct ones with chance N!/N^N."""
    node = _node(*seed)
    own = [set(ids.tolist()) for ids in node.ids]
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        counts = [round(share * size) for size in node.sizes]
        for key in range(10):
            ids = node.draw(bytes([key] * 32), counts).ids.tolist()
            parts = ids[: counts[0]], ids[counts[0] :]
            for part, count, cell in zip(parts, counts, own, strict=True):
                assert len(part) == len(set(part)) == count and set(part) <= cell


def test_every_record_of_a_cell_is_equally_likely_to_be_in_a_batch():
    node = _node("data.records=60")
    counts, keys = [size // 3 for size in node.sizes], 900
    met = np.zeros(60)
    for key in range(keys):
        met[node.draw(Stream.seeded(key).words(4).tobytes(), counts).ids.numpy()] += 1
    for ids, count in zip(node.ids, counts, strict=True):
        rate = count / len(ids)
        spread = math.sqrt(keys * rate * (1 - rate))
        assert np.abs(met[ids] - keys * rate).max() < 5 * spread


def test_the_sample_is_decided_by_its_key_alone():
    node = _node()
    same = [node.draw(bytes(32), [7, 11]).ids for _ in range(2)]
    other = node.draw(bytes([1] * 32), [7, 11]).ids
    assert torch.equal(*same) and not torch.equal(same[0], other)


def test_more_records_than_a_cell_holds_are_refused():
    node = _node()
    with pytest.raises(ValueError, match="asked from"):
        node.draw(bytes(32), [10_000, 1])


@pytest.mark.parametrize("seed", range(5))
def test_a_contribution_never_weighs_more_than_its_clip_bound(seed):
    node = _node("clip.jacobian=0.01", "clip.loss=0.02")
    records = node.draw(bytes([seed] * 32), [20, 20])
    batch, _ = node.forward(flatten(node.model) * 10, records, 1, 0)
    q, weight = _cotangents(records, seed), 0.5 / 40
    vector, _ = node.task.clipped.contribution(batch, q, weight)
    bound = 0.01 * float(q.norm(dim=1).sum()) + 40 * weight * 0.02
    assert 0 < float(vector.norm()) <= bound


@pytest.mark.parametrize("kind", [(), ("model.kind=mlp", "model.hidden=[5]")])
def test_micro_batches_and_cold_processes_change_nothing(kind):
    exact = ("training.precision=float64", *kind)
    whole, pieces = _node(*exact), _node(*exact, "training.micro_batch=7")
    records = whole.draw(bytes(32), [20, 13])
    theta, q = flatten(whole.model), _cotangents(records)
    answers = []
    for node in (whole, pieces):
        batch, outputs = node.forward(theta, records, 1, 0)
        answers.append((outputs, *node.task.clipped.contribution(batch, q, 0.01)))
    cold = nodes.ForwardPass(1, 0, records, whole.model)
    answers.append((answers[0][0], *whole.task.clipped.contribution(cold, q, 0.01)))
    for outputs, vector, loss in answers[1:]:
        assert torch.allclose(outputs, answers[0][0], rtol=0, atol=1e-14)
        assert torch.allclose(vector, answers[0][1], rtol=1e-12, atol=1e-15) and loss == pytest.approx(answers[0][2])


@pytest.mark.parametrize("alpha", ["0.0", "0.5"])
def test_a_batch_that_is_one_piece_is_coded_once(alpha, monkeypatch):
    node, coded = _node(f"objective.alpha={alpha}"), []
    given = Problem.given

    def counted(task, records):
        coded.append(len(records))
        return given(task, records)

    monkeypatch.setattr(Problem, "given", counted)
    records, theta = node.draw(b"k" * 32, [6, 6]), flatten(node.model)
    if alpha == "0.0":
        batch = node.task.clipped.forward(node.task.prepared(node.model, theta), records, 1, 0, compare=False)
    else:
        node.forward(theta, records, 1, 0)
        batch, _ = node.at_hand(theta, records, 1, 0)
    node.task.clipped.contribution(batch, _cotangents(records), 0.1)
    assert coded == [12]


def test_an_empty_share_of_a_batch_weighs_nothing():
    node = _node()
    records = node.draw(bytes(32), [0, 0])
    batch, outputs = node.forward(flatten(node.model), records, 1, 0)
    vector, loss = node.task.clipped.contribution(batch, torch.zeros((0, 1), dtype=torch.float64), 0.01)
    assert outputs.shape == (0, 1) and float(vector.abs().sum()) == 0 and loss == 0


def test_without_a_seed_every_attempts_key_is_fresh_and_with_one_it_is_shared():
    private, nominal = _node().task, _node("seed=4").task
    assert nodes.batch_key(private, 1, 0) != nodes.batch_key(private, 1, 0)
    assert nodes.batch_key(nominal, 1, 0) == nodes.batch_key(nominal, 1, 0)
    keys = {nodes.batch_key(nominal, r, a) for r in range(3) for a in range(3)}
    assert len(keys) == 9


def test_a_model_that_mixes_records_is_refused_before_any_data_is_touched(monkeypatch):
    import fedsw.learning.tasks.problem

    mixing = torch.nn.Sequential(torch.nn.Linear(16, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    monkeypatch.setattr(fedsw.learning.tasks.problem, "of_shape", lambda *a: mixing)
    with pytest.raises(ValueError, match=r"BatchNorm1d.*GroupNorm"):
        Problem.from_experiment(small())


def test_centring_outputs_does_not_change_the_gradient_and_halves_the_sensitivity():
    from fedsw.mathematics.transport.sliced import cotangents

    plain, centred = _node("clip.output=1.0"), _node("clip.output=0.5", "clip.centre=0.5")
    records = plain.draw(bytes(32), [20, 20])
    theta = flatten(plain.model)
    vectors = []
    for node in (plain, centred):
        batch, outputs = node.forward(theta, records, 1, 0)
        q = torch.cat(cotangents(outputs[:20], outputs[20:], torch.ones((1, 1), dtype=torch.float64)))
        vectors.append(node.task.clipped.contribution(batch, q, 0.0)[0])
    assert torch.allclose(vectors[0], vectors[1], rtol=1e-5, atol=1e-9)
    bounds = [
        n.task.objective.parts[0].sensitivities([20, 20], n.task.clip, d=1, spread=1.0)[0].value - 0.5 * 2 * 5.0 / 40
        for n in (plain, centred)
    ]
    assert bounds[1] == pytest.approx(bounds[0] / 2)
    assert np.isfinite(bounds).all()
