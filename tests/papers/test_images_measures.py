"""What is measured on autoencoders: distances of Gaussians, ends of interpolations, the earliest image of a class."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedsw.experiment import load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.learning.models import ImageAutoencoder
from fedsw.learning.tasks.generated_samples import accuracy_of, image_classifier
from simulations.papers.cells import cells_of
from simulations.papers.computed.noise import of_the_autoencoder
from simulations.papers.figure import load_figure
from simulations.papers.measures import frechet as distances
from simulations.papers.measures import images
from simulations.papers.measures.autoencoders import decoded, encoded, first_of_each, inside
from simulations.papers.store import Measured, Stored


def of_samples(mean: np.ndarray, root: np.ndarray, rows: int, seed: int) -> np.ndarray:
    """A sample whose mean and covariance are exactly `mean` and `root @ root.T`."""
    normals = np.random.default_rng(seed).normal(size=(rows, len(mean)))
    normals -= normals.mean(0)
    normals = normals @ np.linalg.inv(np.linalg.cholesky(np.cov(normals, rowvar=False))).T
    return mean + normals @ root.T


def test_the_distance_of_two_gaussians_with_commuting_covariances_is_the_closed_form():
    first, second = np.array([1.0, 2.0, 0.5]), np.array([3.0, 0.1, 0.5])
    one = of_samples(np.array([1.0, 0, 0]), np.diag(first), 50, 0)
    other = of_samples(np.array([0, 0, 2.0]), np.diag(second), 70, 1)
    assert distances.frechet(one, other) == pytest.approx(5 + np.square(first - second).sum())


def test_the_distance_of_two_gaussians_in_general_is_that_of_the_root_of_their_product():
    generator = np.random.default_rng(2)
    roots = generator.normal(size=(2, 4, 4))
    one, other = (of_samples(np.zeros(4), root, 60, 3) for root in roots)
    first, second = (root @ root.T for root in roots)
    values = np.linalg.eigvals(first @ second).real  # those of first^1/2 second first^1/2
    expected = np.trace(first) + np.trace(second) - 2 * np.sqrt(values.clip(0)).sum()
    assert distances.frechet(one, other) == pytest.approx(expected)
    assert distances.frechet(other, one) == pytest.approx(expected)


def test_the_distance_of_a_sample_to_itself_is_nothing_even_where_its_features_do_not_span_the_space():
    flat = np.random.default_rng(4).normal(size=(30, 2)) @ np.array([[1.0, 2, 3], [0, 1, 1]])
    assert distances.frechet(flat, flat) == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match=r"\(1, 3\) and \(30, 3\)"):
        distances.frechet(flat[:1], flat)


def test_the_earliest_record_of_each_label_is_the_first_in_the_order_of_the_file():
    labels = torch.tensor([2, 0, 2, 1, 0, 4, 1])
    assert first_of_each(labels).tolist() == [1, 3, 0, 5]


def test_interpolations_end_at_the_reconstructions_and_are_straight_between_them():
    model = ImageAutoencoder(8, 3, seed=1)
    run = SimpleNamespace(model=model.eval())
    faces = torch.rand(4, 64, generator=torch.Generator().manual_seed(0))
    codes = encoded(run, faces)
    lines = images.interpolations(codes)
    assert lines.shape == (6, images.STEPS, 3)
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    remade, ends = decoded(run, codes), decoded(run, lines.reshape(-1, 3)).reshape(6, images.STEPS, -1)
    for number, (first, last) in enumerate(pairs):
        torch.testing.assert_close(ends[number, 0], remade[first])
        torch.testing.assert_close(ends[number, -1], remade[last])
        steps = lines[number].diff(dim=0)
        torch.testing.assert_close(steps, steps[:1].expand_as(steps))


def test_codes_are_projected_as_training_compares_them_and_left_alone_without_clips():
    far = torch.tensor([[3.0, 4.0], [0.3, 0.4]])

    def run(open_: bool) -> SimpleNamespace:
        return SimpleNamespace(experiment=SimpleNamespace(clip=SimpleNamespace(open=open_, output=1.0)))

    torch.testing.assert_close(inside(run(False), far), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    assert torch.equal(inside(run(True), far), far)


def test_a_lenet_tells_its_images_apart_and_its_features_put_other_images_further_away():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 2
    bars = torch.zeros(400, 16, 16)
    bars[labels == 0, 4:7] = 1.0
    bars[labels == 1, :, 4:7] = 1.0
    faces = (bars + 0.1 * torch.rand(400, 16, 16, generator=generator)).reshape(400, -1)
    network = distances.lenet_features(faces[:200], labels[:200], classes=2)
    own = distances.features_of(network, faces[:200])
    alike = distances.frechet(own, distances.features_of(network, faces[200:]))
    other = distances.frechet(own, distances.features_of(network, 1 - faces[200:]))
    assert own.shape == (200, 84)
    assert alike < 0.1 * other


def test_a_classifier_is_right_on_images_like_its_own_and_wrong_on_exchanged_ones():
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 2, (300,), generator=generator)
    faces = torch.rand(300, 9, generator=generator)
    faces[:, 0] = labels.float()
    model = image_classifier(faces, labels, classes=2, epochs=40)
    assert accuracy_of(model, faces, labels) > 0.95
    exchanged = faces.clone()
    exchanged[:, 0] = 1 - exchanged[:, 0]
    assert accuracy_of(model, exchanged, labels) < 0.1


def test_without_inception_weights_there_is_a_message_and_the_measure_waits_for_them(monkeypatch, tmp_path):
    monkeypatch.delenv(distances.INCEPTION, raising=False)
    found = distances.inception(SimpleNamespace())
    assert "FEDSW_INCEPTION" in found.values["fid_missing"] and "fid" not in found.values
    stored = Stored(measures={"frechet.inception": found, "other": Measured({"x": 1.0})})
    assert not stored.lacks("frechet.inception") and stored.lacks("unknown") and not stored.lacks("other")
    monkeypatch.setenv(distances.INCEPTION, str(tmp_path / "none.pt"))
    assert stored.lacks("frechet.inception")
    with pytest.raises(ValueError, match="is no TorchScript file"):
        distances.inception(SimpleNamespace())


def test_inception_features_are_those_of_grey_bytes_in_three_channels(monkeypatch, tmp_path):
    class Means(torch.nn.Module):
        def forward(self, pictures: torch.Tensor) -> torch.Tensor:
            return pictures.to(torch.float32).mean(dim=(2, 3))

    path = tmp_path / "means.pt"
    torch.jit.save(torch.jit.script(Means()), str(path))
    network = distances._inception(path)
    grey = torch.full((2, 16), 0.2)
    assert network(grey).tolist() == [[51.0] * 3] * 2


def test_ours_needs_about_half_the_noise_that_is_printed_and_the_printed_bound_is_twelve_m_l():
    settings = {"records": 60_000, "batch": 600, "rounds": 500, "directions": 100}
    found = of_the_autoencoder([10.0, 1.0], 1e-5, **settings).values
    assert found["ratio_worst"] == max(found["ratio_10"], found["ratio_1"]) <= 0.55
    assert found["ratio_of_bounds"] <= 0.55
    from simulations.papers.computed import noise

    printed = (0.1 * 12 * 1.5 * 6**0.5 + 0.9 * 2) / 600
    assert noise._sensitivity("paper", 600, None) == pytest.approx(printed)


def test_a_figure_shows_its_own_part_of_shared_runs_and_no_run_is_made_twice():
    whole, digits = load_figure("rll/table1"), load_figure("rll/fig2")
    keys = {cell.key: cell.point["source"] for cell in cells_of(whole)}
    mine = {cell.key for cell in cells_of(digits)}
    assert mine == {key for key, source in keys.items() if source == "mnist"}
    measured = {cell.measures for cell in cells_of(load_figure("rll/fid"))}
    assert all("frechet.inception" in names for names in measured)
    assert all("frechet.inception" not in cell.measures for cell in cells_of(whole))


def test_the_shortened_settings_are_the_papers_but_for_the_rounds_that_the_figure_owns_up_to():
    figure = load_figure("rll/table1")
    printed = [cell for cell in cells_of(figure) if cell.series == "shortened"]
    assert load_experiment(find_experiment("swae-mnist-rll")).training.rounds == 5000
    (said,) = [series.what for series in figure.series if series.name == "shortened"]
    for cell in printed:
        chosen = cell.experiment
        assert f"{chosen.training.rounds} of their 5000 rounds" in said
        assert (chosen.training.batch_fraction, chosen.slicing.directions) == (0.01, 100)
        assert (chosen.clip.loss, chosen.clip.output, chosen.objective.alpha) == (1.0, 1.5, 0.1)
        assert chosen.clip.jacobian == pytest.approx(6**0.5) and chosen.privacy.delta == 1e-5
        private = cell.point["epsilon"] != "inf"
        assert chosen.clip.mode == ("row" if private else "none")
        assert chosen.privacy.trust == ("central" if private else "none")
        assert (chosen.privacy.bound, chosen.privacy.accountant) == ("paper", "gdp-clt-uniform")


def test_the_ablation_moves_one_setting_at_a_time_from_one_shared_run():
    cells = cells_of(load_figure("rll/fig6"))
    every = [{cell.key for cell in cells if cell.series == series} for series in {cell.series for cell in cells}]
    (shared,) = set.intersection(*every)
    start = next(cell for cell in cells if cell.key == shared).experiment.model_dump(mode="json")
    for cell in cells:
        now = cell.experiment.model_dump(mode="json")
        moved = [(s, k) for s in start if isinstance(start[s], dict) for k in start[s] if start[s][k] != now[s][k]]
        assert len(moved) == (cell.key != shared), json.dumps(moved)
