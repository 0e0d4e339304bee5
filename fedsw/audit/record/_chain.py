"""Checks that a folder holds what was written: every row of every ledger, the checkpoint, the model and its rounds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsw.audit.finding import Check, Faults
from fedsw.audit.record import _bounds_again as sensitivity
from fedsw.audit.record._folder import Book, Folder, without_ledgers

CHAIN = "ledger chain"


def check_chain(folder: Folder) -> Check:
    """Check digests, sequence, attempts and remembered heads; a copy of a whole earlier folder passes."""
    if not folder.books:
        if folder.local and folder.noisy:
            return without_ledgers(CHAIN)
        without = "no ledger is in the folder"
        return Check(CHAIN, folder.local or not folder.metrics, without + (": nothing was protected" * folder.local))
    faults = Faults()
    for book in folder.books:
        _follow(book, faults)
        for by, head in _remembered(folder, book):
            _require_head(book, by, head, faults)
    if not folder.local and folder.summary:
        ends = folder.summary.get("ledger") or {}
        last = folder.books[0].rows[-1].sequence if folder.books[0].rows else 0
        faults.require(ends.get("sequence") == last, f"the summary saw {ends.get('sequence')} rows, there are {last}")
    with_ledger = {book.client for book in folder.books}
    for client, said in sorted(folder.summary.get("epsilon_spent_by_client", {}).items() if folder.local else []):
        accounted = client in with_ledger or said == 0  # one that was never charged begins no ledger
        faults.require(accounted, f"client {client} reported what it spent, and has no ledger here")
    rows = {book.name: len(book.rows) for book in folder.books}
    ledgers = "one ledger" if len(rows) == 1 else f"{len(rows)} ledgers"
    return faults.check(CHAIN, f"{sum(rows.values())} digests recomputed in {ledgers}", rows=rows)


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


NAME = "model and checkpoint"

_TITLE = b"fedsw checkpoint 2 "


def check(folder: Folder) -> Check:
    """Check the parameters bit for bit, and the rounds of checkpoint, metrics, ledger and summary."""
    if folder.sketch:
        return sensitivity.model(folder, NAME)
    stored = newest_checkpoint(folder.directory)
    model = folder.directory / "model.safetensors"
    if stored is None:
        faults = Faults()
        faults.require(not folder.metrics, "rounds are in metrics.jsonl, and no whole checkpoint is there")
        return faults.check(NAME, "no round was finished, and no checkpoint is there")
    faults, round_ = Faults(), int(stored["round"])
    _rounds(folder, round_, faults)
    averaged = folder.experiment["training"]["averaging"] > 0
    if not averaged:
        same = torch.allclose(stored["theta"], stored["average"], rtol=1e-9, atol=1e-12)  # kept up by additions
        faults.require(same, "nothing is averaged, and the checkpoint's average is not its iterate")
    if not model.is_file():
        faults.require(folder.summary.get("status") != "completed", "the run is completed, and has no model")
        return faults.check(NAME, f"the checkpoint is of round {round_}; no model was released", round=round_)
    if not str(folder.summary.get("status", "")).startswith(("completed", "stopped")):
        words = f"the checkpoint is of round {round_}; the model was released before the run went on and broke off"
        return faults.check(NAME, words, round=round_)
    off = _differing(sensitivity.tensors_of(model), _released(folder, stored["average"]), folder)
    faults.require(not off, f"model.safetensors is not the checkpoint's: {', '.join(off)}")
    what = "averaged iterates" if averaged else "iterate"
    return faults.check(NAME, f"the model is the {what} of round {round_}, bit for bit", round=round_)


def _released(folder: Folder, theta: Tensor) -> Tensor:
    """The flat model (r,) for features as they are, calibrated.

    A checkpoint's is for prepared features where moments were released, and not calibrated where scores were; whether
    scores say so is checked with their row (`_sums_row`).
    """
    calibration = (folder.scores or {}).get("calibration")
    if folder.preparation is None and calibration is None:
        return theta
    from fedsw.learning.models import flatten
    from fedsw.learning.models.outer_layers import rescaled
    from fedsw.learning.moments.preparation import folded

    task = folder.task
    model = task.prepared(task.build_model().double(), theta)
    if folder.preparation is not None:
        model = folded(model, folder.preparation)
    if calibration is not None:
        model = rescaled(model, task.features, float(calibration["scale"]), calibration["shift"])
    return flatten(model)


def newest_checkpoint(directory: Path) -> dict[str, Any] | None:
    """Read the whole state, with round and ledger's row of the last release on file; None if there is none.

    Releases are only there in a run that is going on or broke off: its parameters are those before them.
    """
    path, released = directory / "checkpoint.pt", directory / "checkpoint.released"
    stored = sensitivity.read_titled(path, _TITLE)
    if stored is not None and released.is_file():
        state = path.read_bytes().partition(b"\n")[2]
        for round_, head in _releases(released.read_bytes(), hashlib.sha256(state).digest()):
            stored |= {"round": round_, "ledger": head}
    return stored


def _releases(content: bytes, before: bytes) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Round and ledger's row of each whole release: its length, a SHA-256 with the one before, 48 bytes, vector."""
    while len(content) >= 40:
        length, digest = int.from_bytes(content[:8], "little"), content[8:40]
        body, content = content[40 : 40 + length], content[40 + length :]
        if len(body) < length or hashlib.sha256(before + body).digest() != digest:
            return
        sequence, of_row = int.from_bytes(body[8:16], "little"), body[16:48].hex()
        yield (
            int.from_bytes(body[:8], "little"),
            {"sequence": sequence, "digest": of_row} if int(of_row, 16) else None,
        )
        before = digest


def _rounds(folder: Folder, round_: int, faults: Faults) -> None:
    numbers = [int(line["round"]) for line in folder.metrics]
    faults.require(numbers == sorted(set(numbers)), "the rounds of metrics.jsonl do not follow one another")
    # Each process that was killed may have died after its checkpoint and before that round's line.
    processes = sum(line.get("event") == "run begins" for line in folder.log)
    missing = sorted(set(range(1, round_ + 1)) - set(numbers))
    many = len(missing) > max(0, processes - 1) + (not folder.summary)
    faults.require(not many, f"rounds {missing} are not in metrics.jsonl, and the log names {processes} processes")
    last = max(numbers, default=0)
    ends = last == round_ or (last == round_ - 1 and not folder.summary)
    faults.require(ends, f"the checkpoint is of round {round_}, metrics.jsonl ends at {last}")
    status = str(folder.summary.get("status", ""))
    planned = int(folder.experiment["training"]["rounds"])
    done = status != "completed" or round_ == planned
    faults.require(done, f"the run is completed, the checkpoint of round {round_}")
    charged = {row.round for book in folder.books for row in book.rounds}
    if charged and folder.planned_releases > 1:
        end = max(charged)
        faults.require(end >= round_, f"the checkpoint is of round {round_}, the ledger ends at {end}")
        attempts = {(row.round, row.attempt) for book in folder.books for row in book.rounds}
        free = [line["round"] for line in folder.metrics if (line["round"], line["attempt"]) not in attempts]
        faults.require(not free, f"rounds {free} of metrics.jsonl are in no ledger")
    if charged and folder.summary and not folder.local:
        reported = folder.summary["released_rounds"]
        paid = len(charged)
        faults.require(reported == paid, f"the summary counts {reported} released rounds, the ledger {paid}")


def _differing(model: Mapping[str, Tensor], flat: Tensor, folder: Folder) -> list[str]:
    """Names of parameters whose bits are not those of the flat vector, cast to their type, in the model's order."""
    names, start = [], 0
    for name, parameter in folder.task.build_model().named_parameters():
        if not parameter.requires_grad:
            continue
        part = flat[start : start + parameter.numel()]
        start += parameter.numel()
        stored = model.get(name)
        if stored is None or stored.shape != parameter.shape or part.numel() != parameter.numel():
            names.append(f"{name} is missing or of another shape")
        elif not torch.equal(stored, part.reshape(parameter.shape).to(stored.dtype)):
            names.append(name)
    return [*names, *(["numbers left over"] if start != flat.numel() else [])]
