"""Is every row of every ledger what was written, and is none missing? Digests computed anew from the documented format.

The format (docs/guarantees.md, "The ledger"): the header's digest is the SHA-256 of its text; a row's is that of the
JSON list [digest before, sequence, key, text], the first row's digest before being the header's. Heads, the
positions that other files remember, reveal rows cut off at the end, which a chain alone does not.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fedsw.audit.record.folder import Book, Check, Faults, Folder
from fedsw.audit.record.model import newest_checkpoint

NAME = "ledger chain"


def check(folder: Folder) -> Check:
    """Every digest, the sequence, no attempt twice, and every remembered head.

    A copy of the whole folder from an earlier day is consistent in itself, and passes.
    """
    if not folder.books:
        if folder.local and folder.noisy:
            return Check(NAME, None, "the clients' ledgers are not in the folder; audit them where they are")
        found = "no ledger is in the folder"
        return Check(NAME, folder.local or not folder.metrics, found + (": nothing was protected" * folder.local))
    faults = Faults()
    for book in folder.books:
        _follow(book, faults)
        for by, head in _remembered(folder, book):
            _require_head(book, by, head, faults)
    if not folder.local and folder.summary:
        ends = folder.summary.get("ledger") or {}
        last = folder.books[0].rows[-1].sequence if folder.books[0].rows else 0
        faults.require(ends.get("sequence") == last, f"the summary saw {ends.get('sequence')} rows, there are {last}")
    for client in sorted(folder.summary.get("epsilon_spent_by_client", {}) if folder.local else []):
        held = {book.client for book in folder.books}
        faults.require(client in held, f"client {client} reported what it spent, and has no ledger here")
    rows = {book.name: len(book.rows) for book in folder.books}
    return faults.check(NAME, f"{sum(rows.values())} digests recomputed in {_ledgers(len(rows))}", rows=rows)


def _follow(book: Book, faults: Faults) -> None:
    body, digest = book.header
    faults.require(_sha256(body) == digest, f"{book.name}: the header is not the one that was written")
    before, seen = digest, set[tuple[int, int]]()
    for position, row in enumerate(book.rows, start=1):
        where = f"{book.name}, row {row.sequence}"
        faults.require(row.sequence == position, f"{where}: row {position} belongs there")
        text = json.dumps([row.previous, row.sequence, row.key, row.body])
        faults.require(row.previous == before, f"{where} does not follow from the one before")
        faults.require(_sha256(text) == row.digest, f"{where} is not the one that was written")
        faults.require(row.key == f"{row.round}/{row.attempt}", f"{where} has another key than its round and attempt")
        attempt = (row.round, row.attempt)
        faults.require(attempt not in seen, f"{where}: round {row.round}, attempt {row.attempt} is charged again")
        seen.add(attempt)
        before = row.digest


def _remembered(folder: Folder, book: Book) -> list[tuple[str, dict[str, Any]]]:
    if book.client is not None:
        beside = book.path.with_suffix(".head")
        return [(beside.name, json.loads(beside.read_text(encoding="ascii")))] if beside.is_file() else []
    heads = [("summary.json", folder.summary.get("ledger"))]
    stored = newest_checkpoint(folder.directory)
    heads.append(("the checkpoint", stored["ledger"] if stored else None))
    return [(by, head) for by, head in heads if head]


def _require_head(book: Book, by: str, head: dict[str, Any], faults: Faults) -> None:
    sequence, digest = int(head["sequence"]), str(head["digest"])
    digests = {0: book.header[1], **{row.sequence: row.digest for row in book.rows}}
    sentence = f"{by} remembers row {sequence} of {book.name}, which "
    faults.require(sequence in digests, sentence + "is gone")
    faults.require(digests.get(sequence, digest) == digest, sentence + "is another one now")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _ledgers(count: int) -> str:
    return "one ledger" if count == 1 else f"{count} ledgers"
