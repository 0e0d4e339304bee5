"""A page of a run that goes on, served to this machine alone, from the run's folder alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from fedsw.report.facts import read_status
from fedsw.report.page.page import page, render
from fedsw.report.page.pictures import Picture, picture
from fedsw.report.plots import draw_metrics, draw_privacy
from fedsw.runs.record import RunRecord, read_run

LOOPBACK = "127.0.0.1"
_EVERY = 5
"""Seconds after which the page looks again."""
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


def server(directory: Path, port: int = 0) -> HTTPServer:
    """A server of a run's page on the loopback interface, which reads the folder anew for every answer.

    It survives the run's end and its restart, and writes nothing. It answers requests for this machine's own names
    alone, so that no page of the web can read it by a name that leads here. The port is 0 for one that is free.
    """

    class Handler(_Handler):
        run = _Live(directory)

    return HTTPServer((LOOPBACK, port), Handler)


@dataclass
class _Live:
    """A run's folder; its figures are drawn again when it has more rounds."""

    directory: Path
    drawn: tuple[int, tuple[Picture, ...]] = (-1, ())

    def whole(self) -> str:
        return render("live.html", alone=False, every=_EVERY, **self._now())

    def part(self) -> str:
        return render("live_part.html", alone=True, **self._now())

    def report(self) -> str:
        return page([read_run(self.directory)], operator=True)

    def _now(self) -> dict[str, Any]:
        name = self.directory.name
        try:
            record, status = read_run(self.directory), read_status(self.directory)
        except (OSError, ValueError) as fault:  # between two processes, or while a file is put in place
            return {"name": name, "fault": fault, "status": None, "pictures": ()}
        if self.drawn[0] != len(record.history):
            self.drawn = (len(record.history), tuple(_pictures(record)))
        name = f"{record.experiment.name}/{name}"
        return {"name": name, "fault": None, "status": status, "pictures": self.drawn[1]}


def _pictures(record: RunRecord) -> Iterator[Picture]:
    says = "The last values are in the table above."
    if (privacy := draw_privacy(record)) is not None:
        yield picture(privacy, name="privacy", caption="Budget and signal to noise over the rounds.", says=says)
    if (metrics := draw_metrics(record)) is not None:
        yield picture(metrics, name="metrics", caption="Metrics over the rounds.", says=says)


class _Handler(BaseHTTPRequestHandler):
    run: _Live
    timeout = 5.0  # of who connects and says nothing

    def do_GET(self) -> None:
        """Answer for the page, its part that changes, and the report; nothing else is there."""
        pages = {"/": self.run.whole, "/part": self.run.part, "/report": self.run.report}
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host not in (LOOPBACK, "localhost"):
            self.send_error(421, "this server answers for this machine alone")
        elif self.path not in pages:
            self.send_error(404)
        else:
            try:
                self._answer(pages[self.path]())
            except (OSError, ValueError):
                self.send_error(503, "the folder cannot be read at the moment")

    def _answer(self, text: str) -> None:
        content = text.encode()
        self.send_response(200)
        headers = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(content))}
        headers |= {"Content-Security-Policy": _POLICY, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""
