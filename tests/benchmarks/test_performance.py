"""The pages about speed and scale hold what JSON and arithmetic give; benchmarks give rows that they can show."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.performance import __main__ as command
from benchmarks.performance import arithmetic, gpu, rows, scale, table, timing
from benchmarks.performance.runs import Run, synthetic, timed_run

ROW: dict[str, Any] = {
    "what": "rounds",
    "against": "a loop",
    "ours": 2.0,
    "other": 50.0,
    "ratio": 25.0,
    "goal": "at least 25 times faster",
    "met": True,
    "spread": "",
    "note": "",
}
MACHINE = {
    "processor": "P",
    "cores": 2,
    "threads": "1",
    "load": 0.5,
    "python": "3.11.7 (x)",
    "versions": {"torch": "2"},
}


GPU = {"name": "Kind 7", "cuda": "13.0", "memory_bytes": 1}


def store(folder: Path, name: str, *found: dict[str, Any], complete: bool = True) -> None:
    machine = {**MACHINE, "date": "2026-01-02T03:04:05+00:00", **({"gpu": GPU} if name == "gpu" else {})}
    stored = {"about": name, "quick": False, "machine": machine, "rows": found, "seconds": 7.0, "complete": complete}
    (folder / f"{name}.json").write_text(json.dumps(stored), encoding="utf-8")


def test_every_stored_row_has_the_agreed_keys() -> None:
    for name, stored in table.load(table.RESULTS).items():
        assert not stored["quick"], f"{name}.json is of a quick run"
        for row in stored["rows"]:
            assert rows.explained(rows.checked(row)), f"{name}: {row['what']} misses its goal and does not say why"


def test_only_a_goal_that_is_met_needs_no_reason() -> None:
    assert rows.explained(ROW)
    assert not rows.explained({**ROW, "met": False}) and not rows.explained({**ROW, "met": None})
    assert rows.explained({**ROW, "met": False, "note": "the disk is slow"})


def test_the_page_shows_every_row_and_why_a_goal_is_missed(tmp_path: Path) -> None:
    missed = {**ROW, "what": "slow", "met": False, "note": "the disk is slow", "ratio": 3.0}
    skipped = {**ROW, "what": "absent", "met": None, "note": "no such package", "ours": None, "ratio": None}
    store(tmp_path, "one", ROW, missed)
    store(tmp_path, "two", skipped, complete=False)
    page = table.page(tmp_path)
    assert "Times on a GPU are not measured yet" in page
    link = "[one](../../benchmarks/results/performance/one.json)"
    assert f"| {link} | rounds | a loop | 2 | 50 | 25 | at least 25 times faster | yes |" in page
    assert f"| {link} | slow | a loop | 2 | 50 | 3 | at least 25 times faster | **no** |" in page
    assert "| absent | a loop | – | 50 | – | at least 25 times faster | not measured |" in page
    assert "1 of 3 goals are met; 1 could not be measured here." in page
    assert "the disk is slow" in page and "no such package" in page
    assert "two: broken off" in page
    assert "P, 2 cores" in page and "2026-01-02 03:04" in page


def test_the_benchmark_of_curves_shows_the_exponents_that_it_fitted(tmp_path: Path) -> None:
    store(tmp_path, "curves", {**ROW, "what": "sorting", "ours": 1.07, "spread": "10: 1 s, 100: 12 s"})
    page = table.page(tmp_path)
    assert "| sorting | 10: 1 s, 100: 12 s | 1.07 | at least 25 times faster | yes |" in page
    assert "| sorting | a loop |" not in page


@pytest.mark.parametrize("key", rows.KEYS)
def test_a_row_without_an_agreed_key_is_refused_by_name(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        rows.checked({name: value for name, value in ROW.items() if name != key})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ours": "2 s"}, "ours"),
        ({"ratio": "2 times"}, "ratio"),
        ({"met": "yes"}, "met"),
        ({"goal": None}, "goal"),
        ({"curve": {"over": "n", "sizes": [1, 2], "seconds": [1.0]}}, "curve"),
        ({"curve": {"over": "n", "sizes": [0, 2], "seconds": [1.0, 2.0]}}, "curve"),
    ],
)
def test_a_row_that_the_page_cannot_show_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    rows.checked(ROW)
    with pytest.raises(ValueError, match=named):
        rows.checked({**ROW, **changes})


@pytest.mark.slow
def test_ways_take_turns_and_the_warm_up_does_not_count() -> None:
    called: list[str] = []

    def way(name: str) -> Any:
        def run() -> float:
            called.append(name)
            return float(len(called))

        return run

    taken = timing.in_turns({"a": way("a"), "b": way("b")}, turns=2, warm_up=1)
    assert called == ["b", "a", "a", "b", "b", "a"]
    assert taken["a"].seconds == (3.0, 6.0) and taken["b"].seconds == (4.0, 5.0)
    assert (taken["a"].best, taken["a"].median) == (3.0, 4.5)


def test_a_benchmark_that_breaks_off_leaves_the_rows_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(quick: bool) -> Any:
        yield ROW
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(scale, "measure", broken)
    with pytest.raises(RuntimeError, match="the disk is full"):
        command.run_one("scale", tmp_path, quick=True)
    stored = json.loads((tmp_path / "scale.json").read_text(encoding="utf-8"))
    assert stored["rows"] == [ROW] and not stored["complete"] and stored["quick"]
    assert {"processor", "cores", "threads", "versions", "load", "date"} <= set(stored["machine"])


def test_where_there_is_no_gpu_its_rows_stay_as_another_machine_measured_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "missing", lambda: "there is none")
    monkeypatch.setattr(gpu, "measure", lambda quick: pytest.fail("it measured"))
    store(tmp_path, "gpu", ROW)
    before = (tmp_path / "gpu.json").read_bytes()
    assert command.main(["gpu", "--results", str(tmp_path)]) == 0
    assert (tmp_path / "gpu.json").read_bytes() == before and len(list(tmp_path.iterdir())) == 1
    assert "not measured, there is none" in capsys.readouterr().out


def test_a_gpu_part_that_fails_says_why_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(quick: bool, device: str) -> Any:
        raise RuntimeError("out of memory")

    for name in ("_accounting", "_clipping", "_sketch", "_fitting", "_rounds"):
        monkeypatch.setattr(gpu, name, broken)
    failed, measured = [], []
    for row in map(rows.checked, gpu.measure(quick=True, device="cpu")):
        (failed if row["ours"] is None else measured).append(row)
    assert len(failed) == 5 and {row["note"] for row in failed} == {"not measured: RuntimeError: out of memory"}
    assert [row["what"] for row in measured] == ["cotangents of both sides, n = 1000 each, d = 2, k = 100"]
    assert measured[0]["ratio"] == measured[0]["other"] / measured[0]["ours"]


@pytest.mark.slow
def test_every_part_that_a_gpu_is_measured_on_runs_on_a_processor_in_its_place() -> None:
    found = [rows.checked(row) for row in gpu.measure(quick=True, device="cpu")]
    assert len(found) == 10 and all(row["ours"] > 0 and row["other"] > 0 for row in found), found


def test_a_quick_run_leaves_what_the_site_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "measure", lambda quick: [ROW])
    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")
    assert command.main(["scale", "--quick"]) == 0
    assert [path.name for path in (tmp_path / "results" / "quick").iterdir()] == ["scale.json"]
    assert table.load(tmp_path / "results") == {}


def test_the_arithmetic_of_bytes_is_what_a_run_counts() -> None:
    """Of one site with one client: two runs that differ by one round."""

    def run(rounds: int) -> Run:
        no_noise = {"epsilon": math.inf}
        return timed_run(
            synthetic(clients=1, records=400, rounds=rounds, training={"batch_size": 50}, privacy=no_noise)
        )

    longer, shorter = run(3), run(2)
    counted = (longer.bytes_down - shorter.bytes_down, longer.bytes_up - shorter.bytes_up)
    expected = arithmetic.central_round(arithmetic.Shape(17), batch=100, clients=1, sites=1, records=400)
    assert counted == (expected.down, expected.up)


def test_tables_and_outputs_weigh_the_same_where_the_arithmetic_says() -> None:
    shape = arithmetic.Shape(17, dimension=3, directions=30, cells=4, bins=16)
    least = arithmetic.rows_that_weigh_as_much_as_tables(shape)
    assert least * 3 * (4 + 8) == pytest.approx(2 * 4 * 30 * 16 * 4)


_LONG = ("cluster", "distance", "engines", "million")  # dozens of processes; other laws run what they measure


@pytest.mark.slow
@pytest.mark.parametrize("name", [each for each in command.modules() if each not in _LONG])
def test_a_quick_run_of_a_benchmark_gives_rows_that_the_page_shows(name: str, tmp_path: Path) -> None:
    if missing := getattr(importlib.import_module(f"benchmarks.performance.{name}"), "missing", str)():
        pytest.skip(missing)
    command.run_one(name, tmp_path, quick=True)
    found = table.load(tmp_path)[name]
    assert found["complete"] and found["rows"]
    page = table.page(tmp_path)
    assert all(row["what"] in page for row in found["rows"])
