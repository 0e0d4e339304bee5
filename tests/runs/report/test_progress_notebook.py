"""Laws of a run in a notebook: it can be interrupted and gone on with, and a bar shows what may be shown."""

from __future__ import annotations

import html
import json
import re
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import fedsw
from fedsw.experiment import parse_experiment
from fedsw.federation.engines import driver
from fedsw.runs import progress
from fedsw.runs.observer import NoObserver
from fedsw.runs.progress import NotebookBar, RunProgress, watching
from fedsw.runs.report.console import Screen
from fedsw.runs.report.render import Page
from fedsw.runs.run_files import read_json, read_lines
from tests.runs.report.conftest import SMALL

if TYPE_CHECKING:
    from fedsw.privacy.accounting.selection import Selection


class Interrupts(NoObserver):
    """Ctrl-C in the second round."""

    def round_done(self, record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt


def test_a_run_is_interrupted_and_goes_on_from_the_next_cell(tmp_path: Path) -> None:
    data = {"records": 200, "test_records": 120}
    settings = {"name": "cell", "data": data, **SMALL, "seed": 1}
    with pytest.raises(KeyboardInterrupt) as stopped:
        fedsw.run(settings, runs=tmp_path, observer=Interrupts())
    (directory,) = (tmp_path / "cell").iterdir()
    assert stopped.value.__notes__ == [f"what was released is kept: fedsw.resume({str(directory)!r}) goes on"]
    assert read_json(directory / "summary.json")["status"] == "interrupted"
    result = fedsw.resume(str(directory))
    whole = fedsw.run(settings, runs=tmp_path / "whole")
    assert result.summary["status"] == "completed" and [row["round"] for row in result.history] == [1, 2, 3]
    assert [row["round"] for row in read_lines(directory / "metrics.jsonl")] == [1, 2, 3]
    assert result.summary["epsilon_spent"] == whole.summary["epsilon_spent"]
    assert result.summary["held_out"] == whole.summary["held_out"]


def test_who_interrupts_before_anything_is_spent_leaves_no_folder(tmp_path: Path, monkeypatch) -> None:
    from fedsw.federation.server import federation

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(federation, "_joined", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        fedsw.run({"name": "cell", **SMALL}, runs=tmp_path)
    assert not hasattr(stopped.value, "__notes__") and not list((tmp_path / "cell").iterdir())


class Drawn:
    """What a notebook's display was handed over."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def display(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw and list(content) == ["text/html"]
        self.states.append(content["text/html"])

    update = display


def test_a_bar_shows_rounds_and_budget_as_text_and_no_more_often_than_can_be_seen(monkeypatch) -> None:
    display = pytest.importorskip("IPython.display")
    drawn = Drawn()
    monkeypatch.setattr(display, "DisplayHandle", lambda: drawn)
    bar = NotebookBar()
    bar.started({"name": "<b>own", "rounds": 500, "epsilon": 2.0, "directory": "runs/own/1"})
    for round_ in range(1, 501):
        bar.round_done({"round": round_, "epsilon": 0.004 * round_, "held_out": {"accuracy": 0.75}})
    assert len(drawn.states) < 100
    bar.finished({"status": "completed"})
    assert 'value="500" max="500"' in drawn.states[-1] and "ε 2 of 2  accuracy 0.75. completed." in drawn.states[-1]
    bar.broke_off("interrupted")
    assert "interrupted; fedsw.resume(&#x27;runs/own/1&#x27;) goes on" in drawn.states[-1]
    assert not [state for state in drawn.states if "<b>" in state]


def test_a_bar_is_for_kernels_alone(monkeypatch) -> None:
    ipython = pytest.importorskip("IPython")
    assert isinstance(watching(), NoObserver)
    monkeypatch.setattr(ipython, "get_ipython", lambda: type("Shell", (), {"kernel": object()})())
    assert isinstance(watching(), NotebookBar)
    monkeypatch.setitem(progress.sys.modules, "IPython", None)
    assert isinstance(watching(), NoObserver)


def test_a_run_of_which_only_the_best_is_shown_draws_no_bar(tmp_path: Path, monkeypatch) -> None:
    """Numbers of the other runs of a private selection are covered by no guarantee."""
    observers: list[object] = []

    def caught(job: Any) -> None:
        observers.append(job.observer)
        raise ZeroDivisionError

    monkeypatch.setattr(driver, "app_for", caught)
    monkeypatch.setattr(driver, "watching", NotebookBar)
    experiment, selection = parse_experiment({"name": "cell", **SMALL}), cast("Selection", None)
    for make in (partial(driver.run_among, experiment, selection), partial(driver.run, experiment)):
        with pytest.raises(ZeroDivisionError):
            make(runs=tmp_path)
    assert [type(each) for each in observers] == [NoObserver, NotebookBar]


def test_a_command_in_a_cell_writes_no_moving_bar(monkeypatch, capsys) -> None:
    """Jupyter sets FORCE_COLOR for all that it starts, and what is written there stays."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with RunProgress(label="own") as bar:
        bar.started({"rounds": 2, "epsilon": 1.0, "directory": "runs/own"})
        bar.round_done({"round": 1, "epsilon": 0.5})
    assert capsys.readouterr().err == "" and Screen(stderr=True).is_terminal is False
    assert Screen().is_terminal, "colours, which a notebook shows, pass"


def test_a_page_is_shown_in_a_frame_as_it_is_in_its_file() -> None:
    (frame,) = re.findall(r'srcdoc="([^"]*)"', Page('<p class="a">1 &lt; 2</p>')._repr_html_())
    assert html.unescape(frame) == '<p class="a">1 &lt; 2</p>' and repr(Page("xy")) == "<a page of 2 bytes>"


@pytest.mark.slow
def test_a_kernel_that_is_interrupted_goes_on(tmp_path: Path) -> None:
    """A real one: the bar is seen, the interrupt of the notebook's button reaches the run, the next cell resumes it."""
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    kernel, client = manager.start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    said: list[str] = []

    def output(message: dict[str, Any]) -> None:
        content = message["content"]
        said.append(json.dumps(content))
        if message["msg_type"] == "update_display_data" and "round 0 " not in said[-1] and len(said) < 1000:
            said.extend([""] * 1000)
            kernel.interrupt_kernel()

    try:
        rounds = '"training.rounds=5000", "data.records=200"'
        cell = f'import fedsw\nfedsw.run("fair-classification", {rounds})'
        reply = client.execute_interactive(cell, output_hook=output, timeout=120)
        assert reply["content"]["ename"] == "KeyboardInterrupt", said
        (directory,) = (tmp_path / "runs" / "fair-classification").iterdir()
        before = len(read_lines(directory / "metrics.jsonl"))
        client.execute(f"fedsw.resume({str(directory)!r})")
        deadline = time.monotonic() + 120
        while len(read_lines(directory / "metrics.jsonl")) <= before and time.monotonic() < deadline:
            time.sleep(0.2)
        assert len(read_lines(directory / "metrics.jsonl")) > before
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
