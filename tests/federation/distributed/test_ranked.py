"""Every task that a trusted server runs, with nobody trusted: ranks of all penalties from one masked sum of tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsw.audit.record import audit
from fedsw.experiment import parse_experiment
from fedsw.federation import messages
from fedsw.federation.trust.distributed import ranked
from fedsw.federation.trust.distributed.attempt_cost import bound_of, noise_of
from fedsw.learning.objectives import histograms as tables
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.transport.sliced import cotangents, project, spread
from fedsw.privacy.accounting import Ledger, Step, epsilon_by
from fedsw.privacy.masks import MaskKey
from fedsw.privacy.sensitivity import SLACK
from tests.federation.distributed.sites import Refused, Sites
from tests.federation.local_runs import attempts_in, kind_of, parameters_of
from tests.federations import SMALL, Saboteur, digits_for_images, small
from tests.laws.devices.test_transfers import ALSO
from tests.laws.runs.test_matching_runs import ADAPTATION, AUTOENCODER, GENERATOR

NOBODY = ("privacy.trust=distributed", "privacy.epsilon=2.0", "local.bins=16", "federation.clients=3")
FEW = (*NOBODY, "slicing.directions=6", "training.rounds=2")
REPRESENTATION = (
    "objective.task=representation",
    "model.kind=encoder-decoder",
    "model.latent=2",
    "data.source=synthetic",
)
REGRESSION = ("objective.task=regression", "data.target=mean", "objective.penalty=statistical-parity")
KINDS = {
    "several penalties": (SMALL, ALSO),
    "equality of odds": (SMALL, ("objective.penalty=equality-of-odds",)),
    "regression": (SMALL, REGRESSION),
    "representation": (SMALL, REPRESENTATION),
    "autoencoder": (AUTOENCODER, ()),
    "generator": (GENERATOR, ()),
    "adaptation": (ADAPTATION, ()),
    "fixed adaptation": (ADAPTATION, ("model.kind=transported-adaptor",)),
}


def made(kind: str, *overrides: str):
    base, own = KINDS[kind]
    return parse_experiment(base, [*own, *FEW, *overrides])


@pytest.fixture(autouse=True)
def at_hand(monkeypatch):
    digits_for_images(monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_every_task_is_charged_as_planned_and_passes_its_audit(federation, kind):
    """In one message a sum: whoever has nothing that moves a parameter sends no contribution."""
    asked = []
    experiment = made(kind)
    summary = federation.run(experiment, app=Saboteur(lambda message, _: asked.append(kind_of(message))))
    folder, task = federation.folder / "run1", Problem.from_experiment(experiment)
    assert summary["status"] == "completed" and summary["released_rounds"] == 2
    sums = {messages.MASKED_TABLES.kind: 6, messages.MASKED_SUM.kind: 6 if task.private_parameters else 0}
    assert {kind_: asked.count(kind_) for kind_ in sums} == sums
    for client in range(3):
        assert attempts_in(folder, client) == [(1, 0), (2, 0)]
        with Ledger.open(folder / "clients" / f"client-{client}.sqlite") as ledger:
            assert ledger.replay() == pytest.approx(summary["epsilon_spent"], rel=1e-9)
    assert 1.99 < summary["epsilon_spent"] <= summary["epsilon"] == 2.0
    assert audit(folder, ["tests.runs.single.examples"] if kind == "several penalties" else []).passed


@pytest.mark.parametrize("kind", ["several penalties", "generator", "adaptation"])  # a mask sees words alone
def test_masks_change_no_bit_of_any_task(federation, monkeypatch, kind):
    experiment = made(kind, "seed=3")
    federation.run(experiment)
    monkeypatch.setattr(MaskKey, "mask", lambda self, others, asked, length: np.zeros(length, dtype=np.uint64))
    federation.run(experiment)
    assert torch.equal(parameters_of(federation.folder / "run1"), parameters_of(federation.folder / "run2"))


SGD = ("training.optimizer=sgd", "training.batch_fraction=1.0", "training.rounds=1")
LITTLE = ("privacy.epsilon=inf", "privacy.noise_multiplier=0.0005", "local.bins=4096")


SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("autoencoder", "adaptation")]


@pytest.mark.parametrize("kind", ["several penalties", "generator", *SLOW])
def test_with_little_noise_and_many_bins_a_round_of_any_task_is_the_trusted_servers(federation, kind):
    base, own = KINDS[kind]
    more = {"generator": ["data.records=200", "clip.jacobian=20.0"], "adaptation": ["clip.jacobian=20.0"]}
    same = [*own, *SGD, *more.get(kind, ()), "slicing.directions=4", "federation.clients=3"]
    federation.run(parse_experiment(base, [*same, "privacy.trust=none"]))
    federation.run(parse_experiment(base, [*same, "privacy.trust=distributed", *LITTLE]))
    federation.run(parse_experiment(base, [*same, "privacy.trust=none", "training.learning_rate=1e-9"]))
    trusted, masked, start = (parameters_of(federation.folder / f"run{run}") for run in (1, 2, 3))
    assert float((masked - trusted).norm()) < 0.05 * float((trusted - start).norm())


def problem(kind: str, *overrides: str) -> Problem:
    return Problem.from_experiment(made(kind, *overrides))


def points(draw: torch.Generator, task: Problem, count: int, *, edge: bool = False) -> torch.Tensor:
    """Outputs (count, columns) of all penalties, in their balls or on their surfaces."""
    rows = 3.0 * torch.randn(count, task.columns, generator=draw, dtype=torch.float64)
    if edge:
        rows *= 1e6
    return torch.cat([project(rows[:, each.columns], each.clip.output) for each in task.clipped.compared], dim=1)


@pytest.mark.parametrize("kind", ["several penalties", "autoencoder", "generator"])
def test_replacing_one_record_moves_all_tables_together_by_at_most_their_sensitivity(kind):
    task, draw = problem(kind, "local.bins=200"), torch.Generator().manual_seed(0)
    directions, strata = task.clipped.directions(1, 0), len(task.objective.cells)
    drawn = [4] * strata
    claimed, largest = ranked.sensitivity_of_tables(directions).value, 0.0
    assert claimed == pytest.approx(math.sqrt(2 * sum(each.shape[1] for each in directions)))
    for trial in range(100):
        before = points(draw, task, sum(drawn), edge=bool(trial % 2))
        after = before.clone()
        place = int(torch.randint(len(before), (1,), generator=draw))
        after[place] = -before[place] if trial % 3 else points(draw, task, 1)[0]
        moved = [ranked.counted(task, each, drawn, directions, 200) for each in (before, after)]
        assert len(moved[0]) == ranked.length_of(task, directions, 200)
        largest = max(largest, float((moved[0] - moved[1]).norm()))
    assert 0.9 * claimed < largest <= claimed * (1 + 1e-12)
    if kind == "several penalties":  # a direction of its own lies across no record, and all bins are changed
        assert largest == pytest.approx(claimed)


@pytest.mark.parametrize("kind", ["several penalties", "autoencoder", "adaptation", "equality of odds"])
def test_given_all_tables_a_record_never_moves_the_contributions_beyond_their_sensitivity(kind):
    """Random and adversarial: slot means that no honest server sends, outputs, Jacobians and gradients at their norms.

    All other records' terms stay: a cotangent depends on its own record alone.
    """
    task, draw = problem(kind), torch.Generator().manual_seed(1)
    directions, strata = task.clipped.directions(1, 0), len(task.objective.cells)
    drawn, batch = [3] * strata, [9 + 2 * stratum for stratum in range(strata)]
    spreads, weight = [spread(each) for each in directions], task.objective.task_weight(sum(batch))

    def pulled(rows: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
        return ranked.cotangents(task, rows, drawn, batch, directions, 16, means)

    for stratum in range(strata):
        claimed, largest = ranked.sensitivity_of_contributions(task, batch, spreads, stratum).value, 0.0
        place = 3 * stratum
        for trial in range(60):
            before = points(draw, task, sum(drawn), edge=bool(trial % 2))
            after = before.clone()
            after[place] = -before[place] if trial % 3 == 0 else points(draw, task, 1, edge=True)[0]
            means = 10.0 ** (trial % 4) * torch.randn(
                ranked.length_of(task, directions, 16), generator=draw, dtype=torch.float64
            )
            if trial % 5 == 4:  # the worst for one record: to it, all others are at the other end of every direction
                worst = [
                    (-1e3 * torch.sign(before[place, each.columns] @ theta))[None, :, None]
                    for each, theta in zip(task.clipped.compared, directions, strict=True)
                ]
                shapes = [
                    (len(r.part.cells), t.shape[1], 16) for r, t in zip(ranked.ranked_by(task), directions, strict=True)
                ]
                means = torch.cat([w.expand(shape).reshape(-1) for w, shape in zip(worst, shapes, strict=True)])
                after[place] = before[place]
            q, other = pulled(before, means), pulled(after, means)
            same = torch.ones(len(q), dtype=torch.bool)
            same[place] = False
            assert torch.equal(q[same], other[same])
            own = sum(
                each.clip.jacobian * float(rows[place, each.columns].norm())  # Jacobians that point one way
                for each in task.clipped.compared
                for rows in (q, other)
            )
            largest = max(largest, own + 2 * weight * task.clip.loss)
        assert 0.6 * claimed < largest <= claimed * (1 + 1e-12)
    assert bound_of(task, batch, spreads).value == pytest.approx(
        SLACK * max(ranked.sensitivity_of_contributions(task, batch, spreads, each).value for each in range(strata))
    )


@pytest.mark.parametrize("d", [1, 3])
def test_ranks_to_a_public_sample_converge_to_exact_matching_as_bins_grow(d):
    draw = torch.Generator().manual_seed(d)
    theta = torch.linalg.qr(torch.randn(d, d, generator=draw, dtype=torch.float64)).Q
    task = problem("autoencoder", "model.latent=3", "objective.alpha=1.0")
    part, radius = task.objective.parts[0], task.clip.output
    outputs = project(torch.randn(37, d, generator=draw, dtype=torch.float64), radius)
    sample = project(0.3 * torch.randn(23, d, generator=draw, dtype=torch.float64), part.radius)
    mine, its = cotangents(outputs, sample, theta)
    errors = []
    for bins in (16, 256, 2**16):
        counts = tables.histograms(outputs, theta, radius, bins)
        seen, pulled = tables.matched_to_sample(counts, sample, theta, radius)
        assert float(seen.abs().max()) <= part.radius
        q = tables.cotangents(outputs, theta, seen, part, cell=0, size=37, radius=radius)
        errors.append(max(float((q - mine).norm() / mine.norm()), float((pulled - its).norm() / its.norm())))
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-3


@pytest.mark.parametrize("kind", ["generator", "fixed adaptation"])
def test_where_tables_are_all_that_leaves_they_have_all_of_the_budget(kind):
    task = problem(kind, "training.rounds=20")
    noise = noise_of(task, [90], 1e-4, spreads=[0.5], directions=task.clipped.directions(1, 0))
    (part,) = noise.parts
    assert part.name == "table" and noise.charge(0.2).sensitivity / noise.sigma == part.sensitivity / part.scale
    rate = task.experiment.training.batch_fraction
    assert 1.99 < epsilon_by("pld", {Step(rate, part.sensitivity / part.scale): 20}, 1e-4) <= 2.0


def test_a_contribution_of_records_that_move_nothing_is_refused(tmp_path):
    sites = Sites(tmp_path, made("generator"))
    cohort = sites.cohort()
    sites.table(0, cohort)
    with pytest.raises(Refused, match="private records move no parameter"):
        sites.contribution(0, cohort)
    assert sites.charged(0) == [(1, 0)]


def test_slot_means_of_another_length_are_refused():
    task = problem("several penalties")
    directions = task.clipped.directions(1, 0)
    with pytest.raises(ValueError, match="numbers of tables came for"):
        ranked.cotangents(task, points(torch.Generator(), task, 4), [1] * 4, [9] * 4, directions, 16, torch.zeros(7))


def test_what_only_a_trusted_server_takes_is_refused():
    with pytest.raises(ValueError, match="adds noise for a generator's inputs under trust 'central'"):
        made("generator", "objective.protected=both")
    with pytest.raises(ValueError, match="use 'central' or 'distributed'"):
        small("privacy.trust=local-gradient", "objective.also=[{penalty='equality-of-odds', weight=0.2}]")
