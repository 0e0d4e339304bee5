"""Injects failures at a moment of a round, and reads what the run's files say of that moment."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from fedsw.privacy.accounting.journal import Journal
from fedsw.runs import checkpoint
from fedsw.runs.run_files import round_seconds
from tests.laws.chaos import injections
from tests.laws.chaos.background import Background
from tests.laws.chaos.injections import Injection
from tests.laws.chaos.site import Site

INJECTED = "injections.jsonl"
BEGUN = "attempt begun, not charged"
INSTANT = 0.004
"""Seconds after a charge or a checkpoint within which an injection comes: about what lies between the two."""
_POLL_SECONDS = 0.0005
_ROUNDS_AWAY = 6
_TOO_LONG = 1.5  # time limits that a stopped node is stopped for
_ROUND_SECONDS = 0.3
_GONE_SECONDS = 30.0


class Injector(Background):
    """Carries out the injections of a script, one after another, in a thread of its own. Use it as a context manager.

    Each is written to `directory`/injections.jsonl with the round and attempt that was under way and how far it had
    come, as far as the files show: an attempt's number is on disk before anything is sent, its charge before its noise
    is drawn, its checkpoint before its line in the metrics. What comes in the exchanges of an attempt or before them
    looks alike.

    Args:
        timeout: the run's time limit for an exchange.
        clients: how many there are.
        least: how many the run needs.
    """

    def __init__(
        self, site: Site, script: Sequence[Injection], directory: Path, *, timeout: float, clients: int, least: int
    ) -> None:
        super().__init__()
        self._site, self._left, self._done = site, list(script), directory / INJECTED
        self._timeout, self._clients, self._least = timeout, clients, least
        self._returning = set[int]()  # clients that come back after some rounds, if nothing worse happens meanwhile

    def _work(self) -> None:
        while self._left and not self._stop.is_set():
            if seen := self._next(self._left[0]):
                with self._done.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({**asdict(self._left[0]), **seen}) + "\n")
                self._left.pop(0)

    def _next(self, injection: Injection) -> dict[str, Any] | None:
        """Wait for the moment of an injection and carry it out; returns what was seen, or None if it must come again.

        What takes time is looked up a round before, so that the injection comes at its moment and not a while after it.
        """
        if not self._attempt_from(injection.round - 1):
            return None
        server, online, seconds = self._site.server_app(), self._site.online(), self._round_seconds()
        if not self._attempt_from(injection.round):
            return None
        if injection.moment == "attempt":
            self._stop.wait(injection.fraction * seconds)
        elif self._changed(_WATCHED[injection.moment]):
            time.sleep(injection.fraction * INSTANT)
        else:
            return None
        with self._site.mutex:
            if injection.kind in injections.SERVER_INJECTIONS:
                return self._hit_server(injection, server)
            return self._hit_nodes(injection, [client for client in online if client in self._site.online()])

    def _attempt_from(self, round_: int) -> bool:
        """Wait until an attempt begins, in this round or a later one; false if that is not waited for any longer."""
        log = self._site.run / "attempts.log"
        before = _size(log)
        while not (_size(log) > before and _last_attempt(log)[0] >= round_):
            if self._stop.wait(_POLL_SECONDS):
                return False
        return True

    def _changed(self, names: Sequence[str]) -> bool:
        """Wait until one of these files of the run changes; false if it takes longer than two exchanges may."""
        paths, deadline = [self._site.run / name for name in names], time.monotonic() + 2 * self._timeout
        seen = [_stamp(path) for path in paths]
        while [_stamp(path) for path in paths] == seen:
            if time.monotonic() >= deadline or self._stop.wait(_POLL_SECONDS):
                return False
        return True

    def _hit_server(self, injection: Injection, server: psutil.Process | None) -> dict[str, Any] | None:
        """Carry it out, and say how far the run had come once its server was gone; None if it was gone before."""
        if server is None or _gone(server) or self._site.link.process.poll() is not None:
            return None
        if injection.kind == injections.LINK_DIES:
            self._site.kill_link()
        elif injection.kind == injections.SERVER_DIES:
            server.kill()
        else:
            server.send_signal(random.Random(injection.chance).choice([signal.SIGTERM, signal.SIGINT]))
        at = time.time()
        _wait_until(lambda: _gone(server))
        return {"time": at, "position": position(self._site.run), "clients": []}

    def _hit_nodes(self, injection: Injection, online: list[int]) -> dict[str, Any] | None:
        """Carry it out on nodes that are online, and say how far the run has come; None if there is none."""
        if not online:
            return None
        chance, site = random.Random(injection.chance), self._site
        victims = [chance.choice(online)]
        if injection.kind == injections.NODES_DIE:
            victims = sorted(chance.sample(online, max(1, len(online) - self._least)))
        if injection.kind == injections.TOO_MANY_DIE:  # those that are on their way back, too
            spared = chance.sample(online, min(len(online), self._least - 1))
            victims = [client for client in range(self._clients) if client not in spared]
            self._returning.clear()
        if injection.kind == injections.WORKER_DIES:
            site.kill_worker(victims[0])
        elif injection.kind == injections.NODE_HANGS:
            site.freeze(victims[0], _TOO_LONG * self._timeout)
        else:
            away = injection.kind in (injections.NODE_AWAY, injections.TOO_MANY_DIE)
            site.kill_nodes(victims, workers=injection.kind != injections.NODE_DIES, keep_away=away)
        at = time.time()
        if injection.kind == injections.NODE_AWAY:
            self._let_back_after(_last_attempt(site.run / "attempts.log")[0] + _ROUNDS_AWAY, victims)
        return {"time": at, "position": position(site.run), "clients": victims, "online_before": len(online)}

    def _let_back_after(self, round_: int, clients: list[int]) -> None:
        self._returning.update(clients)

        def wait() -> None:
            while not self._stop.wait(_POLL_SECONDS * 100):
                if _last_attempt(self._site.run / "attempts.log")[0] >= round_:
                    with self._site.mutex:
                        self._site.let_back(self._returning.intersection(clients))
                    return

        threading.Thread(target=wait, daemon=True).start()

    def _round_seconds(self) -> float:
        """What a round takes at the moment, without those in which somebody was waited for."""
        times = round_seconds(self._site.run)[-10:]
        return statistics.median(times) if times else _ROUND_SECONDS


def position(run: Path) -> str:
    """How far the last attempt of a run has come, as its files show some hundredths of a second later."""
    round_, attempt = _last_attempt(run / "attempts.log")
    released = [line["round"] for line in read_lines(run / "metrics.jsonl")]
    charged: set[tuple[int, int]] = set()
    if (run / "ledger.sqlite").exists():
        with contextlib.closing(Journal.open(run / "ledger.sqlite", read_only=True)) as journal:
            charged = {(row["round"], row["attempt"]) for row in journal.rows()}
    state = checkpoint.load(run)
    if released and released[-1] >= round_:
        stage = "released, on record"
    elif state is not None and state.last.round >= round_:
        stage = "released, checkpoint written"
    elif (round_, attempt) in charged:
        stage = "charged, no checkpoint"
    else:
        stage = BEGUN
    return f"round {round_}, attempt {attempt}: {stage}"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines, without one that is still being written."""
    content = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in content.splitlines(keepends=True) if line.endswith("\n")]


_WATCHED = {"charge": ("ledger.sqlite-wal", "ledger.sqlite"), "checkpoint": checkpoint.NAMES}


def _last_attempt(log: Path) -> tuple[int, int]:
    """The round and number of the last attempt whose line is whole; (0, 0) before the first."""
    text = log.read_text(encoding="ascii") if log.exists() else ""
    lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n") and line.strip()]
    return (int(lines[-1][0]), int(lines[-1][1])) if lines else (0, 0)


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _size(path: Path) -> int:
    return _stamp(path)[1]


def _gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _GONE_SECONDS
    while not holds() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS * 100)
