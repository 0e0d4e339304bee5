"""How far a run has come: on a terminal and in a notebook as it goes on, and from its folder; names of metrics."""

from __future__ import annotations

import html
import importlib
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from fedsw.report.console import Screen
from fedsw.runs.files import ATTEMPTS, CONFIG, LEDGER, LOCK, LOG, METRICS, PLAN, found_json
from fedsw.runs.observer import NoObserver, Observer
from fedsw.runs.record import RunRecord, read_run
from fedsw.text import harmless, measured, number, to_float, upward

_NAMES = {
    "accuracy": "accuracy",
    "sw2": "SW₂",
    "sw2_to_prior": "SW₂ to prior",
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


def metric_name(key: str) -> str:
    """The name of a metric in tables and plots."""
    return _NAMES.get(key, key.replace("_", " "))


def ordered_metrics(held_out: Mapping[str, Any]) -> list[str]:
    """Keys of the metrics that are plain numbers, the best known first."""
    numeric = [key for key, value in held_out.items() if to_float(value) is not None]
    rank = {key: position for position, key in enumerate(_NAMES)}
    return sorted(numeric, key=lambda key: rank.get(key, len(rank)))


def measured_cell(value: Any, interval: Sequence[Any] | None) -> str:
    """A measured number for a narrow column, its interval in a line below."""
    shown, _, rest = measured(value, interval).partition(" (")
    return f"{shown}\n{rest.removesuffix(')')}" if rest else shown


def short_metrics(held_out: Mapping[str, Any], most: int = 2) -> str:
    """The first metrics in one short line: accuracy 0.79 · DI 0.63."""
    return " · ".join(f"{metric_name(key)} {number(held_out[key])}" for key in ordered_metrics(held_out)[:most])


class Display:
    """A bar on stderr, as long as its context; nothing with `quiet`, or where stderr is not a terminal.

    Args:
        estimate: seconds of past work, from which the rest is estimated.
    """

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

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            self._held_out = short_metrics(held_out)
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
            self._held_out = short_metrics(held_out)
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


State = Literal["starting", "running", "stalled", "stopped", "finished"]

_RECENT = 20  # rounds that the time of a round is the median of
_SPARE_SECONDS = 30.0
_TIMES = ("seconds_per_round", "seconds_left", "seconds_since")
_SIGNS = (ATTEMPTS, METRICS, LOG, LEDGER, f"{LEDGER}-wal", CONFIG, LOCK)


@dataclass(frozen=True)
class Status:
    """Releasable numbers of one run, and three times, which are for its operator only and not for publication.

    Attributes:
        state: `running` while a process holds the run and writes to its files; `stalled` if it holds it and wrote
            nothing for longer than two time limits and ten rounds; `stopped` if nothing holds it any more before its
            last round; `finished`.
        why: what it stopped for, in its own words; empty otherwise.
        round, rounds: the last released round, and the planned ones.
        epsilon_spent: of everything that was charged; where clients have their own ledgers, the worst client's.
        epsilon: asked for.
        epsilon_by_client: under local trust, what each client's ledger says, or what it last reported to the server.
        snr: of the last round, estimated from its noisy gradient; None without noise.
        clients_alive, clients: in the last round, and in the federation.
        bytes_up, bytes_down: of arrays, all clients together; see docs/guarantees/attempts.md.
        seconds_per_round: median of the last rounds, by the times of the log.
        seconds_left: until the last round, at that pace; None unless it runs.
        seconds_since: it last wrote to its files.
        unit: whose records epsilon is for, at each client by itself; "record" where each record is one.
    """

    directory: str
    name: str
    state: State
    why: str
    round: int
    rounds: int
    epsilon_spent: float
    epsilon: float
    epsilon_by_client: dict[str, float]
    snr: float | None
    clients_alive: int | None
    clients: int
    bytes_up: int | None
    bytes_down: int | None
    seconds_per_round: float | None
    seconds_left: float | None
    seconds_since: float
    unit: str = "record"

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON; the times are in `operator_only`."""
        found = asdict(self)
        times = {name: found.pop(name) for name in _TIMES}
        return {**found, "operator_only": times}


def read_status(directory: Path) -> Status:
    """How far the run in `directory` has come; reads only.

    Raises:
        ValueError: if it is no run, or a file is damaged.
    """
    from fedsw.runs.files import round_seconds
    from fedsw.runs.recovery import is_running

    record = read_run(directory)
    experiment, last = record.experiment, record.history[-1] if record.history else {}
    times = round_seconds(directory)[-_RECENT:]
    pace = statistics.median(times) if times else None
    since = max(0.0, time.time() - max(_touched(directory)))
    patience = 2 * experiment.federation.timeout + 10 * (pace or 0.0) + _SPARE_SECONDS
    state, why = _state(record, held=is_running(directory), quiet=since > patience)
    done, rounds = int(last.get("round", 0)), experiment.training.rounds
    spent, by_client = _spent(directory, last)
    snr = last.get("snr")
    return Status(
        directory=str(directory),
        name=experiment.name,
        state=state,
        why=why,
        round=done,
        rounds=rounds,
        epsilon_spent=spent,
        epsilon=_asked(record),
        epsilon_by_client=by_client,
        snr=None if snr is None else float(snr),
        clients_alive=last.get("clients"),
        clients=experiment.federation.clients,
        bytes_up=last.get("bytes_up"),
        bytes_down=last.get("bytes_down"),
        seconds_per_round=pace,
        seconds_left=None if pace is None or state != "running" else (rounds - done) * pace,
        seconds_since=since,
        unit=experiment.data.unit or "record",
    )


def _state(record: RunRecord, *, held: bool, quiet: bool) -> tuple[State, str]:
    if held:
        if quiet:
            return "stalled", "nothing was written for longer than two time limits and ten rounds"
        return ("running" if record.history else "starting"), ""
    status = str(record.summary.get("status", ""))
    if status == "completed":
        return "finished", ""
    if status:
        return "stopped", status
    if not (record.directory / LOCK).exists() and not quiet:
        return "starting", ""
    return "stopped", "its process ended without a word (killed, or its machine went down)"


def _spent(directory: Path, last: dict[str, Any]) -> tuple[float, dict[str, float]]:
    """Epsilon by the ledgers that are here; a round that was charged and not finished is in them."""
    from fedsw.accounting import LedgerDamaged
    from fedsw.runs.accounts import read_ledger

    reported = {str(client): float(value) for client, value in last.get("epsilon_by_client", {}).items()}
    try:
        account = read_ledger(directory)
    except FileNotFoundError:
        return max((float(last.get("epsilon", 0.0)), *reported.values())), reported
    except LedgerDamaged as fault:
        raise ValueError(str(fault)) from None
    own = {} if "sequence" in account["head"] else account["epsilon_by_group"]
    by_client = {**reported, **{name.removeprefix("client "): float(value) for name, value in own.items()}}
    return max((float(account["epsilon"]), *by_client.values())), by_client


def _asked(record: RunRecord) -> float:
    """The summary's epsilon; else that of the plan, which is written before the first round; else the settings'."""
    privacy = record.experiment.privacy
    stated = {**found_json(record.directory / PLAN), **record.summary}.get("epsilon")
    if stated is not None:
        return float(stated)
    return privacy.epsilon if privacy.noisy and privacy.epsilon is not None else float("inf")


def _touched(directory: Path) -> list[float]:
    return [os.stat(path).st_mtime for name in _SIGNS if (path := directory / name).exists()]
