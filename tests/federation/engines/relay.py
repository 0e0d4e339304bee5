"""A long wire, or an ingress that ends TLS: python relay.py AT-HOST:PORT TO-HOST:PORT SECONDS-EACH-WAY [CERTIFICATES].

Where the kernel has no `tc netem`, bytes wait here as long as on a long way, and every fiftieth piece waits for one
retransmission more: TCP shows a loss of 2 % as that. With a server's folder of `fedsw certs` it is an
ingress that has the server's key: it ends TLS, writes down each request's path, and speaks TLS to the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import ssl
import sys
from collections.abc import Coroutine
from pathlib import Path

_PIECE = 2**16
_ONE_OF, _RETRANSMISSION = 50, 0.3
_REQUEST = re.compile(rb"^(?:GET|POST) (\S+) HTTP/1\.1\r\n", re.MULTILINE)


async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, delay: float, seen: bool) -> None:
    """Carry what comes from one side to the other until it ends, each piece `delay` seconds later."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

    async def deliver() -> None:
        while True:
            due, piece = await queue.get()
            await asyncio.sleep(due - loop.time())
            target.write(piece)
            await target.drain()
            queue.task_done()

    async def receive() -> None:
        for count in itertools.count(1):
            piece = await source.read(_PIECE)
            if not piece:
                return await queue.join()
            for path in _REQUEST.findall(piece) if seen else ():
                print(path.decode("ascii", "replace"), flush=True)
            lost = _RETRANSMISSION if delay and count % _ONE_OF == 0 else 0.0
            queue.put_nowait((loop.time() + delay + lost, piece))

    await first_of(deliver(), receive())


async def first_of(*ways: Coroutine[None, None, None]) -> None:
    """Run all until one ends; a connection that broke is an end."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def relay(at: str, to: str, delay: float, certificates: Path | None) -> None:
    """Listen until it is stopped."""
    ours = theirs = named = None
    if certificates is not None:
        ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ours.load_cert_chain(certificates / "server.pem", certificates / "server.key")
        theirs, named = ssl.create_default_context(cafile=certificates / "ca.crt"), "server"

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, port = to.rsplit(":", 1)
        with contextlib.suppress(OSError):
            back, forth = await asyncio.open_connection(host, int(port), ssl=theirs, server_hostname=named)
            await first_of(carry(reader, forth, delay, theirs is not None), carry(back, writer, delay, False))
            forth.transport.abort()
        writer.transport.abort()

    host, port = at.rsplit(":", 1)
    async with await asyncio.start_server(connect, host, int(port), ssl=ours) as server:
        await server.serve_forever()


if __name__ == "__main__":
    at_, to_, seconds, *folder = sys.argv[1:]
    asyncio.run(relay(at_, to_, float(seconds), Path(folder[0]) if folder else None))
