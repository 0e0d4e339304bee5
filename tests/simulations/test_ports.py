"""Laws of the ports that a run's processes are told to listen on."""

from __future__ import annotations

import socket

from simulations import ports
from simulations.ports import free_port


def test_a_port_is_never_given_out_twice(monkeypatch):
    """The system may choose a port again as long as nobody has bound it."""
    first = free_port()
    genuine = socket.socket
    asked = []

    class Repeating(genuine):
        def bind(self, address):
            asked.append(address)
            super().bind((address[0], first) if len(asked) == 1 else address)

    monkeypatch.setattr(ports.socket, "socket", Repeating)
    second = free_port()
    assert second != first and len(asked) == 2


def test_a_given_port_can_be_listened_on():
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert server.getsockname()[1] > 0
