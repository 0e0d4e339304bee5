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
from pathlib import Path

_PIECE = 2**16
_ONE_OF, _RETRANSMISSION = 50, 0.3
_REQUEST = re.compile(rb"^(?:GET|POST) (\S+) HTTP/1\.1\r\n", re.MULTILINE)


async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, delay: float, seen: bool) -> None:
    """Carry what comes from one side to the other until it ends, each piece `delay` seconds later and in order."""
    loop, due = asyncio.get_running_loop(), 0.0
    for count in itertools.count(1):
        piece = await source.read(_PIECE)
        for path in _REQUEST.findall(piece) if seen else ():
            print(path.decode("ascii", "replace"), flush=True)
        lost = _RETRANSMISSION if delay and count % _ONE_OF == 0 else 0.0
        due = max(due + 1e-6, loop.time() + delay + lost)
        if not piece:
            loop.call_at(due, target.close)
            return
        loop.call_at(due, target.write, piece)


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
            try:
                await asyncio.gather(carry(reader, forth, delay, theirs is not None), carry(back, writer, delay, False))
            finally:
                forth.close()
        writer.close()

    host, port = at.rsplit(":", 1)
    async with await asyncio.start_server(connect, host, int(port), ssl=ours) as server:
        await server.serve_forever()


if __name__ == "__main__":
    at_, to_, seconds, *folder = sys.argv[1:]
    asyncio.run(relay(at_, to_, float(seconds), Path(folder[0]) if folder else None))
