"""Composed objectives: strata, gradients against naive Jacobians, and sensitivities that no neighbour exceeds."""

from __future__ import annotations

import dataclasses
import logging
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsw
from fedsw.learning.models import flatten, load_flat
from fedsw.learning.objectives import Clip
from fedsw.mathematics.transport.sliced import project
from fedsw.runs.single.objective import Batch
from tests.runs.single.examples import Scores, model, records

CLIP = Clip(output=0.4, jacobian=0.3, loss=0.7)
CODES = Clip(output=0.9, jacobian=0.5, loss=1.0)
POINTS = torch.tensor([[0.3, 0.1], [-0.2, 0.4], [0.0, -0.5]], dtype=torch.float64)
SETS = {
    "parity": [fedsw.Parity(0.5, centre=0.5)],
    "odds and codes to a prior": [
        fedsw.EqualizedOdds(0.3, centre=0.5),
        fedsw.ToSample(0.4, outputs="codes", dimension=2, clip=CODES, radius=0.8),
    ],
    "parity twice and a public sample": [
        fedsw.Parity(0.25),
        fedsw.Parity(0.25, outputs=lambda raw, batch: raw["codes"][:, :1] ** 2, dimension=1, clip=CODES),
        fedsw.ToSample(0.2, outputs="codes", dimension=2, sample=POINTS, clip=CODES),
    ],
    "odds with parity of codes": [
        fedsw.EqualizedOdds(0.5),
        fedsw.Parity(0.5, outputs="codes", dimension=2, clip=CODES),
    ],
}


def objective(name: str, **other) -> fedsw.Objective:
    return fedsw.Objective(Scores(), SETS[name], directions=4, **other)


def batch_of(found: fedsw.Objective, all_records) -> Batch:
    """All records as one batch."""
    cell = found.composite.cell_of(all_records.sensitive, all_records.target).numpy()
    rows = [np.flatnonzero(cell == index) for index in range(len(found.strata))]
    sizes = tuple(len(each) for each in rows)
    return Batch(1, 0, all_records.take(np.concatenate(rows)), sizes, (1.0,) * len(sizes))


def value(bounded) -> torch.Tensor:
    return bounded._take()


def clipped_row_by_row(net, x, heads) -> torch.Tensor:
    """Sum over records and heads of (Jacobian clipped to the bound)^T q, each Jacobian formed whole, in float64."""
    theta, total = flatten(net), torch.zeros(flatten(net).numel(), dtype=torch.float64)

    def at(parameters, row, head):
        load_flat(net, theta)
        names = [name for name, _ in net.named_parameters()]
        sizes = [p.numel() for p in net.parameters()]
        shaped = {
            name: part.reshape(dict(net.named_parameters())[name].shape)
            for name, part in zip(names, torch.split(parameters, sizes), strict=True)
        }
        return head(torch.func.functional_call(net, shaped, (row[None],)))

    for i, row in enumerate(x):
        for head, q, bound in heads:
            jacobian = torch.autograd.functional.jacobian(lambda p: at(p, row, head)[0], theta).reshape(-1, len(theta))  # noqa: B023
            u, s, v = torch.linalg.svd(jacobian, full_matrices=False)
            total += ((u * s.clamp(max=bound)) @ v).T @ q[i]
    return total


def test_the_gradient_is_the_sum_of_naively_clipped_jacobians():
    found = objective("odds with parity of codes")
    net, batch = model(), batch_of(found, records(16))
    x = batch.records.features.double()
    raw = net(x)
    outputs = [project(Scores().outputs(raw, None).detach(), CLIP.output), project(raw["codes"].detach(), CODES.output)]
    by_stratum = [torch.split(each, list(batch.sizes)) for each in outputs]
    thetas = found.of(CLIP, next(net.parameters())).directions(batch.round, batch.attempt)
    cotangents = [torch.cat(q) for q in found.composite.cotangents(by_stratum, thetas, lambda *a: None)[0]]
    heads = [
        (lambda raw: Scores().outputs(raw, None), cotangents[0], CLIP.jacobian),
        (lambda raw: raw["codes"], cotangents[1], CODES.jacobian),
    ]
    naive = clipped_row_by_row(net, x, heads)
    torch.testing.assert_close(value(found.gradient(net, batch, CLIP)), naive, rtol=2e-4, atol=1e-9)


@pytest.mark.parametrize("name", SETS)
def test_micro_batches_change_nothing(name):
    net, batch = model(), batch_of(objective(name), records())
    whole = value(objective(name).gradient(net, batch, CLIP))
    parts = value(objective(name, micro_batch=7).gradient(net, batch, CLIP))
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-14)


TRIED = {name: (objective(name), model()) for name in SETS}  # on made-up records once, not in every example


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(list(SETS)),
    seed=st.integers(0, 10**6),
    place=st.integers(0, 15),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
)
def test_replacing_one_record_never_exceeds_the_bound_of_its_stratum(name, seed, place, scale):
    (found, net), before = TRIED[name], records(16, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    features = before.features.clone()
    features[place] = scale * torch.randn(3, generator=generator)
    after = dataclasses.replace(before, features=features)
    load_flat(net, flatten(model(seed % 7)) * (1 + seed % 5))
    one, other = (found.gradient(net, batch_of(found, each), CLIP) for each in (before, after))
    stratum = int(found.composite.cell_of(before.sensitive, before.target)[place])
    moved = float((value(one) - value(other)).norm())
    assert moved <= one.charges[stratum].sensitivity <= one.sensitivity.value


def test_a_penalty_counts_as_often_as_it_is_composed():
    """Twice half a penalty is the penalty, in the gradient and in the bound."""
    once = fedsw.Objective(Scores(), [fedsw.Parity(0.6)])
    twice = fedsw.Objective(Scores(), [fedsw.Parity(0.3), fedsw.Parity(0.3)])
    net, batch = model(), batch_of(once, records())
    one, two = (each.gradient(net, batch, CLIP) for each in (once, twice))
    torch.testing.assert_close(value(one), value(two), rtol=1e-9, atol=1e-12)
    for left, right in zip(one.charges, two.charges, strict=True):
        assert left.sensitivity == pytest.approx(right.sensitivity, rel=1e-12)


def test_strata_are_the_finest_that_a_penalty_needs():
    assert objective("parity").strata == ("A=0", "A=1")
    assert len(objective("odds and codes to a prior").strata) == 4
    assert fedsw.Objective(Scores(), [fedsw.ToSample(0.5)]).strata == ("all",)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: fedsw.Objective(Scores(), SETS["parity"], micro_batch=0), "micro_batch = 0; .* at least 1"),
        (lambda: fedsw.Objective(Scores(), SETS["parity"], micro_batch=True), "micro_batch = True"),
        (lambda: fedsw.Objective(Scores(), SETS["parity"], direction_seed=1.5), "direction_seed = 1.5"),
        (lambda: fedsw.Objective(Scores(), [fedsw.Parity(0.7), fedsw.Parity(0.7)]), "add up to 1.4"),
        (
            lambda: fedsw.Objective(Scores(), [fedsw.Parity(0.1, groups=3), fedsw.Parity(0.1)]),
            r"groups differently: \[2, 3\]",
        ),
        (lambda: fedsw.Parity(0.5, outputs="codes"), "needs their dimension"),
        (lambda: fedsw.Parity(1.5), "weight is 1.5; it lies between 0 and 1"),
        (lambda: fedsw.ToSample(0.5, sample=2 * torch.ones(3, 1)), "2 from the centre, beyond its radius 1"),
        (lambda: fedsw.Objective(Scores(), [fedsw.ToSample(0.5, sample=POINTS)]), "2 columns and the outputs 1"),
        (lambda: fedsw.Objective(Scores(), [fedsw.Penalty(0.5)]).strata, "Penalty is no penalty"),
    ],
)  # fmt: skip
def test_what_does_not_compose_is_refused_by_name(make, said):
    with pytest.raises((ValueError, TypeError), match=said):
        make()


def test_outputs_and_losses_of_another_shape_are_refused_before_anything_is_bounded():
    net = model()

    class Mean(Scores):
        def loss(self, raw, batch):
            return super().loss(raw, batch).mean()

    wrong = {
        "one number for each record": fedsw.Objective(Mean(), SETS["parity"]),
        r"dimension\s+3": fedsw.Objective(Scores(), SETS["parity"], dimension=3),
        "the model returns score, codes": fedsw.Objective(Scores(), [fedsw.Parity(0.5, outputs="odes", dimension=1)]),
    }
    for said, found in wrong.items():
        with pytest.raises(ValueError, match=said):
            found.gradient(net, batch_of(found, records()), CLIP)


def _means(outputs, directions):
    """Derivative of the squared difference of two groups' means."""
    one, two = outputs
    gap = one.mean(0) - two.mean(0)
    return [2 * gap.expand_as(one) / len(one), -2 * gap.expand_as(two) / len(two)]


def test_a_bound_of_a_user_is_used_and_named_as_theirs():
    own = fedsw.Stated(0.5, pull=_means, bound=lambda sizes, clip: 16 * clip.output * clip.jacobian / min(sizes))
    found = fedsw.Objective(Scores(), [own])
    plan = fedsw.plan(found, CLIP, sizes=(24, 24), batch_size=12, rounds=3, epsilon=1.0, delta=1e-4)
    task = 0.5 * 2 * CLIP.loss / 24
    assert plan.sensitivity.value == pytest.approx(1.001 * (task + 0.5 * 16 * 0.4 * 0.3 / 12), rel=1e-12)
    assert "It rests on a bound that the user stated" in plan.guarantee
    derived = fedsw.plan(objective("parity"), CLIP, sizes=(24, 24), batch_size=12, rounds=3, epsilon=1.0, delta=1e-4)
    assert "stated" not in derived.guarantee
    stated = fedsw.Stated(0.2, pull=_means, bound=lambda s, c: 1.0)
    mixed = fedsw.Objective(Scores(), [stated, fedsw.EqualizedOdds(0.2)])
    net, batch = model(), batch_of(mixed, records())
    assert "stated by the user" in mixed.gradient(net, batch, CLIP).sensitivity.bound
    for bound in (0.0, float("nan")):
        wrong = fedsw.Objective(Scores(), [fedsw.Stated(0.5, pull=_means, bound=lambda s, c, bound=bound: bound)])
        with pytest.raises(ValueError, match="stated bound is"):
            wrong.planned_sensitivities((5, 5), CLIP)


def test_what_mixes_the_records_of_a_batch_is_refused_before_anything_is_computed_of_them():
    """A mean over the batch moves every row when one record is replaced: no clip would bound that."""

    class Centred(Scores):
        def loss(self, raw, batch):
            own = super().loss(raw, batch)
            return own - own.mean()

    class Balanced(Scores):
        def loss(self, raw, batch):
            return super().loss(raw, batch) / torch.bincount(batch.target, minlength=2)[batch.target]

    def spread(raw, batch):
        return raw["codes"][:, :1] - raw["codes"][:, :1].mean(0)

    net = model()
    for found in (
        fedsw.Objective(Centred(), SETS["parity"]),
        fedsw.Objective(Balanced(), SETS["parity"]),
        fedsw.Objective(Scores(), [fedsw.Parity(0.5, outputs=spread, dimension=1)]),
    ):
        with pytest.raises(ValueError, match="row i may depend on record i only"):
            found.gradient(net, batch_of(found, records()), CLIP)


def test_a_model_is_tried_once_and_another_one_again(caplog):
    class Counted(Scores):
        def loss(self, raw, batch):
            logging.getLogger().warning(len(batch.features))  # an attribute is put back after the pass
            return super().loss(raw, batch)

    found, net = fedsw.Objective(Counted(), SETS["parity"]), model()
    for _ in range(3):
        found.gradient(net, batch_of(found, records()), CLIP)
    private = len(batch_of(found, records()))
    tried = [line.msg for line in caplog.records if line.msg < private]
    found.gradient(model(1), batch_of(found, records()), CLIP)
    assert tried and [line.msg for line in caplog.records if line.msg < private] == 2 * tried


def test_a_regression_has_its_gradient_on_numbers():
    generator = torch.Generator().manual_seed(0)
    own = fedsw.data.Records(
        torch.rand((12, 3), generator=generator),
        torch.arange(12) % 2,
        torch.rand((12, 1), generator=generator),
        torch.arange(12),
    )
    found = fedsw.Objective("regression", [fedsw.Parity(0.0)], classes=0, targets=1)
    net = fedsw.learning.models.logistic(3)
    gradient = value(found.gradient(net, batch_of(found, own), Clip(1.0, 1.0, 1e6)))
    order = torch.argsort(own.sensitive, stable=True)
    (torch.sigmoid(net(own.features[order])) - own.target[order]).square().sum(dim=1).mean().backward()
    torch.testing.assert_close(gradient, torch.cat([p.grad.flatten() for p in net.parameters()]).double())


def test_objectives_and_plans_are_pickled_whole_before_and_after_they_were_used():
    found, net = objective("parity"), model()
    plan = fedsw.plan(found, CLIP, sizes=(24, 24), batch_fraction=0.5, rounds=2, epsilon=5, delta=1e-3, seed=1)
    for _ in range(2):
        again = pickle.loads(pickle.dumps(plan))
        batch = next(plan.batches(records()))
        one, other = (each.gradient(net, batch, CLIP)._take() for each in (found, again.objective))
        assert torch.equal(one, other) and str(again) == str(plan)
