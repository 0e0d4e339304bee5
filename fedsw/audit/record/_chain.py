"""Checks that a folder holds what was written: every row of every ledger, and the model that its rounds made.

The chain of digests is computed here only, from hashlib and the stored text. The model is made again from the
checkpoint's vector, or a generator's training, by what made it in the run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedsw.audit.finding import Check, Faults
from fedsw.audit.record._folder import Book, Folder, without_ledgers
from fedsw.experiment.task_kinds import MODELS
from fedsw.federation.server.releases_once import calibrated_by, unprepared
from fedsw.learning.sketches.fit import CheckpointRefused, read_training
from fedsw.learning.sketches.from_settings import Stage
from fedsw.learning.sketches.learnt import flat_bytes
from fedsw.learning.sketches.trees import settle_rows
from fedsw.learning.tasks.measures import law_of_problem, sketcher_of
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import of_stage, stored_classifier, stored_sketch
from fedsw.runs.run_files import RunFile, read_json

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
        digests = {0: book.header[1], **{row.sequence: row.digest for row in book.rows}}
        # Rows that other files have seen: a client's own file beside its ledger, or summary and checkpoint.
        if book.client is not None:
            beside = book.path.with_suffix(".head")
            heads = [(beside.name, read_json(beside))]
        else:
            stored = folder.checkpoint
            heads = [("summary.json", folder.summary.get("ledger")), ("the checkpoint", stored and stored["ledger"])]
        for by, head in [(by, head) for by, head in heads if head]:
            sentence = f"{by} remembers row {head['sequence']} of {book.name}, which "
            faults.require(int(head["sequence"]) in digests, sentence + "is gone")
            same = digests.get(int(head["sequence"]), head["digest"]) == head["digest"]
            faults.require(same, sentence + "is another one now")
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


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


NAME = "model and checkpoint"


def check(folder: Folder) -> Check:
    """Check the parameters bit for bit, and the rounds of checkpoint, metrics, ledger and summary."""
    model, completed = folder.directory / RunFile.MODEL, folder.summary.get("status") == "completed"
    faults = Faults()
    if folder.sketch:
        return _generator(folder, faults)
    if (stored := folder.checkpoint) is None:
        faults.require(not folder.metrics, "rounds are in metrics.jsonl, and no whole checkpoint is there")
        return faults.check(NAME, "no round was finished, and no checkpoint is there")
    round_, averaged = int(stored["round"]), folder.written.training.averaging > 0
    _rounds(folder, round_, faults)
    same = averaged or torch.allclose(stored["theta"], stored["average"], rtol=1e-9, atol=1e-12)  # kept up by additions
    faults.require(same, "nothing is averaged, and the checkpoint's average is not its iterate")
    if not model.is_file():
        faults.require(not completed, "the run is completed, and has no model")
        return faults.check(NAME, f"the checkpoint is of round {round_}; no model was released", round=round_)
    if not str(folder.summary.get("status", "")).startswith(("completed", "stopped")):
        words = f"the checkpoint is of round {round_}; the model was released before the run went on and broke off"
        return faults.check(NAME, words, round=round_)
    # A checkpoint's vector is of prepared features where moments were released, and not calibrated where scores were.
    task = folder.prepared
    theta = unprepared(task, stored["average"])
    if calibration := (read_json(folder.directory / RunFile.SCORES) or {}).get("calibration"):
        theta = calibrated_by(task, theta, calibration)
    network = task.prepared(task.build_model().double(), theta)
    made = {name: value for name, value in network.named_parameters() if value.requires_grad}
    off = _differing(made, {name: value for name, value in load_file(model).items() if name in made})
    faults.require(not off, f"model.safetensors is not the checkpoint's: {', '.join(off)}")
    what = "averaged iterates" if averaged else "iterate"
    return faults.check(NAME, f"the model is the {what} of round {round_}, bit for bit", round=round_)


def _differing(
    made: Mapping[str, Tensor], released: Mapping[str, Tensor], near: frozenset[str] = frozenset()
) -> list[str]:
    """Names of tensors that one of two models lacks, or that differ in a bit; those ``near`` in more than `_ROOM`."""

    def alike(name: str) -> bool:
        one, other = made.get(name), released.get(name)
        if one is None or other is None or one.shape != other.shape:
            return False
        if name in near and one.is_floating_point():
            return torch.allclose(one, other, rtol=0, atol=_ROOM)
        return torch.equal(one.to(other.dtype), other)

    return [name for name in dict.fromkeys((*made, *released)) if not alike(name)]


def _rounds(folder: Folder, round_: int, faults: Faults) -> None:
    """Require that metrics, ledgers and summary have the rounds that end with the checkpoint's."""
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
    done = folder.summary.get("status") != "completed" or round_ == folder.written.training.rounds
    faults.require(done, f"the run is completed, the checkpoint of round {round_}")
    charged = {row.round for book in folder.books for row in book.rounds}
    if charged and folder.written.releases > 1:
        faults.require(
            max(charged) >= round_, f"the checkpoint is of round {round_}, the ledger ends at {max(charged)}"
        )
        attempts = {(row.round, row.attempt) for book in folder.books for row in book.rounds}
        free = [line["round"] for line in folder.metrics if (line["round"], line["attempt"]) not in attempts]
        faults.require(not free, f"rounds {free} of metrics.jsonl are in no ledger")
    if charged and folder.summary and not folder.local:
        reported, paid = folder.summary["released_rounds"], len(charged)
        faults.require(reported == paid, f"the summary counts {reported} released rounds, the ledger {paid}")


# Generators


def _generator(folder: Folder, faults: Faults) -> Check:
    """The released generator is its training's last checkpoint, buffers too, at the planned step."""
    path, completed = folder.directory / RunFile.MODEL, folder.summary.get("status") == "completed"
    if not path.is_file():
        faults.require(not completed, "the run is completed, and has no model")
        return faults.check(NAME, "no generator was released")
    stages = range(1, 1 + folder.written.stages)
    last = max(
        (number for number in stages if (folder.directory / of_stage(RunFile.SKETCH, number)).is_file()), default=1
    )
    training, planned = of_stage(RunFile.GENERATOR, last), folder.written.training.rounds
    try:
        stored = read_training(folder.directory / training)
    except (CheckpointRefused, FileNotFoundError):
        faults.require(False, f"{training} is missing or damaged, and model.safetensors is there")
        return faults.check(NAME, "")
    step, numbers = int(stored["step"]), [int(line["round"]) for line in folder.metrics]
    whole = not completed or (step == planned and last == len(stages))
    faults.require(whole, f"the run is completed, its training at step {step} of {planned}")
    faults.require(numbers == sorted(set(numbers)), "the steps of metrics.jsonl do not follow one another")
    end = max(numbers, default=0)
    faults.require(end <= (last - 1) * planned + step, f"metrics.jsonl goes on to step {end}")
    network, released = stored["network"], load_file(path)
    settled = _settled(folder, network) if MODELS.get(folder.written.model.kind).table else None
    off = _differing(network, released) if settled is None else _differing(settled, released, _OF_TREE)
    faults.require(not off, f"model.safetensors is not the training's: {', '.join(off)}")
    return faults.check(NAME, f"the generator is that of step {step}, bit for bit", step=step)


_OF_TREE = frozenset(("moved", "rows", "drawn", "parents", "order", "chances", "proportions"))
_ROOM = 1e-5
"""Tolerance: other processors may sum the same numbers to a little more or less."""


def _settled(folder: Folder, trained: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """A table generator's tensors once what draws its rows is read off the sketches; None if nothing chooses that."""
    problem, run = folder.task, RunDirectory(folder.directory)
    network = problem.build_model()
    network.load_state_dict(dict(trained))
    sketches, sketchers = [], []
    for number in range(1, 1 + len(folder.settings.sketch.shares)):
        marks = stored_classifier(run, number) if number > 1 else None
        stage = Stage(number, b"" if marks is None else flat_bytes(marks))
        stored = stored_sketch(run, law_of_problem(problem, stage), number)
        if stored is None:
            break
        sketches.append(stored.sketch)
        sketchers.append(sketcher_of(problem, stage))
    chosen = settle_rows(folder.settings.sketch, network.eval(), sketches, sketchers)
    return None if chosen is None else network.state_dict()
