"""What is stored of figures was planned as it is planned today, or is found and run again."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsw._tools.settings import FederationError
from fedsw._tools.text import to_float
from fedsw.experiment import Experiment
from fedsw.experiment.sections import ReleaseSettings, SliceSettings
from fedsw.privacy.accounting import Slicing, Step, epsilon_by
from simulations.papers.__main__ import main
from simulations.papers.cells import Cell
from simulations.papers.figure import Figure, chosen, figures
from simulations.papers.plans import Numbers, differences, planned, stored
from simulations.papers.replanned import planned_again
from simulations.papers.store import Stored, read, write
from simulations.papers.work import make, pieces_of

RESULTS = Path(__file__).parents[2] / "simulations" / "papers" / "results"
MOST_ROUNDS = 500
DIMENSIONS = {
    "published-adaptor": 320, "transported-adaptor": 196, "labelled-images": 794, "blocked-images": 7840,
    "decoded-images": 784, "particles": 8,
}  # fmt: skip
"""Of what is sliced, by the kind of model of runs with so many rounds."""
TINY = ("data.records=400", "data.test_records=200", "training.rounds=3", "federation.clients=2", "evaluate_every=1")


def a_figure(**changes: Any) -> Figure:
    series = {"name": "best", "experiment": "fair-classification", "set": [*TINY, "privacy.epsilon=1"], **changes}
    return Figure.model_validate(
        {"id": "rll/fig97", "source": "S", "title": "T", "caption": "C", "series": [series], "rows": []}
    )


def test_a_run_is_stored_with_the_numbers_that_it_is_planned_with(tmp_path: Path) -> None:
    (piece,) = pieces_of([a_figure()])
    assert make(tmp_path / "runs", tmp_path, piece)
    result = read(tmp_path, piece.key)
    assert result is not None and isinstance(piece.what, Cell)
    then, now = stored(result), planned(piece.what.experiment)
    assert then is not None and list(differences(then, now)) == []
    assert then.multiplier == pytest.approx(now.multiplier) and then.rates == pytest.approx(now.rates)


def test_every_number_that_is_another_one_today_is_listed() -> None:
    then = Numbers(2.0, {"A=0": 1.0, "A=1": 2.0}, {"A=0": 0.1, "A=1": 0.2})
    assert list(differences(then, then)) == []
    moments = replace(then, sensitivities={"A=0": 3.0, "A=1": 6.0}, scaled=True)
    assert list(differences(then, moments)) == [] and list(differences(moments, then)) != []
    for ratio, told in ((2.004, 0), (2.02, 1)):  # of the larger to the smaller, moved by the noise of moments or not
        noisy = replace(moments, sensitivities={"A=0": 3.0, "A=1": 3.0 * ratio})
        assert len(list(differences(then, noisy))) == told
    (told,) = differences(then, replace(then, multiplier=2.01))
    assert told == "noise multiplier 2, 2.01 today"
    (told,) = differences(then, replace(then, sensitivities={"A=0": 1.0, "A=1": 2.2}))
    assert told == "sensitivity of A=1 2, 2.2 today"
    (told,) = differences(then, replace(then, rates={"A=0": 0.15, "A=1": 0.2}))
    assert told == "sampling rate of A=0 0.1, 0.15 today"
    (told,) = differences(then, replace(then, rates={"all": 0.1}))
    assert told == "a sampling rate for each of A=0, A=1; for all today"


def test_a_run_that_is_planned_otherwise_today_is_found_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figure, results = a_figure(), tmp_path / "results"
    (piece,) = pieces_of([figure])
    monkeypatch.setattr("simulations.papers.figure.chosen", lambda names: [figure])
    monkeypatch.setattr("simulations.papers.__main__._write", lambda *given, **more: [])
    folders = ("--runs", str(tmp_path / "again"), "--results", str(results), "--jobs", "1", "--quiet")
    assert make(tmp_path / "runs", results, piece)
    assert main(["--stale", *folders]) == 0  # no figure is named: those of all papers
    assert capsys.readouterr().out.split()[-6:] == ["rll", "1", "1", "0", "0", "0"]

    result = read(results, piece.key)
    assert result is not None
    guarantee = {**result.about["guarantee"], "noise_multiplier": 9.0}
    write(results, piece.key, replace(result, about={**result.about, "guarantee": guarantee}))
    assert main(["rll/fig97", *folders]) == 0  # what is stored is not made again
    for _ in range(2):  # nor by what says that it is planned otherwise
        capsys.readouterr()
        assert main(["--stale", *folders]) == 1
        said = capsys.readouterr()
        assert said.out.split()[-6:] == ["rll", "1", "0", "1", "0", "0"]
        assert f"{piece.key}: noise multiplier 9, " in said.err
    assert main(["--stale", "--json", *folders]) == 1
    assert json.loads(capsys.readouterr().out)["papers"]["rll"]["otherwise"][piece.key][0].startswith("noise")

    assert main(["rll/fig97", "--renew", *folders]) == 0
    assert "noise multiplier 9" in capsys.readouterr().err
    assert main(["--stale", *folders]) == 0


def test_a_stored_run_that_cannot_be_planned_here_is_reported_and_is_not_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (piece,) = pieces_of([a_figure()])
    then = Stored({"guarantee": {"noise_multiplier": 2.0, "sensitivities": {"A=0": 1.0}, "sampling_rates": {"A=0": 1}}})
    write(tmp_path, piece.key, then)
    faults: list[Exception] = [FileNotFoundError("no data"), FederationError("a rule of today")]

    def cannot(experiment: Experiment) -> Numbers:
        raise faults.pop(0)

    monkeypatch.setattr("simulations.papers.plans.planned", cannot)
    found = planned_again(tmp_path, [piece])
    assert (found.same, found.otherwise, found.absent, found.sound) == (0, {}, {piece.key: "no data"}, False)
    found = planned_again(tmp_path, [piece])
    assert found.otherwise == {piece.key: ["no plan today: FederationError: a rule of today"]} and not found.sound
    assert planned_again(tmp_path / "empty", [piece]).stored == 0


@pytest.mark.parametrize("other", ["--quick", "--draw", "--list", "--renew"])
def test_what_says_which_runs_are_stale_runs_nothing(other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--stale", other]) == 2
    assert "--stale runs nothing" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_what_is_stored_is_planned_so_today(monkeypatch: pytest.MonkeyPatch) -> None:
    """One seed of every point of at most so many rounds; noise for more is held without data, below."""
    folder = os.environ.get("FEDSW_DATA")
    if folder is None:
        pytest.skip("FEDSW_DATA is not set: the papers' data sets are not here")
    monkeypatch.setenv("FEDSW_DATA", folder)
    pieces = [
        piece
        for piece in pieces_of(chosen(list(figures())), seeds=1)
        if isinstance(piece.what, Cell) and piece.what.experiment.training.rounds <= MOST_ROUNDS
    ]
    assert any(read(RESULTS, piece.key) is not None for piece in pieces)
    found = planned_again(RESULTS, pieces)
    assert found.otherwise == {} and found.same > 100


def spent(experiment: Experiment, numbers: Numbers, delta: float) -> float:
    """Epsilon of a run by its noise multiplier and rates, composed by the accountant of today."""
    privacy, local, slicing = experiment.privacy, experiment.local, experiment.slicing
    if isinstance(local, ReleaseSettings) and local.mechanism == "laplace":
        return 1 / numbers.multiplier
    sliced = isinstance(local, SliceSettings)
    once = (
        local.once
        if isinstance(local, SliceSettings)
        else bool(experiment.stages) or isinstance(local, ReleaseSettings)
    )
    directions = Slicing(DIMENSIONS[experiment.model.kind], slicing.directions, slicing.scheme) if sliced else None
    step = Step(max(numbers.rates.values()), 1 / numbers.multiplier, slicing=directions)
    return epsilon_by(privacy.accountant, {step: 1 if once else experiment.training.rounds}, delta)


@pytest.mark.slow
def test_noise_of_long_stored_runs_costs_today_what_they_say() -> None:
    """One seed of every point of more rounds; of runs under masks, the noise of all that is released together."""
    held = dict[object, str]()
    for piece in pieces_of(chosen(list(figures())), seeds=1):
        result = read(RESULTS, piece.key)
        if not isinstance(piece.what, Cell) or piece.what.baseline or result is None:
            continue
        experiment, numbers = piece.what.experiment, stored(result)
        said, delta = to_float(result.about["epsilon"]), to_float(result.about["delta"])
        if experiment.training.rounds <= MOST_ROUNDS or numbers is None or not numbers.multiplier:
            continue
        assert said is not None and delta is not None
        if math.isfinite(said) and (numbers.multiplier, said) not in held:
            held[numbers.multiplier, said] = piece.key
            assert spent(experiment, numbers, delta) == pytest.approx(said, rel=1e-3), piece.key
    assert len(held) > 60


@pytest.mark.parametrize(("mechanism", "norm"), [("laplace", "l1"), ("gaussian", "l2")])
def test_a_release_is_planned_in_the_norm_of_its_noise(mechanism: str, norm: str) -> None:
    release = {"experiment": "ring", "set": [
        "data.records=400", "data.test_records=50", "privacy.trust=local-release", "privacy.epsilon=3",
        f"local.mechanism={mechanism}", f"local.norm={norm}",
    ]}  # fmt: skip
    (piece,) = pieces_of([a_figure(**release)])
    assert isinstance(piece.what, Cell)
    assert planned(piece.what.experiment).multiplier == pytest.approx(1 / 3) or mechanism == "gaussian"
