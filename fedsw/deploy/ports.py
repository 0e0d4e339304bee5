"""Ports of the loopback interface for the processes of a run."""

from __future__ import annotations

import socket
import threading
from collections import deque

_given: deque[int] = deque(maxlen=256)  # a node that is started again for days must not run out of ports
_mutex = threading.Lock()


def free_port() -> int:
    """A port of the loopback interface that nobody listens on at the moment, and that was not given out lately.

    It is free again until its process binds it, and the system could choose it twice in between.
    """
    with _mutex:
        while True:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = int(probe.getsockname()[1])
            if port not in _given:
                _given.append(port)
                return port
