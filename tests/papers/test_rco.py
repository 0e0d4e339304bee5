"""Laws of what RCO's figures are made with: largest coefficients, fixed iterations, tuned wavelets, a critic."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from fedsw._tools.randomness import Stream
from fedsw.data.sources import load_dataset
from fedsw.experiment import Experiment, ExperimentError, load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.public_side import Adversary
from fedsw.mathematics.transport.denoise import wavelet_denoise
from fedsw.mathematics.transport.entropic import entropic_loss
from fedsw.privacy.local_release import RecordRelease, largest
from fedsw.runs.optimizer import shortened
from simulations.papers.cells import cells_of
from simulations.papers.computed.oracle import tuned
from simulations.papers.figure import figures, load_figure
from simulations.papers.measures.released import noise_of
from simulations.papers.measures.transport import w2

RELEASE = ("privacy.trust=local-release", "clip.output=4", "clip.centre=0.3")
DCGAN = (*RELEASE, "model.kind=dcgan", "model.hidden=[4,2]")
ADVERSARIAL = (*RELEASE, "model.kind=adversarial-dcgan", "model.hidden=[4,2]", "local.loss=adversarial")


def digits(*settings: str) -> Experiment:
    return load_experiment(find_experiment("digits"), list(settings))


def normals(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("keep", [0.05, 0.2, 0.5])
def test_what_is_kept_is_largest_and_the_rest_is_zero(keep: float) -> None:
    rows = normals(7, 40)
    kept = largest(rows, keep)
    for row, found in zip(rows, kept, strict=True):
        there = found != 0
        assert int(there.sum()) == int(keep * 40)
        assert torch.equal(found[there], row[there])
        assert row[there].abs().min() >= row[~there].abs().max()


def test_a_record_keeps_its_coefficients_whatever_the_others_are() -> None:
    release = RecordRelease(1.0, 1e-5, 2.0, dct=True, keep=0.2)
    rows = normals(5, 64)
    together = release.project(rows)
    alone = torch.cat([release.project(row.unsqueeze(0)) for row in rows])
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=0)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_what_is_kept_still_lies_in_the_ball_that_the_noise_is_for(norm) -> None:
    release = RecordRelease(1.0, 1e-5, 2.0, norm=norm, dct=True, keep=0.2)
    rows = release.project(100 * normals(50, 64))
    assert torch.linalg.vector_norm(rows, ord=1 if norm == "l1" else 2, dim=1).max() <= 2.0
    assert release.scale == dataclasses.replace(release, keep=1.0).scale


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.5])
def test_a_part_outside_its_range_is_refused(keep: float) -> None:
    with pytest.raises(ValueError, match="keep is"):
        RecordRelease(1.0, 1e-5, 2.0, keep=keep)


@pytest.mark.parametrize("order", [1, 2])
def test_many_fixed_iterations_reach_the_converged_value_and_one_does_not(order) -> None:
    x, y = normals(30, 3), normals(40, 3, seed=1)
    exact = entropic_loss(x, y, order=order, scale=0.7, tolerance=1e-10)
    many = entropic_loss(x, y, order=order, scale=0.7, fixed=2000)
    once = entropic_loss(x, y, order=order, scale=0.7, fixed=1)
    assert many.marginal_error < 1e-8 and many.loss == pytest.approx(float(exact.loss), rel=1e-7)
    assert once.marginal_error > 1e-3 and not once.converged


def test_thresholds_of_zero_give_back_what_came_and_large_ones_only_the_coarse() -> None:
    rows = normals(3, 256)
    same = wavelet_denoise(rows, 1.0, wavelet="haar", thresholds=(0.0, 0.0))
    torch.testing.assert_close(same, rows)
    coarse = wavelet_denoise(rows, 1.0, wavelet="haar", thresholds=(1e6, 1e6)).reshape(3, 4, 4, 4, 4)
    torch.testing.assert_close(coarse, coarse.mean(dim=(2, 4), keepdim=True).expand_as(coarse))


@pytest.mark.parametrize("thresholds", [(1.0,) * 9, (-1.0,), (float("inf"),)])
def test_thresholds_that_no_level_takes_are_refused(thresholds) -> None:
    with pytest.raises(ValueError, match="levels at most"):
        wavelet_denoise(normals(2, 256), 1.0, wavelet="haar", thresholds=thresholds)


def test_the_oracle_is_at_least_as_good_as_one_threshold_for_all_levels() -> None:
    place = torch.linspace(-1, 1, 16, dtype=torch.float64)
    clean = ((place[:, None] ** 2 + place**2 < 0.5) * 1.0).reshape(1, -1).repeat(20, 1)
    noised = clean + 0.4 * normals(20, 256)
    error, thresholds = tuned(clean, noised, 0.4, "haar")
    for depth in (1, 2, 3, 4):
        for each in (0.5, 1.0, 2.0, 3.0):
            other = wavelet_denoise(noised, 0.4, wavelet="haar", thresholds=(each,) * depth)
            assert error <= float((other - clean).square().mean().sqrt()) + 1e-12
    assert error < 0.4 and 1 <= len(thresholds) <= 4


@pytest.mark.parametrize(("mechanism", "norm"), [("gaussian", "l2"), ("laplace", "l1")])
def test_noise_that_is_shown_has_the_deviation_of_the_release(mechanism, norm) -> None:
    release = RecordRelease(3.0, 1e-4, 5.0, mechanism=mechanism, norm=norm)
    noise = noise_of(release, torch.Size((200, 200)), Stream.seeded(1))
    assert float(noise.std()) == pytest.approx(release.deviation, rel=0.02)
    assert abs(float(noise.mean())) < 0.05 * release.deviation


def test_the_exact_distance_of_a_shift_is_the_shift() -> None:
    points = normals(50, 4)
    assert w2(points, points + torch.tensor([3.0, 0.0, 4.0, 0.0])) == pytest.approx(5.0)


def test_the_generator_and_the_critic_move_in_turn() -> None:
    task = Problem.from_experiment(digits(*ADVERSARIAL, "local.critic=2"))
    model = task.build_model()
    theta = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).double()
    own = sum(each.numel() for each in model.generator.parameters())
    adversary = Adversary(task)
    for round_ in range(1, 7):
        gradient = adversary.gradient(theta, normals(16, 64), round_, 0)
        moving, still = (gradient[:own], gradient[own:]) if round_ % 3 == 0 else (gradient[own:], gradient[:own])
        assert moving.abs().max() > 0 and still.abs().max() == 0


def test_a_critic_that_follows_its_gradient_tells_generated_points_from_released_ones() -> None:
    task = Problem.from_experiment(digits(*ADVERSARIAL, "local.critic=1000", "training.precision=float64"))
    model = task.build_model()
    theta = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    adversary, released = Adversary(task), 0.5 + 0.1 * normals(64, 64)
    moved = torch.nn.Parameter(theta.clone())
    optimizer = torch.optim.Adam([moved], lr=0.01)
    latents = task.latents(64, "test")

    def gap() -> float:
        task.prepared(model, moved.detach())
        with torch.no_grad():
            return float(model.critic(released + 0.3).mean() - model.critic(model(latents)).mean())

    assert abs(gap()) < 0.01
    for round_ in range(1, 60):
        moved.grad = adversary.gradient(moved.detach(), released, round_, 0)
        optimizer.step()
    assert gap() > 0.1


def test_a_released_vector_is_shortened_along_itself_and_only_where_it_is_longer() -> None:
    vector = normals(20)
    length = float(torch.linalg.vector_norm(vector))
    assert torch.equal(shortened(vector, None), vector) and torch.equal(shortened(vector, 2 * length), vector)
    torch.testing.assert_close(shortened(vector, length / 3), vector / 3)


def test_fewer_records_are_the_first_ones_and_held_out_ones_stay() -> None:
    everything, some = (load_dataset(digits(*few).record_source) for few in ((), ("data.most_records=100",)))
    assert torch.equal(some.train.features, everything.train.features[:100])
    assert torch.equal(some.test.features, everything.test.features)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((*DCGAN, "local.loss=adversarial"), "train the critic of 'adversarial-dcgan'"),
        ((*RELEASE, "model.kind=adversarial-dcgan"), "train the critic of 'adversarial-dcgan'"),
        ((*DCGAN, "local.loss=plain", "local.iterations=9"), "local: iterations is nothing that"),
        ((*DCGAN, "local.wavelet=haar"), "local: wavelet is nothing that"),
        ((*DCGAN, "local.critic=3"), "local: critic is nothing that"),
        (("local.keep=0.5",), "keep is 0.5, .* under 'local-release'"),
        (("data.source=ring", "data.most_records=5"), "data: most_records is for named data sets"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, words) -> None:
    with pytest.raises(ExperimentError, match=words):
        digits(*settings)


def test_a_generator_that_mixes_samples_is_refused_where_it_would_be_clipped() -> None:
    Problem.from_experiment(digits(*DCGAN))
    with pytest.raises(ValueError, match="BatchNorm"):
        Problem.from_experiment(digits("model.kind=dcgan", "model.hidden=[4,2]"))


@pytest.mark.parametrize("name", [name for name in figures() if name.startswith("rco/")])
def test_what_is_best_keeps_its_budget_and_what_is_printed_has_the_papers_diameter(name: str) -> None:
    for cell in cells_of(load_figure(name)):
        local = cell.experiment.local
        assert cell.experiment.privacy.trust == "local-release"
        assert (local.diameter == "replacement") == (cell.series == "best")
        if cell.series == "shortened":
            assert local.loss == "entropic" and local.iterations in (200, 400) and local.calibration == "rco"


def test_the_ring_as_printed_has_the_settings_of_the_appendix() -> None:
    for cell in (each for each in cells_of(load_figure("rll/fig22")) if each.series == "paper's method"):
        experiment = cell.experiment
        assert experiment.data.records * experiment.training.batch_fraction == 10_000
        assert experiment.training.learning_rate == 0.0075 and experiment.slicing.directions == 50
        assert (experiment.clip.output, experiment.clip.mode) == (1.0, "row")
        assert experiment.clip.jacobian == experiment.training.released_norm == pytest.approx(np.sqrt(8))
        assert experiment.privacy.bound == "paper" and experiment.objective.protected == "both"
