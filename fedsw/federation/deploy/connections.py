"""Limits of a SuperLink for unauthenticated peers: connections, headers, bodies, and the time for each.

Uvicorn's own limits are used where it has them; the others are here. Loaded by path from superlink.py.

* A connection is counted from its first packet, before TLS: in all, and by address. One too many is closed at once. The
  SuperLink's own machine is not counted: its server app is never locked out.
* A handshake, the headers of a request and every next part of a body have some seconds each; so has the whole body of
  a request that is not signed by a node.
* A body is read when the request's headers are signed with the key of an admitted node, and up to MOST_BYTES of it; one
  that states a larger length is refused before a byte of it is read. Other requests have a small one.
"""

from __future__ import annotations

import asyncio
import math
import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_BYTES = 2**29
"""Largest body of an admitted node: a reply with all its arrays."""
MOST_BYTES_OF_OTHERS = 2**16
MOST_HEADER_BYTES = 2**14
MOST_CONNECTIONS = 4096
MOST_BY_ADDRESS = 128
BY_ADDRESS = "FEDSW_CONNECTIONS_BY_ADDRESS"
"""The environment variable with another number of connections of one address."""
HANDSHAKE_SECONDS = 10.0
HEADER_SECONDS = 20.0
PART_SECONDS = 30.0
SECONDS_OF_OTHERS = 60.0
"""Longest time for a whole body that no admitted node signed: a trickling one is cut off."""
KEPT_SECONDS = 30
_SPARE_FILES = 128
_FLEET = "/v1/fleet/"
_GREETING = "/v1/fleet/activate-node"
"""A short request, which Flower itself refuses to strangers, with the reason that nodes know."""

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


def is_local(peer: Any) -> bool:
    """True for an address of this machine."""
    return peer is not None and (peer[0] == "::1" or peer[0].startswith(("127.", "::ffff:127.")))


class Door(socket.socket):
    """A listening socket with a limit on open connections, in all and from one address."""

    def __init__(self, family: int, most: int, by_address: int, *, count_local: bool = False) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._most, self._by_address, self._count_local = most, by_address, count_local
        self._open, self._lock = Counter[str](), threading.Lock()

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; ConnectionAbortedError for one too many, which is closed: servers go on."""
        descriptor, peer = self._accept()  # type: ignore[attr-defined]
        connection = _Counted(self.family, self.type, self.proto, fileno=descriptor)
        if self._count_local or not is_local(peer):
            with self._lock:
                full = self._open.total() >= self._most or self._open[peer[0]] >= self._by_address
                self._open[peer[0]] += not full
            if full:
                connection.close()
                raise ConnectionAbortedError(f"one connection too many from {peer[0]}")
            connection.left = lambda: self._leave(peer[0])
        return connection, peer

    def _leave(self, address: str) -> None:
        with self._lock:
            self._open[address] -= 1
            if self._open[address] <= 0:
                del self._open[address]


class _Counted(socket.socket):
    """A connection that says when it is closed, once."""

    left: Callable[[], None] | None = None

    def close(self) -> None:
        """Close it."""
        super().close()
        self._say_left()

    def detach(self) -> int:
        """See `socket`; it is counted no longer."""
        self._say_left()
        return super().detach()

    def _say_left(self) -> None:
        left, self.left = self.left, None
        if left is not None:
            left()


class Patience(H11Protocol):
    """uvicorn's HTTP/1.1, which closes a connection if its next request does not begin, or its headers never end."""

    seconds = HEADER_SECONDS

    def connection_made(self, transport: Any) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._waiting = self.loop.time()
        self._look_again = self.loop.call_later(self.seconds, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._look_again.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """See `H11Protocol`."""
        self._waiting = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        busy = self.cycle is not None and not self.cycle.response_complete
        left = self.seconds - (self.loop.time() - self._waiting)
        if not busy and left <= 0:
            self.transport.close()
            return
        self._look_again = self.loop.call_later(self.seconds if busy else left, self._look)


class BoundedRequests:
    """Middleware, the outermost: refuses requests by their headers, and bounds the bodies of the others.

    `known` says of a request's scope whether an admitted node signed its headers.
    """

    most, most_of_others = MOST_BYTES, MOST_BYTES_OF_OTHERS
    seconds, seconds_of_others = PART_SECONDS, SECONDS_OF_OTHERS

    def __init__(self, app: Any, known: Callable[[Any], bool]) -> None:
        self._app, self._known = app, known

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Pass on, or refuse: 401, 413, 431, or 408 where a part of the body does not come."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        if size + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > MOST_HEADER_BYTES:
            await respond(send, 431, f"the headers of a request have at most {MOST_HEADER_BYTES} bytes".encode())
            return
        fleet = scope["path"].startswith(_FLEET)
        known = fleet and self._known(scope)
        if fleet and not known and scope["path"] != _GREETING:
            await respond(send, 401, b'{"detail": "Invalid SuperNode authentication"}', "application/json")
            return
        if not fleet and is_local(scope.get("client")):
            await self._app(scope, receive, send)
            return
        limits = (self.most, math.inf) if known else (self.most_of_others, self.seconds_of_others)
        body = _Body(receive, *limits, part_seconds=self.seconds)
        if body.states_too_much(scope):
            await respond(send, 413, f"a body has at most {body.most} bytes".encode())
            return
        begun = False

        async def sent(event: Any) -> None:
            nonlocal begun
            if body.refused is None or begun:
                begun = True
                await send(event)

        try:
            await self._app(scope, body.receive, sent)
        except Exception:
            if body.refused is None:
                raise
        if body.refused is not None and not begun:
            said = f"a body has at most {body.most} bytes, and comes soon and without a pause"
            await respond(send, body.refused, said.encode())


class _Body:
    """A request's body as it arrives, counted; one too long or too slow reads as a closed connection."""

    def __init__(self, receive: Receive, most: int, seconds: float, *, part_seconds: float) -> None:
        self.most, self.refused = most, None if most else 413
        self._receive, self._came, self._whole = receive, 0, False
        self._part_seconds, self._end = part_seconds, time.monotonic() + seconds

    def states_too_much(self, scope: Any) -> bool:
        """True if the stated length is above the limit, or is not a number."""
        stated = dict(scope["headers"]).get(b"content-length")
        return stated is not None and (not stated.isdigit() or len(stated) > 18 or int(stated) > self.most)

    async def receive(self) -> Any:
        """The next event; the end of the connection from where the body is refused."""
        if self._whole:
            return await self._receive()
        if self.refused is not None:
            return {"type": "http.disconnect"}
        try:
            left = min(self._part_seconds, self._end - time.monotonic())
            event = await asyncio.wait_for(self._receive(), left)
        except TimeoutError:
            self.refused = 408
            return {"type": "http.disconnect"}
        if event["type"] == "http.request":
            self._came += len(event.get("body", b""))
            if self._came > self.most:
                self.refused = 413
                return {"type": "http.disconnect"}
            self._whole = not event.get("more_body", False)
        return event


async def respond(send: Send, status: int, body: bytes, kind: str = "text/plain") -> None:
    """Answer a request; a refusal also ends its connection, so that what is left of a body is never read."""
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(b"connection", b"close")] * (status in (401, 408, 413, 431))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve(app: Any, *, host: str, port: int, **settings: Any) -> None:
    """`uvicorn.run` within the limits."""
    import uvicorn

    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = HANDSHAKE_SECONDS  # type: ignore[attr-defined]
    options = {name: value for name, value in settings.items() if name not in ("reload", "access_log")}
    config = uvicorn.Config(
        app,
        host,
        port,
        http=Patience,
        loop="asyncio",
        access_log=False,  # it would be a line for every request
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        timeout_keep_alive=KEPT_SECONDS,
        **options,
    )
    by_address = int(os.environ.get(BY_ADDRESS, MOST_BY_ADDRESS))
    with door(host, port, min(MOST_CONNECTIONS, _files() - _SPARE_FILES), by_address) as listening:
        uvicorn.Server(config).run(sockets=[listening])


def door(host: str, port: int, most: int, by_address: int, *, count_local: bool = False) -> Door:
    """A bound `Door`."""
    listener = Door(socket.AF_INET6 if ":" in host else socket.AF_INET, most, by_address, count_local=count_local)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.set_inheritable(False)
    return listener


def _files() -> int:
    """Number of files that this process may have open, after its soft limit was raised to its hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2**16), hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**16 if soft == resource.RLIM_INFINITY else soft
