"""Sensitivities written again from theory and not from fedsw's code, and what a run of a sketch must hold to."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedsw.audit.finding import Check, Faults
from fedsw.audit.record._folder import Folder, Row

SLACK = 1.001
EXACT = 1e-9
TABLES = "noised tables"
"""The bound of a contribution whose ranks come from noised tables."""


def require_sensitivity(charge: Mapping[str, Any], least: float, where: str, faults: Faults) -> None:
    """Require that what is charged moves by no less than the formula says."""
    has = float(charge["sensitivity"])
    faults.require(has >= least * (1 - EXACT), f"{where}: Δ = {has:.6g} is less than {least:.6g} by the formula")


def paper(n: int, this: tuple[float, float], other: tuple[float, float]) -> float:
    """Section 4.1: 4 R (3 L1 + L2) / n, R the larger radius; a side is (radius, Jacobian's norm)."""
    return 4 * max(this[0], other[0]) * (3 * this[1] + other[1]) / n


def by_slice(n: int, this: tuple[float, float], other: tuple[float, float]) -> float:
    """Section 4.2."""
    (m, one), (a, two) = this, other
    return 4 / n * max(one * (m + a), 2 * one * a, max(m, a) * one + m * two, (2 * a - m) * one + m * two)


def by_vector(n: int, this: tuple[float, float], other: tuple[float, float], spread: float) -> float:
    """Section 4.3, for directions of that spread; the cosine's maximum from its three cases."""
    (m, one), (a, two) = this, other
    root = math.sqrt(spread)
    if one == 0:
        return 4 * m * root * two / n
    least = a * one * root / math.sqrt(a * a + spread * m * m)
    if two <= least:
        return 4 * one / n * (a + math.sqrt(spread * (a * a + spread * m * m)))
    squares = (m * two) ** 2 + (a * one) ** 2
    cosine = (squares - a * a * two * two / spread) / (2 * m * a * one * two)
    if cosine < -1:
        reach = root * (m * two + a * one) - spread * m * one
    elif cosine > 1:
        reach = root * abs(m * two - a * one) + spread * m * one
    else:
        reach = a * two / 2 + spread * squares / (2 * a * two)
    return 4 / n * (one * a + reach)


def distance(n: int, this: tuple[float, float], other: tuple[float, float], *, spread: float, bound: str) -> float:
    """The bound that the settings name, "auto" the smallest; given noised tables own terms alone move (section 8)."""
    if bound == TABLES:
        return 4 * this[1] * (spread * this[0] + math.sqrt(spread) * other[0]) / n
    by_bound = {
        "paper": paper(n, this, other),
        "slice": by_slice(n, this, other),
        "vector": by_vector(n, this, other, spread),
    }
    return min(by_bound.values()) if bound == "auto" else by_bound[bound]


def of_sum(
    experiment: Mapping[str, Any],
    batch: Mapping[str, int],
    *,
    spreads: Sequence[float],
    bound: str = "",
    penalties: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, float]:
    """Delta of every stratum of a sum, SLACK included (sections 4.4, 4.6 and 8), for these batch sizes.

    Under `central` it is by the settings' bound; of a contribution by `TABLES`. Of several penalties it is the sum of
    what each moves, with its own weight, clip and directions (`spreads`): a record is in one cell of each, and the
    cell's size is that of all its strata. The ``penalties`` are those of `Folder.penalties`, by default the settings'.
    """
    goal, clip, bound = experiment["objective"], experiment["clip"], bound or experiment["privacy"]["bound"]
    matching = goal["penalty"] == "distribution-matching"
    if matching and bound != TABLES:
        return _to_other_records(experiment, batch, spreads[0])
    if penalties is None:
        penalties = [{**goal, "weight": goal["alpha"]}, *goal.get("also", ())]
    left = 0.0 if matching else max(0.0, 1.0 - float(sum(penalty["weight"] for penalty in penalties)))
    total = dict.fromkeys(batch, SLACK * (left * 2 * clip["loss"] / sum(batch.values())))
    for penalty, spread in zip(penalties, spreads, strict=True):
        side = (penalty.get("radius") or clip["output"], penalty.get("jacobian") or clip["jacobian"])
        cell_of, cells = _cells_of(batch, penalty["penalty"])
        compared, moved = _Compared(penalty, cells, side, spread, bound), _MOVED[penalty["penalty"]]
        for name, cell in cell_of.items():
            total[name] += SLACK * penalty["weight"] * moved(compared, cell)
    return total


@dataclass(frozen=True)
class _Compared:
    """A penalty's cells and their sizes, its own clips (radius, Jacobian), spread of directions, and the bound."""

    penalty: Mapping[str, Any]
    cells: Mapping[str, int]
    side: tuple[float, float]
    spread: float
    bound: str

    def to(self, other: tuple[float, float], cell: str) -> float:
        """How far a record of a cell moves the distance to a side."""
        return distance(self.cells[cell], self.side, other, spread=self.spread, bound=self.bound)

    def stated(self) -> float:
        """How far it moves by the user's own word, which nothing here proves."""
        if self.bound == TABLES:
            raise ValueError("a stated bound is not one of own terms given noised tables")
        return float(self.penalty["stated"](list(self.cells.values()), self.side))


_MOVED: Mapping[str, Callable[[_Compared, str], float]] = {
    "statistical-parity": lambda one, cell: comparisons(one.cells, odds=False) * one.to(one.side, cell),
    "equality-of-odds": lambda one, cell: comparisons(one.cells, odds=True) * one.to(one.side, cell),
    "prior-matching": lambda one, cell: one.to((one.penalty["prior_radius"], 0.0), cell),
    "distribution-matching": lambda one, cell: one.to(one.side, cell),
    "none": lambda one, cell: 0.0,
    "stated": lambda one, cell: one.stated(),
}
"""How far a record moves each penalty; a name that is not here is a KeyError, and the check says so."""


STILL = frozenset(("blocked-images", "transported-adaptor"))
"""Kinds of models that leave private records as they are."""


def _to_other_records(experiment: Mapping[str, Any], batch: Mapping[str, int], spread: float) -> dict[str, float]:
    """Delta where the private records are matched with a generator's samples or with public records."""
    goal, clip, bound = experiment["objective"], experiment["clip"], experiment["privacy"]["bound"]
    side, still = (clip["output"], clip["jacobian"]), (clip["output"], 0.0)
    pairs = [(side, side)]
    if goal["task"] == "generation":
        pairs = [(still, side), *([(side, still)] if goal["protected"] == "both" else [])]
    elif experiment["model"]["kind"] in STILL:  # private records are compared as they are
        pairs = [(still, side)]
    return {
        name: SLACK * goal["alpha"] * max(distance(n, *pair, spread=spread, bound=bound) for pair in pairs)
        for name, n in batch.items()
    }


def _cells_of(batch: Mapping[str, int], penalty: str) -> tuple[dict[str, str], dict[str, int]]:
    """The cell of a penalty that each stratum "Y=1,A=0" or "A=0" is in, and the cells' sizes."""
    cell_of = {name: _CELLS[penalty](name) for name in batch}
    cells = dict.fromkeys(cell_of.values(), 0)
    for name, cell in cell_of.items():
        cells[cell] += batch[name]
    return cell_of, cells


_CELLS: Mapping[str, Callable[[str], str]] = {
    "statistical-parity": lambda stratum: stratum.split(",")[-1],
    "equality-of-odds": lambda stratum: stratum,
    "prior-matching": lambda stratum: "all",
    "distribution-matching": lambda stratum: "all",
    "none": lambda stratum: "all",
    "stated": lambda stratum: stratum.split(",")[-1],
}


def comparisons(groups: Mapping[str, int], *, odds: bool) -> float:
    """Summed weight of the distances that a group takes part in: with every other one, or within its class."""
    if not odds:
        return len(groups) - 1
    classes = len({name.split(",")[0] for name in groups})
    return (len(groups) // classes - 1) / classes


_TITLE = b"fedsw generator 1 "
_STEPS = 12
"""Noise of a scale is released on a grid of at most 2^12 steps of it."""
_FACTS = "sigma, records, clients, attempt and epsilon"
_NEVER_NEGATIVE = ("features", "moments", "code", "table")


def least_sensitivity(experiment: Mapping[str, Any], cells: int, number: int = 1) -> float:
    """How far a replaced record moves the sum of a stage (docs/guarantees/sketches.md, K1): in a cell, or between two.

    Waves of norm 1 are up to 2 apart; codes, of which no number is negative, and moments up to sqrt(2); each with its
    part of the squared norm.
    """
    sketch = experiment["sketch"]
    stage = sketch if number == 1 else sketch["stages"][number - 2]
    parts = [sketch, *sketch["also"]] if number == 1 else stage["parts"]
    total = sum(part["weight"] for part in parts)
    squares = sum(part["weight"] * (2.0 if part["kind"] in _NEVER_NEGATIVE else 4.0) for part in parts) / total
    between = 2 * (1 + stage["counts"]) if cells > 1 else 0.0
    return SLACK * math.sqrt(max(squares, between))


def noise(folder: Folder, faults: Faults) -> str:
    """Every ledger: one release a stage, of everything, at a Delta no less than the formula's and with its share.

    All stages together cost no more than the one release that was planned; failed attempts at masked sums are charged.
    """
    stages = folder.stages
    bounds = {number: least_sensitivity(folder.experiment, _cells(folder), number) for number in range(1, 1 + stages)}
    planned = float(folder.summary.get("guarantee", {}).get("noise_multiplier", 0.0))
    for book in folder.books:
        numbers = [row.round for row in book.rows]
        once = (folder.masked or len(set(numbers)) == len(numbers)) and set(numbers) <= set(bounds)
        faults.require(once, f"{book.name} has rows of stages {numbers}; each of {stages} is released once")
        cost = 0.0
        for row in [row for row in book.rows if row.round in bounds]:
            (charge,), where = row.charges, f"{book.name}, row {row.sequence}"
            require_sensitivity(charge, bounds[row.round], where, faults)
            faults.require(charge["sampling_rate"] == 1.0, f"{where}: everything is released, at a rate below 1")
            cost += (charge["sensitivity"] / row.sigma) ** 2 if row.sigma else math.inf
        within = not folder.noisy or not planned or cost <= (1 + 1e-6) / planned**2
        faults.require(within, f"{book.name}: its stages cost more than one release at σ/Δ = {planned:.6g}")
    for number in bounds:
        _stored(folder, faults, number)
    return f"Δ is no less than {bounds[1]:.6g} by the formula, for one release of all records a stage"


def model(folder: Folder, name: str) -> Check:
    """The released generator is its training's last checkpoint, buffers too, at the planned step."""
    faults, path = Faults(), folder.directory / "model.safetensors"
    if not path.is_file():
        faults.require(folder.summary.get("status") != "completed", "the run is completed, and has no model")
        return faults.check(name, "no generator was released")
    stages = folder.stages
    done = [number for number in range(2, 1 + stages) if (folder.directory / f"sketch-{number}.safetensors").is_file()]
    last = max(done, default=1)
    training = "generator.pt" if last == 1 else f"generator-{last}.pt"
    stored = read_titled(folder.directory / training, _TITLE)
    if stored is None:
        faults.require(False, f"{training} is missing or damaged, and model.safetensors is there")
        return faults.check(name, "")
    step, planned = int(stored["step"]), int(folder.experiment["training"]["rounds"])
    whole = folder.summary.get("status") != "completed" or (step == planned and last == stages)
    faults.require(whole, f"the run is completed, its training at step {step} of {planned}")
    numbers = [int(line["round"]) for line in folder.metrics]
    faults.require(numbers == sorted(set(numbers)), "the steps of metrics.jsonl do not follow one another")
    most = (last - 1) * planned + step
    faults.require(max(numbers, default=0) <= most, f"metrics.jsonl goes on to step {max(numbers, default=0)}")
    released, network = tensors_of(path), stored["network"]
    off = not_of_sketches(folder, network, released)
    if off is None:
        both = released.keys() & network.keys()
        same = {key for key in both if torch.equal(released[key], network[key])}
        off = sorted((released.keys() | network.keys()) - same)
    faults.require(not off, f"model.safetensors is not the training's: {', '.join(off)}")
    return faults.check(name, f"the generator is that of step {step}, bit for bit", step=step)


def _stored(folder: Folder, faults: Faults, number: int) -> None:
    """The sigma of a stage's sketch, and of every line about it, is what the rows of the clients in it add up to."""
    path = folder.directory / ("sketch.safetensors" if number == 1 else f"sketch-{number}.safetensors")
    steps = int(folder.experiment["training"]["rounds"])
    lines = [line for line in folder.metrics if (int(line["round"]) - 1) // steps == number - 1]
    if not path.is_file():
        faults.require(not lines, "there are lines of metrics, and no sketch that they are about")
        return
    stored = tensors_of(path)
    sigma, _, clients, attempt, _ = stored[_FACTS].tolist()
    for line in lines:
        where = f"step {line.get('round')} of metrics.jsonl"
        faults.require(math.isclose(float(line.get("sigma") or 0.0), sigma), f"{where} has another σ than the sketch")
    if not folder.noisy:
        faults.require(sigma == 0.0, "no noise was asked for, and the sketch has some")
        return
    on_grid = _on_grid(stored["sketch"], sigma / math.sqrt(clients if folder.local else 1.0))
    faults.require(on_grid, f"the sketch is not on the grid that noise of σ = {sigma:.6g} leaves: it has none, or less")
    rows = [row for book in folder.books for row in book.rows if row.round == number]
    if folder.masked:
        _masked(folder, faults, [row for row in rows if row.attempt == int(attempt)], sigma, clients)
        return
    if folder.local:
        places = "releases/client-*" if number == 1 else f"releases/stage-{number}/client-*"
        inside = {int(release.stem.removeprefix("client-")) for release in folder.directory.glob(places)}
        faults.require(len(inside) == int(clients), f"the sketch says {clients:g} clients, and {len(inside)} released")
        rows_of_book = [(book, row) for book in folder.books for row in book.rows if row.round == number]
        rows = [row for book, row in rows_of_book if int(book.client or -1) in inside]
    else:
        rows = [row for row in rows if row.attempt == int(attempt)]
    total = math.hypot(*(row.sigma for row in rows))
    faults.require(math.isclose(sigma, total, rel_tol=1e-6), f"the sketch has σ = {sigma:.6g}, its rows {total:.6g}")


def _on_grid(values: Tensor, least: float) -> bool:
    """Say whether numbers are whole steps of a grid that noise of at least such a scale has; exact sums hardly are."""
    half = math.frexp(least / 2)[1]  # clients may add noise that differs a little
    steps = values * 2.0 ** (_STEPS - half)
    return bool((steps == steps.round()).all())


def _masked(folder: Folder, faults: Faults, rows: Sequence[Row], sigma: float, clients: float) -> None:
    """The sigma of a masked sum follows from the row of every client in it; ledgers of others may be elsewhere."""
    elsewhere = int(folder.experiment["federation"]["clients"]) - len(folder.books)
    enough = len(rows) >= clients - elsewhere
    faults.require(enough, f"the sketch says {clients:g} clients, and {len(rows)} ledgers here have its attempt")
    for row in rows:
        total = folder.masked_sigma(row, clients)
        same = math.isclose(sigma, total, rel_tol=1e-6)
        faults.require(same, f"the sketch has σ = {sigma:.6g}, its rows {total:.6g}")


def _cells(folder: Folder) -> int:
    sketch, shape = folder.experiment["sketch"], folder.task.shape
    classes = max(1, shape.classes) if sketch["labels"] else 1
    return classes * (len(shape.groups) if sketch["groups"] else 1)


def read_titled(path: Path, begun: bytes) -> dict[str, Any] | None:
    """Read a file of torch's after its title, which ends with its SHA-256; None if there is no whole one."""
    if not path.is_file():
        return None
    title, _, content = path.read_bytes().partition(b"\n")
    if title != begun + hashlib.sha256(content).hexdigest().encode():
        return None
    stored: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    return stored


def tensors_of(path: Path) -> Mapping[str, Tensor]:
    """Read a file of tensors by their names; each of its own shape."""
    tensors: Mapping[str, Tensor] = load_file(path)
    return tensors


_OF_TREE = ("moved", "rows", "drawn", "parents", "order", "chances", "proportions")
_ROOM = 1e-5
"""Tolerance: other processors may sum the same numbers to a little more or less."""


def not_of_sketches(folder: Folder, trained: Mapping[str, Tensor], released: Mapping[str, Tensor]) -> list[str] | None:
    """List tensors of a table generator that are neither training's nor sketches'; None if it stays as trained."""
    from fedsw.experiment.task_kinds import MODELS
    from fedsw.learning.sketches.from_settings import Stage
    from fedsw.learning.sketches.learnt import flat_bytes
    from fedsw.learning.sketches.trees import settle_rows
    from fedsw.learning.tasks.measures import law_of_problem, sketcher_of
    from fedsw.learning.tasks.problem import Problem
    from fedsw.runs.directory import RunDirectory
    from fedsw.runs.releases import stored_classifier, stored_sketch

    if not MODELS.get(folder.experiment["model"]["kind"]).table:
        return None
    experiment, run = folder.settings.on_host(), RunDirectory(folder.directory)
    problem = Problem.from_experiment(experiment)
    network = problem.build_model()
    network.load_state_dict(dict(trained))
    sketches, sketchers = [], []
    for number in range(1, 1 + len(experiment.sketch.shares)):
        marks = stored_classifier(run, number) if number > 1 else None
        stage = Stage(number, b"" if marks is None else flat_bytes(marks))
        stored = stored_sketch(run, law_of_problem(problem, stage), number)
        if stored is None:
            break
        sketches.append(stored.sketch)
        sketchers.append(sketcher_of(problem, stage))
    if settle_rows(experiment.sketch, network.eval(), sketches, sketchers) is None:
        return None
    return [name for name, tensor in network.state_dict().items() if not _agree(name, tensor, released.get(name))] + [
        name for name in released if name not in trained
    ]


def _agree(name: str, made: Tensor, released: Tensor | None) -> bool:
    if released is None or released.shape != made.shape:
        return False
    if name in _OF_TREE and made.is_floating_point():
        return torch.allclose(made, released, rtol=0, atol=_ROOM)
    return torch.equal(made, released)
