"""The records that a run began with: a keyed digest in the client's state folder, by which other ones are refused."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsw._tools import files
from fedsw.data import Records
from fedsw.federation.node.node import Node
from fedsw.federation.node.own_ledger import state_folder
from fedsw.federation.node.simulated import is_simulated

KEY_FILE = "records.key"
"""The key of the digests in a state folder: drawn there, for this folder only; neither it nor a digest ever leaves."""
_KEY_BYTES = 32


class OtherRecords(ValueError):
    """A client came back to a run with other records than those that it has answered with."""


def require_same_records(node: Node, node_config: Mapping[str, Any], *, answered: bool) -> None:
    """Refuse records that are not those which this node has `answered` with in its run, row for row and in order.

    Before its first answer they are taken note of instead: what was greeted with, and mended since, is no other file.
    A file that other persons are in, in groups of the same sizes, is told by nothing else. The order counts: by it
    `data.held_out_fraction` chooses the records kept out of training. A simulated node reads its records once.

    The digest is written to the state folder, under a key of that folder: a reader of a copy of it without the key
    learns nothing of a record.

    Raises:
        OtherRecords: saying what to do; nothing was charged.
        RuntimeError: if the folder does not take key or digest.
    """
    if is_simulated(node_config):
        return
    client = int(node.clients[0])
    folder = state_folder(node_config, client, "to recognise its records by, after it was started again")
    path = folder / f"records-{client}-{hashlib.sha256(node.run.encode()).hexdigest()[:16]}.digest"
    try:
        files.new_folder(folder)
        digest = keyed_digest(node, _key_in(folder))
        if answered and path.exists():
            if not hmac.compare_digest(path.read_bytes(), digest):
                raise OtherRecords(
                    "this file is not the one that this run began with: other records, other values or another order. "
                    "Put back the file as it was (an export may have replaced it since) and start this client again, "
                    "or take part in the next run; nothing was charged"
                )
        elif not path.exists() or path.read_bytes() != digest:
            files.replace(path, digest)
    except OSError as fault:
        raise RuntimeError(
            f"this node cannot write down by what it will recognise its records ({fault.strerror}); its operator must "
            "make its state folder writable"
        ) from None


def keyed_digest(node: Node, key: bytes) -> bytes:
    """BLAKE2b under a key of all that a node read: every value of every record, those kept out of training, too."""
    if node.digest is None:
        total = hashlib.blake2b(key=key, digest_size=_KEY_BYTES)
        for records in (node.records, None if node.held_out is None else node.held_out.records):
            for values in _tensors(records):
                about = b"-" if values is None else f"{values.dtype} {tuple(values.shape)}".encode()
                total.update(len(about).to_bytes(8) + about)
                if values is not None:
                    total.update(values.contiguous().numpy().data.cast("B"))
        node.digest = total.digest()
    return node.digest


def _tensors(records: Records | None) -> Iterator[Tensor | None]:
    if records is None:
        yield None
        return
    yield from (records.features, records.sensitive, records.target, records.ids, records.unit)


def _key_in(folder: Path) -> bytes:
    """The folder's key, drawn now if it has none; one that is there is never replaced."""
    path = folder / KEY_FILE
    if not path.exists():
        draft = path.with_name(f"{KEY_FILE}-{secrets.token_hex(8)}")
        with files.opened(draft, "xb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        files.sync(draft)
        try:
            path.hardlink_to(draft)  # whole or not there; of two processes one is first
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_bytes()
