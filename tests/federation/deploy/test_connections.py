"""Limits of what a SuperLink takes from who has shown nothing: connections, headers, bodies, idle time. On loopback."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes, sign_message
from flwr.superlink.dependencies import linkstate

from fedsw.federation.deploy import connections
from fedsw.federation.deploy.connections import BoundedRequests, Patience, door
from fedsw.federation.flower import signed_by_a_node

LIMIT, BODY = 20, 1000


class Answers:
    """An app that reads a body whole, and counts what it was given."""

    def __init__(self) -> None:
        self.bytes, self.calls = 0, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.calls += 1
        more = True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise RuntimeError("gone")
            self.bytes += len(event.get("body", b""))
            more = event.get("more_body", False)
        await connections.respond(send, 200, b"read")


class Small(BoundedRequests):
    most, most_of_others, seconds, seconds_of_others = BODY, 10, 0.5, 1.0


class Hasty(Patience):
    seconds = 0.5


@pytest.fixture
def app() -> Answers:
    return Answers()


@pytest.fixture
def port(app: Answers) -> Iterator[int]:
    """A server within low limits, that counts connections of its own machine too."""
    guarded = Small(app, lambda scope: (b"signed", b"yes") in scope["headers"])
    config = uvicorn.Config(
        guarded, http=Hasty, loop="asyncio", lifespan="off", log_level="critical", h11_max_incomplete_event_size=2000
    )
    server = uvicorn.Server(config)
    with door("127.0.0.1", 0, LIMIT, LIMIT, count_local=True) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        _wait(lambda: server.started)
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(10)


def _wait(condition: Any) -> bool:
    until = time.monotonic() + 10
    while not (found := condition()) and time.monotonic() < until:
        time.sleep(0.02)
    return bool(found)


def asked(port: int, head: str, body: bytes = b"", *, path: str = "/v1/fleet/give") -> bytes:
    """What comes back for a request, until the server closes."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), 10)) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\n{head}\r\n".encode() + body)
        found = b""
        with contextlib.suppress(OSError):
            while part := connection.recv(4096):
                found += part
        return found


SIGNED, CLOSE = "signed: yes\r\n", "connection: close\r\n"


def test_a_body_of_an_admitted_node_is_read(port, app):
    assert b"200" in asked(port, f"{SIGNED}{CLOSE}content-length: {BODY}\r\n", b"x" * BODY)[:20]
    assert app.bytes == BODY


def test_nothing_is_read_of_who_is_not_admitted(port, app):
    assert b" 401 " in asked(port, f"content-length: {BODY}\r\n", b"x" * BODY)[:20]
    assert (app.calls, app.bytes) == (0, 0)


@pytest.mark.parametrize("stated", [BODY + 1, 500 * 2**20, 10**30])
def test_a_body_that_states_too_large_a_length_is_refused_before_it_is_read(stated, port, app):
    answer = asked(port, f"{SIGNED}content-length: {stated}\r\n")[:20]
    assert (b" 413 " if stated < 10**20 else b" 400 ") in answer, "a length of 31 digits is refused by uvicorn itself"
    assert (app.calls, app.bytes) == (0, 0)


def test_a_body_without_a_length_is_counted_while_it_is_read(port, app):
    chunk = b"100\r\n" + b"x" * 256 + b"\r\n"
    assert b" 413 " in asked(port, f"{SIGNED}transfer-encoding: chunked\r\n", chunk * 40)[:20]
    assert app.bytes <= BODY
    assert b" 200 " in asked(port, f"{SIGNED}{CLOSE}transfer-encoding: chunked\r\n", chunk * 3 + b"0\r\n\r\n")[:20]


def test_a_body_that_stops_is_not_waited_for(port, app):
    assert b" 408 " in asked(port, f"{SIGNED}content-length: {BODY}\r\n", b"x" * 10)[:20]


def trickled(port: int, path: str, head: str) -> bytes:
    """What comes back for a body of ten bytes that takes 1.5 seconds, none of them a pause."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), 10)) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\n{head}{CLOSE}content-length: 10\r\n\r\n".encode())
        with contextlib.suppress(OSError):
            for _ in range(10):
                time.sleep(0.15)
                connection.sendall(b"x")
        with contextlib.suppress(OSError):
            return connection.recv(20)
    return b""


def test_a_stranger_s_body_that_trickles_is_cut_and_a_node_s_is_not(port, app):
    """A byte every half minute would hold a connection for three weeks."""
    assert b" 408 " in trickled(port, "/v1/fleet/activate-node", "")
    assert app.bytes < 10
    assert b" 200 " in trickled(port, "/v1/fleet/give", SIGNED)


def signed(key: Any, *, stamp: str, by: Any = None, over: str | None = None) -> dict[str, Any]:
    """A request whose headers are signed with a key, at a time."""
    signature = sign_message((by or key)[0], (stamp if over is None else over).encode("ascii"))
    headers = {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(key[1])),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature),
        TIMESTAMP_HEADER: stamp.encode("ascii"),
    }
    named = [(name.lower().encode("ascii"), value) for name, value in headers.items()]
    return {"type": "http", "method": "POST", "path": "/v1/fleet/give", "headers": named}


class Admitted:
    """A link state that knows one node."""

    def __init__(self, key: Any) -> None:
        self._key = public_key_to_bytes(key[1])

    def get_node_id_by_public_key(self, key: bytes) -> int | None:
        return 7 if key == self._key else None


def test_headers_are_a_node_s_only_with_its_key_its_signature_and_the_time(monkeypatch):
    own, other = generate_key_pairs(), generate_key_pairs()
    monkeypatch.setattr(linkstate, "get_linkstate", lambda request: Admitted(own))
    fresh, old = now().isoformat(), (now() - datetime.timedelta(hours=1)).isoformat()
    later = (now() + datetime.timedelta(hours=1)).isoformat()
    assert signed_by_a_node(signed(own, stamp=fresh))
    refused = {
        "unsigned": {"type": "http", "headers": []},
        "a key that is not admitted": signed(other, stamp=fresh),
        "an admitted key, and another's signature": signed(own, stamp=fresh, by=other),
        "a signature of another time": signed(own, stamp=fresh, over=old),
        "a time that is over": signed(own, stamp=old),
        "a time to come": signed(own, stamp=later),
        "no time": signed(own, stamp="now"),
    }
    for missing in range(3):
        whole = signed(own, stamp=fresh)
        refused[f"without header {missing}"] = {
            **whole,
            "headers": [*whole["headers"][:missing], *whole["headers"][missing + 1 :]],
        }
    for place, value in ((0, b"x"), (0, b64encode(b"no key")), (1, b"%"), (1, b64encode(b"")), (2, b"\xff")):
        whole = signed(own, stamp=fresh)
        whole["headers"][place] = (whole["headers"][place][0], value)
        refused[f"header {place} is {value!r}"] = whole
    assert [why for why, scope in refused.items() if signed_by_a_node(scope)] == []


def test_headers_that_never_end_are_cut(port, app):
    with contextlib.closing(socket.create_connection(("127.0.0.1", port), 10)) as connection:
        connection.sendall(b"POST /v1/fleet/give HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 600)
        began = connection.recv(20)
    assert b" 4" in began and app.calls == 0


@pytest.mark.parametrize("head", [f"x: {'y' * 50_000}\r\n", "x: y\r\n" * 5_000])
def test_headers_that_come_in_one_piece_are_no_longer_than_is_said(head, port, app):
    assert b" 431 " in asked(port, f"{SIGNED}{head}content-length: 0\r\n")[:20] and app.calls == 0
    path = "/v1/fleet/give?" + "x" * 20_000
    assert b" 431 " in asked(port, f"{SIGNED}content-length: 0\r\n", path=path)[:20] and app.calls == 0


def test_fifty_idle_connections_lock_nobody_out_for_long(port, app):
    idle = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(50)]
    for one in idle[::2]:
        with contextlib.suppress(OSError):
            one.sendall(b"POST /v1/fleet/give HTTP/1.1\r\n")  # and no end of the headers
    closed = sum(_is_closed(one) for one in idle)
    assert closed >= 50 - LIMIT, "those above the limit at once"
    assert _wait(lambda: all(_is_closed(one) for one in idle)), "the others when their time is over"
    assert _wait(lambda: b" 200 " in asked(port, f"{SIGNED}{CLOSE}content-length: 1\r\n", b"x")[:20])
    for one in idle:
        one.close()


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_an_address_has_its_own_limit_and_the_machine_itself_none():
    with door("127.0.0.1", 0, 100, 3, count_local=True) as listening:
        listening.listen()
        clients = [socket.create_connection(listening.getsockname()) for _ in range(4)]
        kept = [listening.accept()[0] for _ in range(3)]
        with pytest.raises(ConnectionAbortedError, match=r"too many from 127\.0\.0\.1"):
            listening.accept()
        kept.pop().close()
        clients.append(socket.create_connection(listening.getsockname()))
        kept.append(listening.accept()[0])
        for each in (*clients, *kept):
            each.close()
    with door("127.0.0.1", 0, 1, 1) as listening:
        listening.listen()
        clients = [socket.create_connection(listening.getsockname()) for _ in range(3)]
        kept = [listening.accept()[0] for _ in range(3)]
        for each in (*clients, *kept):
            each.close()


def test_other_requests_than_a_node_s_have_a_small_body_but_those_of_the_machine_itself():
    reached = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    headers = [(b"content-length", b"5000000")]
    for peer, passes in ((("10.0.0.9", 5), False), (("127.0.0.1", 5), True)):
        scope = {"type": "http", "path": "/health", "client": peer, "headers": headers}
        asyncio.run(BoundedRequests(app, lambda scope: False)(scope, lambda: None, send))  # type: ignore[arg-type, return-value]
        assert bool(reached) == passes
    assert sent[0]["status"] == 413
