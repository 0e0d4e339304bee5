"""Is the released model what the checkpoint says, and was it made by as many rounds as were charged?"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsw.audit.record import sensitivity
from fedsw.audit.record.folder import Check, Faults, Folder

NAME = "model and checkpoint"

_FILES = ("checkpoint.pt", "checkpoint.recent-0.pt", "checkpoint.recent-1.pt")
_TITLE = b"fedsw checkpoint 2 "


def check(folder: Folder) -> Check:
    """Parameters bit for bit; the rounds of checkpoint, metrics, ledger and summary."""
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
        found = f"the checkpoint is of round {round_}; the model was released before the run went on and broke off"
        return faults.check(NAME, found, round=round_)
    off = _differing(_tensors(model), _released(folder, stored["average"]), folder)
    faults.require(not off, f"model.safetensors is not the checkpoint's: {', '.join(off)}")
    what = "averaged iterates" if averaged else "iterate"
    return faults.check(NAME, f"the model is the {what} of round {round_}, bit for bit", round=round_)


def _released(folder: Folder, theta: Tensor) -> Tensor:
    """The flat model (r,) for features as they are: a checkpoint's is for prepared ones where moments were released."""
    if folder.preparation is None:
        return theta
    from fedsw.models import flatten
    from fedsw.tasks.preparation import folded

    task = folder.task
    return flatten(folded(task.prepared(task.build_model().double(), theta), folder.preparation))


def newest_checkpoint(directory: Path) -> dict[str, Any] | None:
    """What the newest whole checkpoint file holds; None if there is none."""
    found = [stored for name in _FILES if (stored := read_checkpoint(directory / name)) is not None]
    return max(found, key=lambda stored: int(stored["round"]), default=None)


def read_checkpoint(path: Path) -> dict[str, Any] | None:
    """A file's title, the SHA-256 of what follows, and torch's own format; None if there is no whole file."""
    if not path.is_file():
        return None
    title, _, content = path.read_bytes().partition(b"\n")
    if title != _TITLE + hashlib.sha256(content).hexdigest().encode():
        return None
    stored: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    return stored


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
    found, start = [], 0
    for name, parameter in folder.task.build_model().named_parameters():
        if not parameter.requires_grad:
            continue
        part = flat[start : start + parameter.numel()]
        start += parameter.numel()
        stored = model.get(name)
        if stored is None or stored.shape != parameter.shape or part.numel() != parameter.numel():
            found.append(f"{name} is missing or of another shape")
        elif not torch.equal(stored, part.reshape(parameter.shape).to(stored.dtype)):
            found.append(name)
    return [*found, *(["numbers left over"] if start != flat.numel() else [])]


def _tensors(path: Path) -> Mapping[str, Tensor]:
    from safetensors.torch import load_file

    found: Mapping[str, Tensor] = load_file(path)
    return found
