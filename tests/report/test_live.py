"""Laws of the page of a run that goes on: this machine alone, the folder alone, through a restart of the run."""

from __future__ import annotations

import http.client
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from markupsafe import Markup

from fedsw.report.page import content, pictures
from fedsw.report.page.live import server
from fedsw.report.page.pictures import Picture


@pytest.fixture
def served(central: Path, tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A copy of a run and the port that serves it."""
    copy = tmp_path / "central" / "20260101-000000"
    shutil.copytree(central, copy)
    with server(copy) as serving:
        assert serving.server_address[0] == "127.0.0.1", "no other machine can connect"
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield copy, int(serving.server_address[1])
        finally:
            serving.shutdown()
            thread.join()


def answer(port: int, path: str, *, host: str = "localhost", method: str = "GET") -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": f"{host}:{port}"})
    found = connection.getresponse()
    return found.status, found.read().decode(), dict(found.getheaders())


def test_the_page_follows_the_folder_through_a_restart_of_its_run(served, monkeypatch):
    copy, port = served
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    code, text, headers = answer(port, "/")
    assert code == 200 and "round 3 of 3" in text and "ε spent" in text and "aria-label" in text
    assert "default-src 'none'" in headers["Content-Security-Policy"] and headers["Cache-Control"] == "no-store"
    for where in (content, pictures):  # figures take most of the time
        monkeypatch.setattr(where, "picture", lambda figure, caption, **_: Picture(caption, Markup(""), 100))
    away = copy.rename(copy.with_name("away"))
    code, text, _ = answer(port, "/part")
    assert code == 200 and "cannot be read at the moment" in text
    away.rename(copy)
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[:2]) + '{"round": 3, "ep')  # a line that is being written
    assert "round 2 of 3" in answer(port, "/part")[1]
    (copy / "metrics.jsonl").write_text("".join(lines))
    assert "round 3 of 3" in answer(port, "/part")[1]
    after = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    assert {path: content for path, content in after.items() if path in before and path.name != "metrics.jsonl"} == {
        path: content for path, content in before.items() if path.name != "metrics.jsonl"
    }


def test_it_answers_for_this_machine_s_names_and_for_its_own_pages_alone(served):
    copy, port = served
    assert answer(port, "/", host="rebound.example")[0] == 421
    for path in ("/ledger.sqlite", "/../config.json", f"/{copy.name}/config.json", "/part?x=1"):
        assert answer(port, path)[0] == 404
    assert answer(port, "/", method="POST")[0] == 501
