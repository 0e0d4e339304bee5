"""Watch a run: structured logs and a Prometheus endpoint, of releasable numbers only.

But for times: every line of a log and every look at a live run show when a round was released. That is for the run's
operator, not for publication (`fedsw.runs.run_files`).
"""

from __future__ import annotations

import datetime
import hmac
import json
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from fedsw._tools import files
from fedsw._tools.later import Later
from fedsw._tools.text import to_float
from fedsw.runs.run_files import RunFile, jsonable

if TYPE_CHECKING:
    import prometheus_client

    from fedsw.runs.roll_call import Called
else:
    prometheus_client = Later("prometheus_client")

LOGGER = "fedsw.server"
_OPERATOR = "for the operator only, not for publication"
FIELDS = frozenset(
    {
        "attempt", "bytes_down", "bytes_up", "client", "clients", "clock", "code", "delta", "engine", "epsilon",
        "fault", "flower", "key", "ledger", "resumed", "round", "rounds", "run", "snr", "software", "state", "status",
    }
)  # fmt: skip
"""Fields of a line of the log besides its event: public settings, functions of noisy releases, lost clients, and
clients online with their key, installed code (`software`), Flower and clock.

Not in it: norms, losses, outputs, sizes of messages, counts of records, and clients' errors, which may quote a record.
Which clients are lost may not depend on records (docs/guarantees/attempts.md).
"""


def event(name: str, **fields: Any) -> dict[str, Any]:
    """The `extra` that makes a log call a line of the structured log; its text is for terminals only."""
    if unknown := fields.keys() - FIELDS:
        raise ValueError(f"{sorted(unknown)} may not be logged; releasable are {sorted(FIELDS)}")
    return {"event": name, "fields": fields}


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, event, and the event's fields; never the message's text."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of one record."""
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        fields = {key: value for key, value in getattr(record, "fields", {}).items() if key in FIELDS}
        content = {"time": at, "level": record.levelname.lower(), "event": getattr(record, "event", "other"), **fields}
        return json.dumps(jsonable(content), ensure_ascii=False)


class _LogFile(logging.FileHandler):
    """A private log file; write errors are ignored: a full disk is reported where the run must write."""

    def _open(self) -> TextIOWrapper:
        file: TextIOWrapper = files.opened(Path(self.baseFilename), self.mode)  # type: ignore[assignment]
        return file

    def handleError(self, record: logging.LogRecord) -> None:
        """Leave the line out."""


@contextmanager
def logging_to(directory: Path) -> Iterator[logging.Logger]:
    """Inside the context, log the server's events to `directory`/log.jsonl; warnings go to stderr too, as text."""
    logger = logging.getLogger(LOGGER)
    with ExitStack() as stack:
        if not logger.hasHandlers():
            words = logging.StreamHandler(sys.stderr)
            stack.enter_context(_handled(logger, words, logging.Formatter("%(message)s"), logging.WARNING))
        lines = _LogFile(directory / RunFile.LOG, encoding="utf-8", delay=True)
        stack.enter_context(_handled(logger, lines, JsonLines(), logging.INFO))
        yield logger


@contextmanager
def logging_to_stderr() -> Iterator[None]:
    """Inside the context, print the same lines to stderr."""
    with _handled(logging.getLogger(LOGGER), logging.StreamHandler(sys.stderr), JsonLines(), logging.INFO):
        yield


@contextmanager
def _handled(
    logger: logging.Logger, handler: logging.Handler, formatter: logging.Formatter, level: int
) -> Iterator[None]:
    handler.setFormatter(formatter)
    handler.setLevel(level)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()


METRICS_TOKEN = "FEDSW_METRICS_TOKEN"
"""The environment variable with the token that the metrics endpoint asks for."""
METRICS_HOST = "FEDSW_METRICS_HOST"
"""The environment variable with the address it listens on, the loopback interface by default: for pods."""


class _Server(ThreadingMixIn, WSGIServer):
    """One thread for each connection: a request sent byte by byte delays no other."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    """Prints nothing, and waits some seconds for a request."""

    timeout = 5.0

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


class MetricsEndpoint:
    """An observer that serves a run's numbers to Prometheus, on the loopback interface or $FEDSW_METRICS_HOST.

    Every user of the machine can open the port, and the times of rounds are for the operator: each request brings the
    `token` (`Authorization: Bearer TOKEN`), which is that of $FEDSW_METRICS_TOKEN, or a fresh one.

    Use it as a context manager. A port of 0 is any that is free; OSError for one that is taken.
    """

    def __init__(self, port: int) -> None:
        self._registry = prometheus_client.CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Any:
            return prometheus_client.Gauge(f"fedsw_{name}", text, labels, registry=self._registry)

        self._run = prometheus_client.Info("fedsw_run", "The experiment", registry=self._registry)
        self._rounds = gauge("rounds", "Planned rounds")
        self._target = gauge("epsilon_target", "Epsilon of the planned rounds")
        self._gauges = {
            "round": gauge("round", "Last released round"),
            "epsilon": gauge("epsilon_spent", "Epsilon of everything released so far"),
            "snr": gauge("signal_to_noise", "Signal-to-noise ratio estimated from the noisy gradient"),
            "clients": gauge("clients_alive", "Clients that the last round came from"),
            "bytes_up": gauge("bytes_up", "Bytes of arrays received so far, all clients together"),
            "bytes_down": gauge("bytes_down", "Bytes of arrays sent so far, all clients together"),
        }
        self._pace = gauge("round_seconds", f"Seconds since the round before; {_OPERATOR}")
        seconds = f"Seconds of all rounds; {_OPERATOR}"
        self._seconds = prometheus_client.Counter("fedsw_seconds", seconds, registry=self._registry)
        self._last = time.monotonic()
        self._finished = gauge("finished", "1 once the run has ended")
        who = ("client", "key")
        self._state = gauge("client", "1: how a client stands", *who, "state")
        self._code = gauge("client_code", "1: its fedsw", *who, "code", "flower")
        about = f"Seconds that its clock is ahead at least; {_OPERATOR}"
        self._clock = gauge("client_clock_seconds", about, *who)
        self._server: Any = None
        self.port, self.token = port, os.environ.get(METRICS_TOKEN) or secrets.token_urlsafe(24)
        self.host = os.environ.get(METRICS_HOST) or "127.0.0.1"

    def __enter__(self) -> Self:
        numbers, wanted = prometheus_client.make_wsgi_app(self._registry), f"Bearer {self.token}".encode()

        def answer(environ: dict[str, Any], start_response: Any) -> Any:
            if hmac.compare_digest(str(environ.get("HTTP_AUTHORIZATION", "")).encode("utf-8", "replace"), wanted):
                return numbers(environ, start_response)
            start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")])
            return [b"this endpoint asks for its token: Authorization: Bearer TOKEN\n"]

        try:
            self._server = make_server(self.host, self.port, answer, _Server, _Quiet)
        except OSError as fault:
            why = f"--metrics-port {self.port} cannot be opened on {self.host} ({fault.strerror})"
            raise OSError(fault.errno, f"{why}: name another one, or 0 for one that is free") from None
        self.port = int(self._server.server_port)
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()
        return self

    def __exit__(self, *ended: object) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def roll_called(self, called: Sequence[Called]) -> None:
        """Show the clients online; not why one is refused: a client's words may quote a record."""
        for gauge in (self._state, self._code, self._clock):
            gauge.clear()
        for entry in called:
            who = ("" if entry.client is None else str(entry.client), entry.key)
            self._state.labels(*who, entry.state).set(1)
            if entry.code:
                self._code.labels(*who, entry.code, entry.flower).set(1)
            if entry.clock is not None:
                self._clock.labels(*who).set(entry.clock)

    def started(self, plan: dict[str, Any]) -> None:
        """Show the plan; a service's earlier runs are cleared."""
        self._finished.set(0)
        for gauge in self._gauges.values():
            gauge.set(0)
        self._last = time.monotonic()
        self._run.info({"name": str(plan["name"])})
        self._rounds.set(plan["rounds"])
        self._target.set(float("nan") if (target := to_float(plan["epsilon"])) is None else target)

    def round_done(self, record: dict[str, Any]) -> None:
        """Show a round; a number that it lacks keeps its last value."""
        for name, gauge in self._gauges.items():
            if record.get(name) is not None:
                gauge.set(float(record[name]))
        now = time.monotonic()
        self._pace.set(now - self._last)
        self._seconds.inc(now - self._last)
        self._last = now

    def finished(self, summary: dict[str, Any]) -> None:
        """Show that it is over."""
        self._finished.set(1)
