"""Settings of figures: the paper's stand in files, ours are read off experiments; a page has both side by side."""

from __future__ import annotations

import functools
import os
import re
import unicodedata
from pathlib import Path

import pytest
import torch
from torch import nn

from fedsw.experiment import ExperimentError, load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.learning.tasks.problem import Problem
from simulations.papers import compared
from simulations.papers.cells import cells_of
from simulations.papers.compared import NOT_PRINTED, printed, settings_of_figure, start_of
from simulations.papers.figure import chosen, load_figure

OURS = ("Beside", "After", "Xian", "Sketches")
"""How the sources of figures begin that no paper has."""
PAPERS = ("rco", "rll", "rr", "spf")


@functools.cache
def lines_of(name: str) -> dict[str, list[str]]:
    """A figure's table by its first column; the second is the paper's."""
    rows = [line.strip("| ").split(" | ") for line in settings_of_figure(load_figure(name)).splitlines()]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_figure_of_a_paper_has_what_the_paper_prints_of_it(paper: str) -> None:
    asked = [figure for figure in chosen([paper]) if not figure.source.startswith(OURS)]
    missing = {figure.runs_of or figure.id for figure in asked} - printed(paper).keys()
    assert missing <= {"rco/legible", "rll/fid"}  # one in features of ours; one of another figure's runs


def test_what_a_paper_does_not_print_says_so_and_ours_is_what_runs() -> None:
    table = lines_of("rll/table1")
    assert table["setting"][:2] == ["paper (5.3, 6.2, 6.4, A, B)", "here: paper's settings"]
    assert table["learning rate"][:2] == [NOT_PRINTED, "0.001"]
    assert table["initial weights"][:2] == [NOT_PRINTED, "Xavier, biases 0"]
    assert table["L, clip of Jacobians"][:2] == ["√6", "2.45"]
    for name in ("rll/fig12", "rll/fig17", "rll/fig19"):
        (series, *_) = load_figure(name).series
        cells = [cell.experiment for cell in cells_of(load_figure(name), seeds=1) if cell.series == series.name]
        assert lines_of(name)["rounds"][1] == str(cells[0].training.rounds) == lines_of(name)["rounds"][0]
        assert lines_of(name)["learning rate"][1] == f"{cells[0].training.learning_rate:g}"


def test_a_figure_or_a_setting_that_there_is_not_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared, "PRINTED", tmp_path)
    for text, words in (
        ('["rll/fig99"]\nrounds = "5"', "no figure 'rll/fig99'"),
        ('["rll/fig12"]\nspeed = "5"', "rll/fig12 has no setting 'speed'; it has data"),
    ):
        (tmp_path / "rll.toml").write_text(text, encoding="utf-8")
        printed.cache_clear()
        with pytest.raises(ExperimentError, match=words):
            printed("rll")
    printed.cache_clear()


@pytest.mark.parametrize("name", ["fair-classification-rll", "fair-regression-rll", "fair-representation-rll"])
def test_weights_that_are_said_to_start_uniformly_do(name: str) -> None:
    experiment = load_experiment(find_experiment(name), ["data.records=400", "data.test_records=50"])
    assert start_of(experiment.model.kind) == "uniform on ±1/√inputs"
    model = Problem.from_experiment(experiment).build_model()
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    assert layers
    for layer in layers:
        bound = layer.in_features**-0.5
        assert 0.5 * bound < float(layer.weight.detach().abs().max()) <= bound


def test_weights_that_are_said_to_start_as_in_the_authors_notebook_do() -> None:
    from fedsw.learning.models.image_networks import ImageAutoencoder

    for layer in ImageAutoencoder(28, 6, seed=0).modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            bound = (6 / (layer.weight.shape[0] + layer.weight.shape[1])) ** 0.5
            assert 0.5 * bound < float(layer.weight.detach().abs().max()) <= bound
            assert layer.bias is None or torch.count_nonzero(layer.bias) == 0


TABLE_4 = {(10608, 1050), (4564, 450), (4446, 400), (10382, 1000), (15172, 1500), (14828, 1450)}


def test_rll_table_4_has_batches_of_a_tenth_of_every_group_as_ours_have() -> None:
    assert all(abs(batch / size - 0.1) < 0.011 for size, batch in TABLE_4)
    for name in ("rll/fig12", "rll/fig17", "rll/fig19"):
        assert lines_of(name)["batch"][1] == "0.1 of a group"


def passes(name: str, series: str, records: int, **point: float) -> float:
    """How often a series of a figure goes through so many records."""
    (cell, *_) = [
        cell for cell in cells_of(load_figure(name), seeds=1)
        if cell.series == series and all(cell.point[key] == value for key, value in point.items())
    ]  # fmt: skip
    training = cell.experiment.training
    return training.rounds * (training.batch_size or training.batch_fraction * records) / records


def test_numbers_of_steps_are_those_of_the_printed_passes() -> None:
    assert passes("spf/table1", "paper's settings", 30_000) == pytest.approx(35, abs=0.01)
    assert passes("spf/table1-generator", "paper's settings", 30_000, epsilon=10.0) == pytest.approx(35, abs=0.01)
    assert passes("rco/fig1", "shortened", 60_000) == pytest.approx(7, abs=0.5)
    cases = {case["name"]: case for case in load_figure("rr/noise").settings["cases"]}
    assert cases["reference"]["rounds"] == cases["mnist"]["rounds"] == 100 * 60_000 // 100
    (pair,) = load_figure("rr/table1-as-coded").settings["pairs"]
    epochs = pair["epochs"] - 1 - pair["warm_up"]  # whole batches of MNIST, in the epochs after the warm-up
    assert cases["adaptation"]["rounds"] == epochs * (60_000 // pair["batch"])


def plain(text: str) -> str:
    """A text without line breaks, hyphens at them, ligatures, signs of mathematics and emphasis."""
    text = re.sub(r"(?<=\w)-\n(?=[a-z])", "", unicodedata.normalize("NFKC", text))
    return re.sub(r"\s+", " ", re.sub(r"[$*]|\[[^]]*\]\(#[^)]*\)", "", text))


TEXTS = Path(os.environ.get("FEDSW_PAPERS", Path(__file__).parents[3] / "shared" / "papers"))
_needs_texts = pytest.mark.skipif(not TEXTS.is_dir(), reason="the papers' texts are not at hand: FEDSW_PAPERS=folder")


@functools.cache
def text_of(paper: str) -> str:
    return (TEXTS / f"{paper}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("paper", PAPERS)
def test_every_printed_setting_has_its_words_and_every_figure_where_the_others_were_looked_for(paper: str) -> None:
    for name, settings in printed(paper).items():
        assert settings.looked, name
        for key, said in settings.said.items():
            assert re.search(r"\w|∞", said.value) and re.search(r"\w{2}|\d", said.words), f"{name}: {key}"


@_needs_texts
@pytest.mark.parametrize("paper", PAPERS)
def test_the_words_of_every_printed_setting_stand_in_the_paper(paper: str) -> None:
    text = plain(text_of(paper))
    for name, settings in printed(paper).items():
        strange = {key: said.words for key, said in settings.said.items() if plain(said.words) not in text}
        assert not strange, name


@_needs_texts
@pytest.mark.parametrize("paper", PAPERS)
def test_settings_were_looked_for_in_sections_that_there_are(paper: str) -> None:
    for name, settings in printed(paper).items():
        for section in re.findall(r"\b(?:[A-G](?:\.\d)?|\d(?:\.\d)?)\b", settings.looked.partition("Figure")[0]):
            assert re.search(rf"^(?:#+ |\**)?{section}\.? \S", text_of(paper), re.MULTILINE), f"{name}: {section}"
