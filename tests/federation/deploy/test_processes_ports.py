"""Laws of the ports that a run's processes are to listen on."""

from __future__ import annotations

import itertools
import socket
import time

import pytest

from fedsw.federation.deploy import processes
from fedsw.federation.deploy.certificates import write_certificates
from fedsw.federation.deploy.flower_processes import SuperLink
from fedsw.federation.deploy.processes import free_port


def test_a_port_that_the_system_picks_again_is_not_given_out_again(monkeypatch):
    """The system may choose a port again as long as nobody has bound it."""
    first = free_port()
    genuine = socket.socket
    asked = []

    class Repeating(genuine):
        def bind(self, address):
            asked.append(address)
            super().bind((address[0], first) if len(asked) == 1 else address)

    monkeypatch.setattr(processes.socket, "socket", Repeating)
    second = free_port()
    assert second != first and len(asked) == 2


def test_ports_never_run_out(monkeypatch):
    """A client that starts its node again and again asks for more ports than the system has."""
    turns = itertools.count()

    class Few(socket.socket):
        def bind(self, address): ...

        def getsockname(self):
            return "127.0.0.1", 40_000 + next(turns) % 1000

    monkeypatch.setattr(processes.socket, "socket", Few)
    found = [free_port() for _ in range(2500)]
    assert set(found[-1000:]) == set(range(40_000, 41_000))


def test_a_given_port_can_be_listened_on():
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert server.getsockname()[1] > 0


def test_a_port_that_is_taken_is_named_with_the_remedy_before_anything_is_started(tmp_path):
    """After 75 seconds it was said that a node's key was not taken, with a traceback of another library."""
    with socket.create_server(("127.0.0.1", 0)) as other, processes.Processes(None) as started:
        port = other.getsockname()[1]
        for stock in (False, True):
            certificates = write_certificates(tmp_path / f"server{stock}", ["localhost"])
            began = time.monotonic()
            with pytest.raises(OSError, match=f"port {port} cannot be opened: another program .* with --port"):
                SuperLink.start(started, certificates, tmp_path, host="0.0.0.0", port=port, stock=stock)
            assert time.monotonic() - began < 5 and not started.alive()
