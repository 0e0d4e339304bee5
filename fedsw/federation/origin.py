"""Origin of a request: the server's signature travels with it, and a client checks it before it reads further.

A network checks connections, and not always the sender that a message states. So a server that has a signing key
puts a record of its own into every request: a number drawn for it only, so that the request's id
is unguessable; a count, so that no request is taken twice; and a signature over both, the run, the node that is
asked, the kind of message and the digest of all that it holds. A client that was given the server's public key refuses
every other request before it decodes anything, draws a batch or charges.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsw.federation import SIGNING_KEY, wire

ORIGIN = "origin"
"""The record of a request, beside those of the table of messages, that names its author."""

_ABOUT = "fedsw request 1"
_NONCE_BYTES = 16


class NotFromServer(RuntimeError):
    """A request that the server did not write, or not now and for this node: nothing of it was read or charged."""


class Carrier(Grid):
    """A grid that messages are pushed to and pulled from; the rest of Flower's interface is not used here."""

    run: Any = None
    """Run information."""

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self.run = run

    def create_message(self, *arguments: Any, **settings: Any) -> Message:
        """Not supported: a message is made by its class."""
        raise NotImplementedError("a message is made by Message(...)")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Not supported: these messages would be unsigned."""
        raise NotImplementedError("a grid sends by push_messages")


class SigningGrid(Carrier):
    """A grid with requests that the server signs, the run's name in them; the grid that carries them does all else."""

    def __init__(self, carrier: Grid, run: str, key: Ed25519PrivateKey) -> None:
        self.carrier, self._name, self._key, self._count = carrier, run, key, 0
        self.run = carrier.run

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sign and send messages; returns their ids in order."""
        digests: dict[int, bytes] = {}  # a model is the same record in every message
        sealed = list(messages)
        for message in sealed:
            message.content = self._signed(message, digests)
        return self.carrier.push_messages(sealed)

    def _signed(self, message: Message, digests: dict[int, bytes]) -> RecordDict:
        self._count += 1
        nonce, metadata = secrets.token_hex(_NONCE_BYTES), message.metadata
        content_digest = digest(message.content, digests)
        text = _text(
            self._name, metadata.run_id, metadata.dst_node_id, metadata.message_type, nonce, self._count, content_digest
        )
        origin = {"run": self._name, "nonce": nonce, "count": self._count, "signature": self._key.sign(text)}
        return RecordDict({**message.content, ORIGIN: ConfigRecord(origin)})  # type: ignore[arg-type]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """See `Grid`."""
        return self.carrier.pull_messages(message_ids)

    def get_node_ids(self) -> Iterable[int]:
        """See `Grid`."""
        return self.carrier.get_node_ids()


def signing(grid: Grid, run: str) -> Grid:
    """The grid that signs its requests where this process was given a signing key; without one, the grid as it is."""
    path = os.environ.get(SIGNING_KEY)
    if not path:
        return grid
    key = load_pem_private_key(Path(path).read_bytes(), None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{SIGNING_KEY}={path} is no Ed25519 key; `fedsw certs` makes one")
    return SigningGrid(grid, run, key)


def require_server(message: Message, key: str | None, agreed: str | None, counts: dict[str, int]) -> None:
    """Check that a request is the server's, to this node, now; the record that says so is taken out of it.

    Without a `key`, which only operators of real nodes have, the sender's number alone is checked.
    `agreed` is the name of the run that this node was greeted in; `counts` has the count of the last request by run of
    the network, and is written to.

    Raises:
        NotFromServer: naming what is wrong.
    """
    metadata = message.metadata
    if metadata.src_node_id != wire.SERVER_NODE:
        raise NotFromServer(_refusal(f"it is from node {metadata.src_node_id}, not from the server"))
    origin = message.content.get(ORIGIN)
    if key is not None:
        run, count = _verified(message, origin, key)
        if agreed is not None and run != agreed:
            raise NotFromServer(_refusal("it belongs to another run than the one that this node was greeted in"))
        if count <= counts.get(str(metadata.run_id), 0):
            raise NotFromServer(_refusal("it came before"))
        counts[str(metadata.run_id)] = count
    if origin is not None:
        message.content = RecordDict({name: record for name, record in message.content.items() if name != ORIGIN})


def _verified(message: Message, origin: object, key: str) -> tuple[str, int]:
    """Check the signature of a request, and return the run's name and the count that it states."""
    metadata = message.metadata
    fields: Any = origin if isinstance(origin, ConfigRecord) else {}
    run, nonce, count, signature = (fields.get(name) for name in ("run", "nonce", "count", "signature"))
    if not (isinstance(run, str) and isinstance(nonce, str) and type(count) is int and isinstance(signature, bytes)):
        raise NotFromServer(_refusal("it is not signed"))
    content_digest = digest(message.content, {})
    text = _text(run, metadata.run_id, metadata.dst_node_id, metadata.message_type, nonce, count, content_digest)
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, text)
    except InvalidSignature:
        raise NotFromServer(_refusal("its signature is not that of the server's key (--server-key)")) from None
    return run, count


def _refusal(why: str) -> str:
    return f"a request was refused: {why}; nothing of it was read, and nothing charged"


def _text(run: str, run_id: int, node: int, kind: str, nonce: str, count: int, content: str) -> bytes:
    """The bytes that are signed, for one request."""
    return json.dumps([_ABOUT, run, run_id, node, kind, nonce, count, content]).encode()


def digest(content: RecordDict, known: dict[int, bytes]) -> str:
    """SHA-256 of all that a message holds, but for the record of its origin, in 64 hexadecimal digits.

    Names, types, shapes and values go into it with their lengths, so that no two contents have one text. Digests of
    records that several messages share are `known`, by identity.
    """
    total = hashlib.sha256()
    for name in sorted(content):
        if name == ORIGIN:
            continue
        record = content[name]
        if id(record) not in known:
            known[id(record)] = _of_record(record)
        _put(total, name.encode("utf-8", "surrogatepass"))
        _put(total, known[id(record)])
    return total.hexdigest()


def _of_record(record: Any) -> bytes:
    total = hashlib.sha256(type(record).__name__.encode())
    for key in sorted(record):
        value = record[key]
        _put(total, key.encode("utf-8", "surrogatepass"))
        if isinstance(record, ArrayRecord):
            for part in (value.dtype, ",".join(map(str, value.shape)), value.stype):
                _put(total, part.encode("utf-8", "surrogatepass"))
            _put(total, value.data)
        else:
            _put(total, _plain(value))
    return total.digest()


def _plain(value: Any) -> bytes:
    """A setting's or metric's type and value as bytes."""
    if isinstance(value, list | tuple):
        parts = [_plain(item) for item in value]
        return b"l" + b"".join(len(part).to_bytes(8) + part for part in parts)
    if isinstance(value, float):
        return b"f" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return b"y" + value
    return type(value).__name__[:1].encode() + str(value).encode("utf-8", "surrogatepass")


def _put(total: Any, part: bytes) -> None:
    total.update(len(part).to_bytes(8))
    total.update(part)
