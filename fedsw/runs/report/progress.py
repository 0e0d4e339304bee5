"""Progress of a run on a terminal and in a notebook, and how its metrics are named and ordered."""

from __future__ import annotations

import html
import importlib
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from fedsw._tools.text import BURIED, harmless, measured, number, to_float, upward
from fedsw.runs.observer import NoObserver, Observer
from fedsw.runs.report.console import Screen
from fedsw.runs.run_files import UNNAMED, Names, names_in

_NAMES = {
    "accuracy": "accuracy",
    "sw2": "SW₂",
    "sw2_to_prior": "SW₂ to prior",
    "root_mean_squared_error": "error (RMS)",
    "mean_squared_error": "squared error",
    "disparate_impact": "DI",
    "w2_squared": "W₂²",
    "linear_probe_label": "label read off",
    "linear_probe_group": "group read off",
    "loss": "loss",
    "selection_rate": "selected",
    "true_positive_rate": "TPR",
    "false_positive_rate": "FPR",
    "auc": "AUC",
    "calibration_error": "calibration error",
    "mean_absolute_error": "absolute error",
    "r2": "R²",
    "demographic_parity_difference": "parity gap",
    "equalized_odds_difference": "odds gap",
    "ks": "KS",
    "eo_0": "EO₀",
    "eo_1": "EO₁",
    "od_0": "OD₀",
    "od_1": "OD₁",
    "accuracy_generated": "accuracy",
    "frechet_lenet": "Fréchet (LeNet)",
}


_OF_POSITIVE = {
    "disparate_impact": "DI of {}",
    "selection_rate": "rate of {}",
    "true_positive_rate": "TPR of {}",
    "false_positive_rate": "FPR of {}",
}
_OF_CLASS = {"disparate_impact": "DI of {}", "selection_rate": "rate of {}", "od": "OD, true {}"}
_NUMBERED = re.compile(r"(disparate_impact|selection_rate|eo|od)_(\d+)")


def metric_name(key: str, names: Names = UNNAMED) -> str:
    """The name of a metric in tables and plots; one that is of a class says which, by its declared name.

    Where none of more than two classes is positive, "worst" says that it is of the class that is worst off.
    """
    if names.predicted and key == "loss":
        return "loss (coded)"
    if not names.classes:
        return _NAMES.get(key, key.replace("_", " "))
    positive = None if names.positive is None else names.label(names.positive)
    if key in _OF_POSITIVE and positive is not None:
        return _OF_POSITIVE[key].format(positive)
    if key == "disparate_impact":
        return "worst DI"
    numbered = _NUMBERED.fullmatch(key)
    if numbered is None:
        return _NAMES.get(key, key.replace("_", " "))
    kind, label = numbered[1], names.label(int(numbered[2]))
    if kind == "eo":
        return f"worst EO, true {label}" if positive is None else f"EO of {positive}, true {label}"
    return _OF_CLASS[kind].format(label)


def ordered_metrics(held_out: Mapping[str, Any]) -> list[str]:
    """Keys of the metrics that are plain numbers, the best known first; those of single classes after the whole."""
    numeric = [key for key, value in held_out.items() if to_float(value) is not None]
    rank = {key: float(position) for position, key in enumerate(_NAMES)}

    def order(key: str) -> float:
        numbered = _NUMBERED.fullmatch(key)
        of_all = rank.get(key if numbered is None else numbered[1], len(rank))
        return rank.get(key, of_all if numbered is None else of_all + 0.5)

    return sorted(numeric, key=order)


def scores(summary: Mapping[str, Any], whose: str = "held_out") -> dict[str, tuple[Any, Any]]:
    """Metrics of the model ("held_out") or of a "constant", by name, each with its interval."""
    around = summary.get(f"{whose}_intervals") or {}
    return {name: (value, around.get(name)) for name, value in (summary.get(whose) or {}).items()}


def measured_cell(value: Any, interval: Sequence[Any] | None) -> str:
    """A measured number for a narrow column, its interval in a line below; "not to be seen" where noise hides it."""
    shown, _, rest = measured(value, interval).partition(" (")
    shown = "not to be seen" if shown.endswith(BURIED) else shown
    return f"{shown}\n{rest.removesuffix(')')}" if rest else shown


def group_table(
    numbers: Mapping[str, Mapping[str, Any]],
    around: Mapping[str, Mapping[str, Any]],
    cell: Callable[[Any, Sequence[Any] | None], str] = measured,
    *,
    called: Names = UNNAMED,
) -> tuple[list[str], list[list[str]]]:
    """Names of metrics, and a row for each group: its name, how many records it has, and its metrics as `cell` says.

    Metrics of a class say which, by the declared names (``called``).
    """
    names = list(dict.fromkeys(name for metrics in numbers.values() for name in metrics))

    def text(name: str, value: Any, interval: Any) -> str:
        whole = name == "count" and to_float(value) is not None
        return f"{int(value):,}" if whole else cell(value, interval)

    rows = [
        [group, *(text(name, metrics.get(name), around.get(group, {}).get(name)) for name in names)]
        for group, metrics in numbers.items()
    ]
    return [metric_name(name, called) for name in names], rows


def short_metrics(held_out: Mapping[str, Any], names: Names = UNNAMED) -> str:
    """The first two metrics in one short line: accuracy 0.79 · DI of hired 0.63."""
    return " · ".join(f"{metric_name(key, names)} {number(held_out[key])}" for key in ordered_metrics(held_out)[:2])


class Display:
    """A bar on stderr, as long as its context; nothing with `quiet`, or where stderr is not a terminal."""

    def __init__(self, *, quiet: bool, estimate: float = 30.0) -> None:
        console = Screen(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            refresh_per_second=5,
            speed_estimate_period=estimate,
            transient=True,
            disable=quiet or not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._bar.stop()


class RunProgress(Display):
    """An observer that shows one bar, over one run or several runs in a row.

    Use it as a context manager. `begun` says whether any run got as far as its plan, `directory` where the last is.
    """

    def __init__(self, *, label: str, runs: int = 1, done: int = 0, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self.plan: dict[str, Any] = {}
        self.begun = False
        self.directory: Path | None = None
        self._label, self._runs, self._runs_done = label, runs, done
        self._held_out = ""
        self._task: TaskID | None = None

    def begin(self, label: str) -> None:
        """Say which of several runs comes next."""
        self._label, self._held_out = label, ""

    def started(self, plan: dict[str, Any]) -> None:
        """Show the bar; its length is the rounds of all runs."""
        self.plan, self.begun, self.directory = plan, True, Path(plan["directory"])
        rounds = int(plan["rounds"])
        if self._task is None:
            done = self._runs_done * rounds
            self._task = self._bar.add_task(self._label, total=self._runs * rounds, completed=done, state="")
        self._bar.update(self._task, description=self._label)

    def round_done(self, record: dict[str, Any]) -> None:
        """Advance, and show what the round released."""
        if self._task is None:
            return
        if held_out := record.get("held_out"):
            self._held_out = short_metrics(held_out, names_in(Path(self.plan["directory"])))
        base = self._runs_done * int(self.plan["rounds"])
        state = describe_round(record, self.plan, self._held_out)
        self._bar.update(self._task, completed=base + int(record["round"]), state=state)

    def finished(self, summary: dict[str, Any]) -> None:
        """Count the run as done."""
        self._runs_done += 1


def describe_round(record: dict[str, Any], plan: dict[str, Any], held_out: str) -> str:
    """One line: ε spent of the target, the signal-to-noise estimate, the last held-out metrics."""
    parts = [f"ε {upward(record.get('epsilon'))} of {upward(plan.get('epsilon'))}"]
    if record.get("snr") is not None:
        parts.append(f"SNR {number(record['snr'], 2)}")
    if record.get("training_loss") is not None:
        parts.append(f"training loss {number(record['training_loss'])} (unsafe)")
    if held_out:
        parts.append(held_out)
    return "  ".join(parts)


_SECONDS = 0.2
"""At least, between two states of a bar."""


def watching() -> Observer:
    """Return an observer that draws a bar where a notebook's kernel runs this; elsewhere one that does nothing."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return NotebookBar() if getattr(shell, "kernel", None) is not None else NoObserver()


class NotebookBar:
    """An observer that shows rounds, ε and held-out metrics as a bar below a notebook's cell."""

    def started(self, plan: dict[str, Any]) -> None:
        """Draw the bar."""
        notebook: Any = importlib.import_module("IPython.display")
        self._plan, self._round, self._held_out, self._drawn, self._said = plan, 0, "", 0.0, "begins"
        self._display = notebook.DisplayHandle()
        self._display.display({"text/html": self._bar()}, raw=True)

    def round_done(self, record: dict[str, Any]) -> None:
        """Advance it, a few times a second at most."""
        if held_out := record.get("held_out"):
            self._held_out = short_metrics(held_out, names_in(Path(self._plan["directory"])))
        self._round, self._said = int(record["round"]), describe_round(record, self._plan, self._held_out)
        if time.monotonic() - self._drawn >= _SECONDS:
            self._draw()

    def finished(self, summary: dict[str, Any]) -> None:
        """Leave the last state."""
        self._draw(f" {summary.get('status')}.")

    def broke_off(self, status: str) -> None:
        """Say why there is no more of it, and how to go on."""
        self._draw(f" {status}; fedsw.resume({str(self._plan['directory'])!r}) goes on.")

    def _draw(self, ended: str = "") -> None:
        self._drawn = time.monotonic()
        self._display.update({"text/html": self._bar(ended)}, raw=True)

    def _bar(self, ended: str = "") -> str:
        name, rounds = str(self._plan["name"]), int(self._plan["rounds"])
        words = html.escape(harmless(f"{name}: round {self._round} of {rounds}. {self._said}.{ended}"))
        return f'<progress value="{self._round}" max="{rounds}" aria-label="{html.escape(name)}"></progress> {words}'
