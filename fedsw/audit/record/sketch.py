"""Runs that release one sketch: its sensitivity again from theory, its noise, and what was learnt from it."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsw.audit.record.check import Check, Faults
from fedsw.audit.record.folder import Folder
from fedsw.audit.record.sensitivity import SLACK

_TITLE = b"fedsw generator 1 "
_FACTS = "sigma, records, clients, attempt and epsilon"
_EXACT = 1e-9


def least_sensitivity(experiment: Mapping[str, Any], cells: int) -> float:
    """How far a replaced record moves a sum (docs/guarantees.md, K1): within a cell, or between two.

    Waves of norm 1 are up to 2 apart, one-hot codes up to sqrt(2), each with its part of the squared norm.
    """
    sketch = experiment["sketch"]
    parts = [sketch, *sketch["also"]]
    total = sum(part["weight"] for part in parts)
    squares = sum(part["weight"] * (2.0 if part["kind"] == "code" else 4.0) for part in parts) / total
    between = 2 * (1 + sketch["counts"]) if cells > 1 else 0.0
    return SLACK * math.sqrt(max(squares, between))


def noise(folder: Folder, faults: Faults) -> str:
    """Every ledger: one release, of everything, at a Delta no less than the formula's; the sketch has its noise."""
    least = least_sensitivity(folder.experiment, _cells(folder))
    for book in folder.books:
        faults.require(len(book.rows) <= 1, f"{book.name} has {len(book.rows)} rows; a sketch is released once")
        for row in book.rows:
            (charge,), where = row.charges, f"{book.name}, row {row.sequence}"
            has = float(charge["sensitivity"])
            faults.require(has >= least * (1 - _EXACT), f"{where}: Δ = {has:.6g} is less than {least:.6g}")
            faults.require(charge["sampling_rate"] == 1.0, f"{where}: everything is released, at a rate below 1")
    _stored(folder, faults)
    return f"Δ is no less than {least:.6g} by the formula, for one release of all records"


def model(folder: Folder, name: str) -> Check:
    """The released generator is its training's last checkpoint, buffers too, at the planned step."""
    faults, path = Faults(), folder.directory / "model.safetensors"
    if not path.is_file():
        faults.require(folder.summary.get("status") != "completed", "the run is completed, and has no model")
        return faults.check(name, "no generator was released")
    stored = _training(folder.directory / "generator.pt")
    if stored is None:
        faults.require(False, "generator.pt is missing or damaged, and model.safetensors is there")
        return faults.check(name, "")
    step, planned = int(stored["step"]), int(folder.experiment["training"]["rounds"])
    done = folder.summary.get("status") != "completed" or step == planned
    faults.require(done, f"the run is completed, its training at step {step} of {planned}")
    numbers = [int(line["round"]) for line in folder.metrics]
    faults.require(numbers == sorted(set(numbers)), "the steps of metrics.jsonl do not follow one another")
    faults.require(max(numbers, default=0) <= step, f"metrics.jsonl goes on to step {max(numbers, default=0)}")
    released, kept = _tensors(path), stored["network"]
    off = sorted(key for key in released.keys() | kept.keys() if not _same(released.get(key), kept.get(key)))
    faults.require(not off, f"model.safetensors is not the training's: {', '.join(off)}")
    return faults.check(name, f"the generator is that of step {step}, bit for bit", step=step)


def _stored(folder: Folder, faults: Faults) -> None:
    """The sigma of the sketch, and of every line about it, is what the rows of the clients in it add up to."""
    path = folder.directory / "sketch.safetensors"
    if not path.is_file():
        faults.require(not folder.metrics, "there are lines of metrics, and no sketch that they are about")
        return
    sigma, _, clients, attempt, _ = _tensors(path)[_FACTS].tolist()
    for line in folder.metrics:
        where = f"step {line.get('round')} of metrics.jsonl"
        faults.require(math.isclose(float(line.get("sigma") or 0.0), sigma), f"{where} has another σ than the sketch")
    if not folder.noisy:
        faults.require(sigma == 0.0, "no noise was asked for, and the sketch has some")
        return
    rows = [row for book in folder.books for row in book.rows]
    if folder.local:
        inside = {int(own.stem.removeprefix("client-")) for own in folder.directory.glob("releases/client-*")}
        faults.require(len(inside) == int(clients), f"the sketch says {clients:g} clients, and {len(inside)} released")
        rows = [row for book in folder.books if int(book.client or -1) in inside for row in book.rows]
    else:
        rows = [row for row in rows if row.attempt == int(attempt)]
    total = math.hypot(*(row.sigma for row in rows))
    faults.require(math.isclose(sigma, total, rel_tol=1e-6), f"the sketch has σ = {sigma:.6g}, its rows {total:.6g}")


def _cells(folder: Folder) -> int:
    sketch, shape = folder.experiment["sketch"], folder.task.shape
    classes = max(1, shape.classes) if sketch["labels"] else 1
    return classes * (len(shape.groups) if sketch["groups"] else 1)


def _training(path: Path) -> dict[str, Any] | None:
    """A file's title, the SHA-256 of what follows, and torch's own format; None if there is no whole file."""
    if not path.is_file():
        return None
    title, _, content = path.read_bytes().partition(b"\n")
    if title != _TITLE + hashlib.sha256(content).hexdigest().encode():
        return None
    stored: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    return stored


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)


def _tensors(path: Path) -> Mapping[str, Tensor]:
    from safetensors.torch import load_file

    found: Mapping[str, Tensor] = load_file(path)
    return found
