"""Laws of the ports that a run's processes are to listen on."""

from __future__ import annotations

import itertools
import socket

from fedsw.deploy import processes
from fedsw.deploy.processes import free_port


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
