"""Figures of papers: every file is sound, runs are shared and resumed, and what is stored is not made again."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsw.experiment import ExperimentError, load_experiment
from fedsw.experiment.load import SHIPPED
from simulations.papers import work
from simulations.papers.__main__ import main
from simulations.papers.cells import cells_of, computations_of
from simulations.papers.compared import settings_of_figure
from simulations.papers.figure import Figure, Row, chosen, figures, load_figure
from simulations.papers.page import BEST, PRINTED, goals, section
from simulations.papers.pictures import pictures_of
from simulations.papers.store import Measured, Stored, pack, read, write
from simulations.papers.study import Measurement, Study, measured, read_study
from simulations.papers.work import fail, make, missing, pieces_of
from tests.site.pages import built

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "simulations" / "papers" / "results"
TINY = ("data.records=400", "data.test_records=200", "training.rounds=3", "federation.clients=2", "evaluate_every=1")
SERIES: dict[str, Any] = {
    "name": "best",
    "experiment": "fair-classification",
    "set": TINY,
    "over": {"privacy.epsilon": [3.0, 1.0], "objective.alpha": [0.0, 0.5]},
    "measures": ["outputs.curves"],
}


def a_figure(name: str = "rll/fig98", **changes: Any) -> Figure:
    row = {"what": "accuracy", "metric": "accuracy", "at": {"epsilon": 1.0, "alpha": 0.5}, "paper": 0.5, "goal": 0.01}
    whole = {"source": "S", "title": "T", "caption": "C", "series": [SERIES], "rows": [row]}
    return Figure.model_validate({"id": name, **whole, **changes})


@functools.cache
def committed(name: str) -> Study:
    """A figure with what is committed of it, read once for all tests."""
    return read_study(RESULTS, load_figure(name))


def test_a_figure_shows_points_that_any_of_its_series_has_and_no_others() -> None:
    alone = {**SERIES, "name": "without noise", "over": {"privacy.epsilon": ["inf"]}}
    for series in ([SERIES, alone], [alone, SERIES]):
        for epsilon in (3.0, "inf"):
            shown = a_figure(series=series, only={"epsilon": epsilon}, rows=[])
            assert {cell.point["epsilon"] for cell in cells_of(shown)} == {epsilon}
    with pytest.raises(ValueError, match="epsilon = 2.0, which no series has"):
        a_figure(only={"epsilon": 2.0})


@pytest.mark.parametrize("name", figures())
def test_every_figure_names_experiments_measures_and_drawings_that_there_are(name: str) -> None:
    for figure in (load_figure(name), load_figure(name).smallest()):
        for cell in cells_of(figure):
            for measure in cell.measures:
                assert callable(work.function("measures", measure))
        for computation in computations_of(figure):
            assert callable(work.function("computed", computation.function))
        assert figure.draw is None or callable(work.function("drawn", figure.draw))


@pytest.mark.parametrize("name", figures())
def test_every_row_of_a_table_is_a_point_that_some_series_has(name: str) -> None:
    figure = load_figure(name)
    points = [cell.point for cell in cells_of(figure)]
    for row in figure.rows:
        assert figure.compute or any(row.at.items() <= point.items() for point in points), row.what


def test_two_figures_with_the_same_runs_make_each_once_with_the_measures_of_both() -> None:
    one = a_figure()
    other = a_figure("rll/fig99", series=[{**SERIES, "measures": ["outputs.histograms"]}])
    pieces = pieces_of([one, other])
    assert len(pieces) == 4
    assert {piece.measures for piece in pieces} == {("outputs.curves", "outputs.histograms")}


def test_the_key_of_a_run_follows_its_settings_and_neither_its_title_nor_where_data_lie() -> None:
    (cell, *_) = cells_of(a_figure())

    def key(*settings: str) -> str:
        own = a_figure(series=[{**SERIES, "set": [*TINY, *settings]}])
        return cells_of(own)[0].key

    assert key('title="another"', 'data.data_dir="/elsewhere"') == cell.key
    assert key("clip.loss=3.0") != cell.key
    assert cells_of(a_figure(series=[{**SERIES, "seeds": 2}]))[1].key != cell.key


def test_what_is_stored_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    arrays = {"images": np.arange(12, dtype=np.uint8).reshape(3, 4), "curve": np.array([1.5, np.nan], np.float32)}
    write(tmp_path, "one", Stored({"epsilon": 1.0}, {"m": Measured({"accuracy": 0.5}, arrays)}))
    stored = read(tmp_path, "one")
    assert stored is not None and stored.measures["m"].values == {"accuracy": 0.5}
    for name, array in arrays.items():
        np.testing.assert_array_equal(stored.measures["m"].arrays[name], array)
        assert stored.measures["m"].arrays[name].dtype == array.dtype


def test_a_damaged_result_is_named_and_a_large_array_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"about": {}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"one\.json is damaged"):
        read(tmp_path, "one")
    with pytest.raises(ValueError, match="'all' has 1600000 bytes"):
        write(tmp_path, "two", Stored({}, {"m": Measured({}, {"all": np.zeros(200_000)})}))


@pytest.mark.slow
def test_a_picture_of_a_seed_whose_arrays_are_not_stored_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The committed results hold the arrays of median seeds: with fewer seeds another one is the median."""
    assert main(["rll/fig19", "--seeds", "1", "--draw", "--json", "--pages", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "rll/fig19: not drawn: 'points' is not stored of the run that is drawn" in said.err
    assert not any("fig19" in file for file in json.loads(said.out)["files"]) and (tmp_path / "rll.md").exists()


@pytest.mark.slow
def test_packed_results_are_the_same_bit_for_bit_and_newer_ones_take_their_place(tmp_path: Path) -> None:
    arrays = {
        "a": np.array([[0.1, np.nan], [-0.0, np.inf]]),
        "b": np.arange(200_000, dtype="<i4"),
        "c": np.zeros((0, 2)),
    }
    results = {
        f"ring-{number}": Stored({"epsilon": 0.1 + number}, {"m": Measured({"x": 1 / 3}, arrays)})
        for number in range(3)
    } | {"rll-labels": Stored(fault="the process was killed")}
    for key, stored in results.items():
        write(tmp_path, key, stored)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    written = pack(tmp_path)
    assert set(tmp_path.iterdir()) == set(written) and len(written) == 4
    for key in results:
        stored = read(tmp_path, key)
        assert stored is not None
        write(tmp_path / "again", key, stored)
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == before
    write(tmp_path, "ring-1", Stored({"epsilon": 7.0}))
    for _ in range(2):
        newer, other = read(tmp_path, "ring-1"), read(tmp_path, "ring-2")
        assert newer is not None and newer.about == {"epsilon": 7.0}
        assert other is not None and other.about == results["ring-2"].about
        pack(tmp_path)
    pack(tmp_path, without=[("ring-2", "b"), ("ring-1", "a")])
    lighter, other = read(tmp_path, "ring-2"), read(tmp_path, "ring-0")
    assert lighter is not None and set(lighter.measures["m"].arrays) == {"a", "c"}
    assert other is not None and set(other.measures["m"].arrays) == {"a", "b", "c"}
    written = sorted(tmp_path.glob("*.xz"))
    assert read(tmp_path, "ring-9") is None
    written[-1].write_bytes(written[-1].read_bytes()[:40])
    with pytest.raises(ValueError, match=r"rll\.0\.xz is damaged"):
        read(tmp_path, "rll-labels")


def test_a_run_that_stopped_goes_on_and_a_finished_one_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, results = tmp_path / "runs", tmp_path / "results"
    (piece, *_) = pieces_of([a_figure()])
    monkeypatch.setattr(work, "_ENOUGH", 0.6)  # of three rounds the one whose machine failed is paid for twice
    with monkeypatch.context() as broken:
        broken.setattr("fedsw.runs.optimizer.Trainer.step", _fail_in_the_second())
        assert not make(runs, results, piece)
    stored = read(results, piece.key)
    assert stored is not None and stored.fault is not None and missing(results, [piece]) == [piece]
    assert make(runs, results, piece), read(results, piece.key)
    assert missing(results, [piece]) == []
    (directory,) = (runs / piece.key).glob("*/*")
    attempts = (directory / "attempts.log").read_text(encoding="ascii").split("\n")
    assert attempts[0] == "1 0"
    # The first round was not run twice.
    assert sum(line.startswith("1 ") for line in attempts) == 1

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was run again")

    monkeypatch.setattr("fedsw.federation.engines.driver.run", never)
    monkeypatch.setattr("fedsw.federation.engines.driver.resume", never)
    again = work.Piece(piece.key, piece.what, (*piece.measures, "outputs.histograms"))
    assert make(runs, results, again), read(results, piece.key)
    found = read(results, piece.key)
    assert found is not None and set(found.measures) == {"held-out", "outputs.curves", "outputs.histograms"}


def test_a_piece_that_fails_leaves_its_reason_and_keeps_what_was_measured(tmp_path: Path) -> None:
    (piece, *_) = pieces_of([a_figure()])
    write(tmp_path, piece.key, Stored({"epsilon": 1.0}, {"held-out": Measured({"accuracy": 0.5})}))
    fail(tmp_path, piece, "the process was killed")
    stored = read(tmp_path, piece.key)
    assert stored is not None and stored.fault == "the process was killed"
    assert stored.measures["held-out"].values == {"accuracy": 0.5}
    assert missing(tmp_path, [piece]) == [piece]


def test_a_row_is_the_mean_of_its_seeds_at_its_point_alone(tmp_path: Path) -> None:
    figure = a_figure(series=[{**SERIES, "seeds": 3, "measures": []}])
    for cell in cells_of(figure):
        here = cell.point == {"epsilon": 1.0, "alpha": 0.5}
        value = 0.7 + 0.1 * cell.seed if here else 0.1
        write(tmp_path, cell.key, Stored({}, {"held-out": Measured({"accuracy": value})}))
    study = read_study(tmp_path, figure)
    found = measured(study, figure.rows[0], BEST)
    assert found is not None and found.mean == pytest.approx(0.8) and found.deviation == pytest.approx(0.1)
    assert str(found) == "0.8 ± 0.1 (3)" and measured(study, figure.rows[0], PRINTED) is None
    assert study.absent == 0 and "≥0.01: met" in goals([study])


def test_a_missed_goal_and_a_figure_too_far_from_the_paper_say_so(tmp_path: Path) -> None:
    printed = {**SERIES, "name": PRINTED, "set": [*TINY, "clip.loss=5.0"], "measures": []}
    row = {"what": "acc", "metric": "accuracy", "at": {"epsilon": 1.0, "alpha": 0.5}}
    row |= {"paper": 0.9, "within": 0.04, "goal": 0.95}
    figure = a_figure(series=[printed, {**SERIES, "measures": []}], rows=[row])
    for cell in cells_of(figure):
        write(tmp_path, cell.key, Stored({}, {"held-out": Measured({"accuracy": 0.5})}))
    text = "\n".join(map(str, section(read_study(tmp_path, figure), [], tmp_path / "page.md").parts))
    assert "| paper (to 0.04) |" in text and "| acc | 0.9 | ≠0.5 | 0.5 | ≥0.95: missed |" in text


def test_a_pattern_names_a_figure_a_folder_or_many_and_an_unknown_one_is_refused() -> None:
    everything = list(figures())
    assert [figure.id for figure in chosen(["rll"])] == [name for name in everything if name.startswith("rll/")]
    assert [figure.id for figure in chosen(["rll/fig12", "rll/fig1*", "rll/fig12"])][0] == "rll/fig12"
    with pytest.raises(ExperimentError, match="nearest: 'rll/appendix-f'"):
        chosen(["rll/appendix"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"compute": "a.b"}, "either `series` of runs or a function"),
        ({"series": [SERIES, SERIES]}, "two series have the same name"),
        ({"quick": {"of": {"other": ["clip.loss=1"]}}}, "`quick.of` names other; series are best"),
        ({"series": [{**SERIES, "where": [{"at": {"epsilon": 7.0}, "set": []}]}]}, "names epsilon = 7.0"),
    ],
)
def test_a_figure_that_contradicts_itself_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        a_figure(**change)


@pytest.mark.slow
def test_the_commands_path_from_quick_runs_to_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    papers = tmp_path / "papers-of-mine" / "own"
    papers.mkdir(parents=True)
    content = (
        'source = "Own, Figure 1"\ntitle = "t"\ncaption = "c"\ndraw = "curves.losses"\n[[series]]\nname = "best"\n'
        f'experiment = "fair-classification"\nset = {json.dumps(list(TINY))}\n'
        'over = { "privacy.epsilon" = [3.0, 1.0], "objective.alpha" = [0.0, 0.5] }\nmeasures = ["outputs.curves"]\n'
    )
    (papers / "fig1.toml").write_text(content, encoding="utf-8")
    monkeypatch.setattr("simulations.papers.figure.PAPERS", papers.parent)
    assert main(["own/fig1", "--quick", "--jobs", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["figures"][0]["results"] == 1 and shown["failed"] == {}
    assert {Path(name).name for name in shown["files"]} == {
        "own-fig1-best.png", "claims.png", "settings.md", "own.png", "own.md",
    }  # fmt: skip
    page = Path(shown["files"][-1]).read_text(encoding="utf-8")
    assert "images/own-fig1-best.png" in page and "own.png" not in page
    assert main([]) == 2
    assert "--list" in capsys.readouterr().err


@pytest.mark.parametrize("paper", sorted({name.partition("/")[0] for name in figures()}))
def test_a_built_page_has_every_figure_of_its_paper_with_its_pictures(paper: str) -> None:
    page = built(f"docs/papers/{paper}.md")
    images = ROOT / "docs" / "papers" / "images"
    for figure in chosen([paper]):
        assert f"[`{figure.id}`](settings.md#settings-{figure.id.replace('/', '-')})" in page
        assert {path.name for path in pictures_of(images, figure.id)} <= set(re.findall(r"images/([\w.-]+)", page))


@pytest.mark.parametrize("name", ["rll/fig12", "rr/fig1", "spf/fig1"])
def test_the_built_page_of_settings_has_the_table_of_a_figure(name: str) -> None:
    assert settings_of_figure(load_figure(name)) in built("docs/papers/settings.md")


def test_the_built_page_of_settings_has_every_figure_once() -> None:
    page = built("docs/papers/settings.md")
    for name in figures():
        assert page.count(f'<a id="settings-{name.replace("/", "-")}"></a>') == 1


def test_the_page_of_results_has_every_goal_with_what_was_measured() -> None:
    assert goals([committed(name) for name in figures()]) in built("docs/measured/models.md")


def test_without_clipping_there_is_no_guarantee_to_promise() -> None:
    path = SHIPPED / "experiments" / "fair-classification.toml"
    with pytest.raises(ExperimentError, match=r"clip\.mode 'none' bounds nothing"):
        load_experiment(path, ["clip.mode=none"])
    assert load_experiment(path, ["clip.mode=none", "privacy.trust=none"]).clip.open


def test_a_measurement_of_nothing_is_none() -> None:
    assert Measurement.of([]) is None
    assert Row(what="w", metric="m").goal is None


def _fail_in_the_second() -> Any:
    from fedsw.runs.optimizer import Trainer

    step, calls = Trainer.step, []

    def failing(self: Trainer, *arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("the machine went down")
        return step(self, *arguments, **named)

    return failing


def test_a_picture_belongs_to_one_figure_though_names_go_on_from_each_other(tmp_path: Path) -> None:
    names = ("rll-fig5.png", "rll-fig5-communities.png", "rll-fig2-best-generated.png", "rll-fig22.png")
    for name in names:
        (tmp_path / name).touch()
    found = {figure: [path.name for path in pictures_of(tmp_path, figure)] for figure in figures()}
    assert {figure: pictures for figure, pictures in found.items() if pictures} == {
        "rll/fig5": ["rll-fig5.png"],
        "rll/fig5-communities": ["rll-fig5-communities.png"],
        "rll/fig2": ["rll-fig2-best-generated.png"],
        "rll/fig22": ["rll-fig22.png"],
    }
