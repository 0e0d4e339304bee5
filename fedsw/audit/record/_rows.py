"""Check every row's noise against how far a record moves what it released, by the functions that charged it.

In the order of a run: noise and sampling of the rounds, by the quantity that the trust model releases; the sums that
are released once beside them; sketches, a release a stage; and what metrics.jsonl says of either.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from safetensors.torch import load_file

from fedsw._tools.text import upward
from fedsw.audit.finding import Check, Faults
from fedsw.audit.record._folder import Folder, Row, real, without_ledgers
from fedsw.audit.record.cost import planned_cost
from fedsw.experiment.compatibility import relation_of, sampling_of
from fedsw.experiment.penalty_names import PENALTIES, penalties_of
from fedsw.experiment.sections import TableSettings
from fedsw.experiment.trust import Law
from fedsw.federation.trust.budget_shares import (
    HISTOGRAMS_PART,
    PART,
    SCORES_PART,
    asks_tables,
    rounds_beside,
    sum_budget,
)
from fedsw.federation.trust.distributed.attempt_cost import attempts_at_one, bound_of, noise_of
from fedsw.federation.trust.distributed.members import honest
from fedsw.learning.moments.beside_rounds import binned, moments_layout, scores_of, tally_of
from fedsw.learning.objectives.histograms import contribution_sensitivity
from fedsw.learning.sketches.from_settings import Stage
from fedsw.learning.sketches.noised import sketch_sensitivity
from fedsw.learning.tasks.calibration import RULES, calibration_of, rule_of
from fedsw.learning.tasks.measures import law_of_problem
from fedsw.learning.tasks.tally import Counts
from fedsw.mathematics.transport.sliced import spread
from fedsw.privacy.mechanisms import spacing
from fedsw.privacy.plan import by_fraction
from fedsw.privacy.relations import ADD_OR_REMOVE
from fedsw.privacy.sensitivity import SLACK
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import FACTS, VALUE, kept_histograms, of_stage
from fedsw.runs.run_files import RunFile, read_json

NAME = "noise against Δ"

EXACT = 1e-9  # relative: the same formula in another order of sums
_GRID = 1e-3  # relative: what fedsw's own grid may add to ε, as in `cost`
_LARGEST = 2 * 10**6
"""Records of a group for which every number of them is tried."""


def check(folder: Folder) -> Check:
    """Check every row: sigma / Delta, Delta against the settings, and p against the groups' sizes."""
    if not folder.noisy:
        faults, claimed = Faults(), folder.claimed
        faults.require(claimed == math.inf, f"no noise was asked for, and ε = {upward(claimed, 6)} is claimed")
        return faults.check(NAME, "no noise was asked for, and ε = ∞ is claimed")
    if not folder.books:
        return without_ledgers(NAME)
    faults, least, planned = Faults(), math.inf, _planned(folder)
    expected = sampling_of(folder.written)
    for book in folder.books:
        for row in book.rows:
            others = {charge["sampling"] for charge in row.charges} - {expected}
            where = f"{book.name}, row {row.sequence}"
            faults.require(not others, f"{where}: sampling {sorted(others)}, where the settings have {expected}")
        for row in book.rounds:
            most = max((float(charge["sensitivity"]) for charge in row.trained), default=0.0)
            ratio = row.sigma / most if most else math.inf
            least, where = min(least, ratio), f"{book.name}, row {row.sequence}"
            enough = ratio >= planned * (1 - EXACT)
            faults.require(enough, f"{where}: σ/Δ = {ratio:.6g}, and the plan's is {planned:.6g}")
        cost = planned_cost(folder, book) if planned == 0 and book.accountant == "pld" else None
        if cost is not None:  # each client has noise of its own, for its own sampling rate
            budget = real(book.promise["epsilon"])
            fault = f"{book.name}: over all planned rounds its noise is for ε = {upward(cost.epsilon, 6)}"
            enough = cost.epsilon - cost.error <= budget * (1 + _GRID)
            faults.require(enough, f"{fault}, not {upward(budget, 6)}")
    if (declared := folder.written.declared) is not None:
        said = sum(folder.sizes.values())
        faults.require(said == declared[0], f"plan.json has {said} records, and the settings declare {declared[0]}")
    checked = _against_settings(folder, faults) + "".join(_once(folder, sum_, faults) for sum_ in _sums_of(folder))
    _metrics(folder, faults)
    numbers = {"least_noise_multiplier": least, "planned_noise_multiplier": planned or None}
    margin = f"σ/Δ is {least:.6g} or more" + (f" (planned {planned:.6g})" if planned else "")
    return faults.check(NAME, f"{margin}; {checked}", **numbers)


def _planned(folder: Folder) -> float:
    """sigma / Delta that every row must have; 0 if each client has its own, for its own sampling rate."""
    if (multiplier := folder.written.privacy.noise_multiplier) is not None:
        return multiplier
    if folder.written.privacy.model.law in ("clipped contribution", "random slices", None):
        return 0.0
    return float(folder.summary.get("guarantee", {}).get("noise_multiplier", 0.0))


def require_sensitivity(charge: Mapping[str, Any], least: float, where: str, faults: Faults) -> None:
    """Require that what is charged moves by no less than the formula says."""
    has = float(charge["sensitivity"])
    faults.require(has >= least * (1 - EXACT), f"{where}: Δ = {has:.6g} is less than {least:.6g} by the formula")


# Rounds


def _against_settings(folder: Folder, faults: Faults) -> str:
    """Require of every round the sensitivity of its batch, and the rate of a batch that the settings may draw."""
    law = folder.written.privacy.model.law
    if law is None:
        trust = folder.written.privacy.trust
        faults.left = f"trust {trust!r} does not say what its ledgers account for: Δ and p against the settings"
        return faults.left
    if law == "sum of waves":
        return _stages(folder, faults)
    if law == "clipped sum" and _resumed_with_others(folder):
        faults.left = "Δ and p against the settings: the run went on with other sizes than plan.json's"
        return faults.left
    for book in folder.books:
        for row in book.rounds:
            where, expected = f"{book.name}, row {row.sequence}", _LAWS[law](folder, row)
            for charge in row.trained:
                least, misfit = expected.get(charge["group"], (math.inf, "no group of this run"))
                faults.require(not misfit, f"{where}, of {charge['group']}: {misfit}")
                require_sensitivity(charge, 0.0 if misfit else least, f"{where}, of {charge['group']}", faults)
    rows = sum(len(book.rounds) for book in folder.books)
    stated = [name for _, name in penalties_of(folder.written) if PENALTIES.get(name).word != "proven"]
    by_user = f", where that of {', '.join(stated)} is stated by the user and unproven" if stated else ""
    return f"Δ and p of {rows} rows are no less than the formulas'{by_user}"


Expected = Mapping[str, tuple[float, str]]
"""For every group of a row the least sensitivity, and what is wrong with its rate; empty if nothing is."""


def _sums(folder: Folder, row: Row) -> Expected:
    """A clipped sum that one server noises: the batch is read off the recorded rates."""
    settings, cells = folder.written, folder.prepared.objective.cells
    fraction, batch, expected = settings.training.batch_fraction, list[int](), dict[str, tuple[float, str]]()
    rates = {charge["group"]: float(charge["sampling_rate"]) for charge in row.trained}
    for cell in cells:
        rate, size, misfit = rates[cell], folder.sizes[cell], ""
        if settings.privacy.hides_sizes:
            batch.extend(by_fraction(fraction, [size]))
            misfit = "" if rate == fraction else f"p = {rate:.6g}, and every record joins with {fraction:g}"
        elif settings.privacy.sampling == "stratified":  # every client's part is rounded down
            batch.append(math.floor(fraction * size))
            close = fraction - settings.federation.clients / size <= rate <= fraction
            misfit = "" if close else f"p = {rate:.6g}, asked {fraction:g}"
        else:
            batch.append(batch_of(rate, size, fraction, settings.training.batch_size))
            misfit = "" if batch[-1] else f"p = {rate:.6g} is the rate of no batch of its {size} records"
        expected[cell] = (0.0, misfit)
    if any(misfit for _, misfit in expected.values()):
        return expected
    bounds = folder.prepared.clipped.sensitivities(batch, _spreads(folder, row))
    return {cell: (bound.value, "") for cell, bound in zip(cells, bounds, strict=True)}


def _masked(folder: Folder, row: Row) -> Expected:
    """A masked sum: every client's row is that of the contributions of all of them, or of tables where none leave."""
    fraction, task = folder.written.training.batch_fraction, folder.prepared
    batch = by_fraction(fraction, [folder.sizes[cell] for cell in task.objective.cells])
    spreads, directions = _spreads(folder, row), task.clipped.directions(row.round, row.attempt)
    least = bound_of(task, batch, spreads).value
    if not least:
        least = noise_of(task, batch, folder.delta, spreads=spreads, directions=directions).joint.value
    (charge,) = row.trained
    misfit = "" if charge["sampling_rate"] >= fraction else f"the rate is below {fraction:g}"
    return {charge["group"]: (least, misfit)}


def _contributions(folder: Folder, row: Row) -> Expected:
    """A client's contribution, jointly with its table, of a share: batches are at most a record larger at each client.

    A client holds records of one group at least, which may be the one with records that move least.
    """
    settings, task = folder.written, folder.prepared
    share = settings.own(TableSettings).table_share if asks_tables(settings) else 0.0
    fraction, clients = settings.training.batch_fraction, settings.federation.clients
    sizes = [folder.sizes[cell] for cell in task.objective.cells]
    largest = [min(size, math.floor(fraction * size) + clients) for size in sizes]
    (uneven,), penalty = _spreads(folder, row), task.objective.lone
    assert penalty is not None
    moved = [
        contribution_sensitivity(penalty, largest, task.clip, cell=cell, spread=uneven).value
        for cell in range(len(largest))
    ]
    (charge,) = row.trained
    return {charge["group"]: (SLACK * min(moved) / math.sqrt(1 - share), _misfit(folder, charge))}


def _features(folder: Folder, row: Row) -> Expected:
    """Features in a ball of radius rho, or slices of them: a replaced record moves them by 2 rho."""
    settings, (charge,) = folder.written, row.trained
    misfit = "" if charge["sampling_rate"] == 1.0 else "everything is released, at a rate below 1"
    if settings.releases > 1:
        misfit = _misfit(folder, charge)
    if settings.privacy.model.law == "random slices":
        wanted = {"d": folder.task.dimension, "k": settings.slicing.directions, "scheme": settings.slicing.scheme}
        misfit = misfit if charge.get("slicing") == wanted else "other slices than the settings'"
    return {charge["group"]: (2 * settings.clip.output, misfit)}


_LAWS: Mapping[Law, Callable[[Folder, Row], Expected]] = {
    "clipped sum": _sums,
    "masked sum": _masked,
    "clipped contribution": _contributions,
    "random slices": _features,
    "whole records": _features,
}


def _misfit(folder: Folder, charge: Mapping[str, Any]) -> str:
    """Say what is wrong with a client's own rate; the number of its records is its secret, and at most all of them."""
    rate, fraction = float(charge["sampling_rate"]), folder.written.training.batch_fraction
    possible = batch_of(rate, max(folder.sizes.values()), fraction, None) > 0
    return "" if possible else f"p = {rate:.6g} is the rate of no batch of {fraction:g} of a client's records"


@lru_cache(maxsize=4096)
def batch_of(rate: float, size: int, fraction: float, fixed: int | None) -> int:
    """Find the largest batch that has exactly this rate for some number of records, at most `size`; 0 if none has."""
    if size > _LARGEST:
        return fixed or by_fraction(fraction, [size])[0]
    records = np.arange(1, size + 1)
    drawn = np.full(size, fixed) if fixed is not None else np.maximum(1, np.floor(fraction * records))
    fits = drawn[(drawn / records == rate) & (drawn <= records)]
    return int(fits.max()) if fits.size else 0


def _resumed_with_others(folder: Folder) -> bool:
    """Say whether the last process planned for other rates than plan.json's sizes imply."""
    training, rates = folder.written.training, folder.summary.get("guarantee", {}).get("sampling_rates", {})
    again = sum(line.get("event") == "run begins" for line in folder.log) > 1
    if not again or folder.written.privacy.sampling == "stratified":
        return False
    batch = {
        group: training.batch_size or by_fraction(training.batch_fraction, [size])[0]
        for group, size in folder.sizes.items()
    }
    return any(
        batch_of(rate, folder.sizes[group], training.batch_fraction, training.batch_size) != batch[group]
        for group, rate in rates.items()
    )


def _spreads(folder: Folder, row: Row) -> list[float]:
    """Spreads of every penalty's directions: known for orthogonal blocks, else of the attempt's public draw."""
    if folder.written.slicing.scheme == "orthogonal":
        return folder.prepared.clipped.planned_spreads()
    return [spread(block) for block in folder.prepared.clipped.directions(row.round, row.attempt)]


# Sums that are released once, beside the rounds


@dataclass(frozen=True)
class _Sum:
    """A sum over all records, or over kept ones, that a run releases once: its rows, its file, how far a record moves.

    The ``least`` sensitivity is None if the settings release no such sum. Its noise is for ``most`` rows of a
    ledger, and ``exact`` says if numbers on file are those of no noise.
    """

    kind: str
    file: str
    keys: frozenset[str]
    least: float | None
    most: float
    exact: Callable[[Mapping[str, Any]], bool]


_FIRST = ("histograms", "moments")
_KEYS = frozenset({"values", "sigma", "records", "clients", "attempt", "epsilon"})


def _sums_of(folder: Folder) -> tuple[_Sum, ...]:
    """List the sums that a run may release beside its rounds, in the order in which they are released."""
    task, relation = folder.task, relation_of(folder.written)
    layout, counts, tally = moments_layout(task), scores_of(task), tally_of(task)
    attempts = attempts_at_one(folder.written) if folder.masked else 1

    def counted_exactly(stored: Mapping[str, Any]) -> bool:
        # What every record adds to its cell's first number:
        one = (math.floor(2**14 * float(stored["counted"])) / 2**14) ** 2
        pairs = zip(stored["values"], stored["records"], strict=True)
        return all(row[0] == records * one for row, records in pairs if records)

    def whole(stored: Mapping[str, Any]) -> bool:
        return all((2 * float(value)).is_integer() for row in stored["values"] for value in row)  # some count in halves

    columns = folder.counts_of_columns
    histograms, moments, scores = (
        None if summed is None else sum_budget(part, summed, 1.0, relation).sensitivity.value
        for part, summed in ((HISTOGRAMS_PART, columns), (PART, layout), (SCORES_PART, counts))
    )
    tallies = None if tally is None else SLACK * tally.moved_for(relation)
    on_file = (read_json(folder.directory / RunFile.HELD_OUT) or {}).get("values") or [()]
    if isinstance(tally, Counts) and relation != ADD_OR_REMOVE and len(on_file[0]) == tally.classes**2:
        tallies = SLACK * math.sqrt(2.0)  # of an older version, which counted each record in one place
    return (
        _Sum("histograms", RunFile.HISTOGRAMS, _KEYS, histograms, math.inf, whole),
        _Sum("moments", RunFile.MOMENTS, _KEYS | {"counted"}, moments, math.inf, counted_exactly),
        _Sum("kept records", RunFile.HELD_OUT, _KEYS | {"round", "cut"}, tallies, attempts, whole),
        _Sum("scores", RunFile.SCORES, _KEYS | {"calibration"}, scores, attempts, whole),
    )


def _once(folder: Folder, sum_: _Sum, faults: Faults) -> str:
    """Require its rows of every ledger, of all records, and their noise in what is on file; returns words on it."""
    stored = read_json(folder.directory / sum_.file)
    rows = [(book, row) for book in folder.books for row in book.kinds[sum_.kind]]
    if sum_.least is None:
        faults.require(stored is None, f"{sum_.file} is there, and the settings release no {sum_.kind}")
        faults.require(
            not rows, f"{[book.name for book, _ in rows][:1]} charges {sum_.kind}; the settings ask for none"
        )
        return ""
    for book in folder.books:
        many = len(book.kinds[sum_.kind])
        faults.require(many <= sum_.most, f"{book.name} has {many} rows of {sum_.kind}; its noise is for {sum_.most}")
        silent = [row.sequence for row in book.rows if len(row.charges) == len(row.trained)]
        stated = sum_.kind != "kept records" or not silent
        faults.require(stated, f"{book.name} does not say what rows {silent} cost kept records")
        missing = sum_.kind in _FIRST and book.rounds and not (rows if folder.masked else many)
        faults.require(not missing, f"{book.name} has rounds, and no release of {sum_.kind}")
    for book, row in rows:
        where = f"{book.name}, row {row.sequence}"
        for charge in row.kept or row.trained:
            faults.require(charge["sampling_rate"] == 1.0, f"{where}: {sum_.kind} are all released, at a rate below 1")
            require_sensitivity(charge, sum_.least, f"{where}, of {sum_.kind}", faults)
        said = {charge["group"] for charge in row.trained if charge["sampling_rate"] > 0}
        missed = sorted({c["group"] for planned in book.rounds for c in planned.trained} - said)
        faults.require(bool(row.kept) or not missed, f"{where} does not charge {missed}")
        faults.require(
            not (row.kept and said), f"{where} releases kept records and charges {sorted(said)} for training"
        )
        late = sum_.kind == "scores" and row.round != rounds_beside(folder.written)[SCORES_PART]
        faults.require(not late, f"{where} releases something in round {row.round}, after the last")
    if stored is None:
        sections = ("held_out_release",) if sum_.kind == "kept records" else ("calibration", "thresholds")
        shown = [name for name in sections if (folder.summary.get(name) or {}).get("sigma") is not None]
        shown = shown if sum_.kind not in _FIRST else ["rounds in metrics.jsonl"] if folder.metrics else []
        faults.require(not shown, f"there are {', '.join(shown)}, and there is no {sum_.file}")
        return f"; no {sum_.kind} were released"
    more = sorted(stored.keys() - sum_.keys)
    faults.require(not more, f"{sum_.file} holds {more}")
    _require_sigma(folder, stored, sum_.file, [row for _, row in rows], faults)
    faults.require(not sum_.exact(stored), f"{sum_.file} holds whole numbers, as counts without noise are")
    if sum_.kind == "scores":
        _require_calibration(folder, stored, faults)
    if sum_.kind == "histograms":
        _require_bins(folder, faults)
    return f"; {sum_.kind} of {sum(stored['records'])} records released once"


def _require_bins(folder: Folder, faults: Faults) -> None:
    """Require that the model's bins are what the counts on file say; a run has them before it has moments."""
    histograms = kept_histograms(folder.task, RunDirectory(folder.directory))
    again = None if histograms is None else binned(folder.task, histograms).model.bins
    waits = not (folder.directory / RunFile.MOMENTS).is_file()
    same = waits or again == folder.settings.model.bins
    faults.require(same, f"the model's bins are not what the counts of {RunFile.HISTOGRAMS} say")


def _require_sigma(folder: Folder, stored: Mapping[str, Any], file: str, rows: Sequence[Row], faults: Faults) -> None:
    """Require that what is stored is in a ledger, and has the noise that its attempt's rows have together."""
    faults.require(bool(rows), f"{file} is in no ledger")
    rows = [row for row in rows if row.attempt == stored["attempt"]] or rows
    if rows and (folder.masked or not folder.local or stored["clients"] == len(rows)):  # else some have no ledger here
        total, sigma = sigma_of(folder, rows, stored["clients"]), float(stored["sigma"])
        same = math.isclose(sigma, total, rel_tol=1e-6)
        faults.require(same, f"{file} has noise of σ = {sigma:.6g}, its rows {total:.6g}")


def sigma_of(folder: Folder, rows: Sequence[Row], clients: float) -> float:
    """Sigma of a sum over ``clients``: that of these rows together; a row of a masked sum has that of H clients."""
    if folder.masked and rows:
        return rows[0].sigma * math.sqrt(clients / honest(folder.written))
    return math.hypot(*(row.sigma for row in rows))


def _require_calibration(folder: Folder, stored: Mapping[str, Any], faults: Faults) -> None:
    """Require that probabilities were corrected as the counts say, in the file and in the summary, or not at all."""
    said, counts = stored.get("calibration"), scores_of(folder.task)
    calibrates = folder.written.calibration.share > 0
    faults.require(
        (said is not None) == calibrates, f"{RunFile.SCORES} and the settings differ on whether it calibrates"
    )
    if said is None or counts is None:
        return
    number = rule_of(said)
    faults.require(0 <= number < len(RULES), f"{RunFile.SCORES} is calibrated by the unknown rule {number}")
    if not 0 <= number < len(RULES):
        return
    if not folder.written.thresholds.share:
        counts = replace(counts, edges=RULES[number].edges)
    values = np.array(stored["values"], dtype=np.float64)
    public = None if folder.written.privacy.hides_sizes else float(sum(stored["records"]))
    again = calibration_of(counts, values, float(stored["sigma"]), public, number).said()
    shown = folder.summary.get("calibration", said)
    # the first rule judged no model, and took the class shares' log loss from counts as they were
    names = ("scale", "shift", "log_loss", *(("log_loss_of_shares", "evidence") if RULES[number].judges else ()))
    for name in names:
        same = all(_alike(again[name], where.get(name)) for where in (said, shown))
        faults.require(same, f"the calibration's {name} is not what the counts of {RunFile.SCORES} say")


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and all(_alike(value, other.get(name)) for name, value in one.items())
    return np.shape(one) == np.shape(other) and bool(np.allclose(one, other, rtol=1e-6, atol=1e-9))


# Sketches


def _stages(folder: Folder, faults: Faults) -> str:
    """Require of every ledger one release a stage, of everything, at its sensitivity, and the cost of all together.

    All stages cost no more than the one release that was planned; failed attempts at masked sums are charged, too.
    """
    stages = range(1, 1 + folder.written.stages)
    bounds = {number: sketch_sensitivity(law_of_problem(folder.task, Stage(number))).value for number in stages}
    planned = float(folder.summary.get("guarantee", {}).get("noise_multiplier", 0.0))
    for book in folder.books:
        numbers = [row.round for row in book.rows]
        once = (folder.masked or len(set(numbers)) == len(numbers)) and set(numbers) <= set(bounds)
        faults.require(once, f"{book.name} has rows of stages {numbers}; each of {len(stages)} is released once")
        cost = 0.0
        for row in [row for row in book.rows if row.round in bounds]:
            (charge,), where = row.charges, f"{book.name}, row {row.sequence}"
            require_sensitivity(charge, bounds[row.round], where, faults)
            faults.require(charge["sampling_rate"] == 1.0, f"{where}: everything is released, at a rate below 1")
            cost += (charge["sensitivity"] / row.sigma) ** 2 if row.sigma else math.inf
        within = not planned or cost <= (1 + 1e-6) / planned**2
        faults.require(within, f"{book.name}: its stages cost more than one release at σ/Δ = {planned:.6g}")
    for number in bounds:
        _sketch(folder, number, faults)
    return f"Δ is no less than {bounds[1]:.6g} by the formula, for one release of all records a stage"


def _sketch(folder: Folder, number: int, faults: Faults) -> None:
    """Require that a stage's sketch, and every line about it, has the noise that the rows of its clients add up to."""
    path, steps = folder.directory / of_stage(RunFile.SKETCH, number), folder.written.training.rounds
    lines = [line for line in folder.metrics if (int(line["round"]) - 1) // steps == number - 1]
    if not path.is_file():
        faults.require(not lines, "there are lines of metrics, and no sketch that they are about")
        return
    stored = load_file(path)
    sigma, _, clients, attempt, _ = stored[FACTS].tolist()
    for line in lines:
        where = f"step {line.get('round')} of metrics.jsonl"
        faults.require(math.isclose(float(line.get("sigma") or 0.0), sigma), f"{where} has another σ than the sketch")
    # Noise leaves whole steps of its grid, which exact sums hardly are; half, as clients' noise may differ a little.
    least = sigma / math.sqrt(clients if folder.local else 1.0) / 2
    on_grid = least > 0 and bool((stored[VALUE] % spacing(least) == 0).all())
    faults.require(on_grid, f"the sketch is not on the grid that noise of σ = {sigma:.6g} leaves: it has none, or less")
    rows = [(book, row) for book in folder.books for row in book.rows if row.round == number]
    if folder.local and not folder.masked:  # every client's release is in its own file, of whatever attempt
        places = "releases/client-*" if number == 1 else f"releases/stage-{number}/client-*"
        inside = {int(release.stem.removeprefix("client-")) for release in folder.directory.glob(places)}
        faults.require(len(inside) == int(clients), f"the sketch says {clients:g} clients, and {len(inside)} released")
        summed = [row for book, row in rows if int(book.client or -1) in inside]
    else:
        summed = [row for _, row in rows if row.attempt == int(attempt)]
    if folder.masked:  # ledgers of other clients may be elsewhere
        elsewhere = folder.written.federation.clients - len(folder.books)
        enough = len(summed) >= clients - elsewhere
        faults.require(enough, f"the sketch says {clients:g} clients, and {len(summed)} ledgers here have its attempt")
    for part in [[row] for row in summed] if folder.masked else [summed]:
        total = sigma_of(folder, part, clients)
        same = math.isclose(sigma, total, rel_tol=1e-6)
        faults.require(same, f"the sketch has σ = {sigma:.6g}, its rows {total:.6g}")


# Lines of metrics.jsonl


def _metrics(folder: Folder, faults: Faults) -> None:
    """Require that the sigma of every released round is that of its row, or what the clients' rows add up to."""
    law = folder.written.privacy.model.law
    if law not in ("clipped sum", "masked sum", "clipped contribution"):
        return
    by_attempt: dict[tuple[int, int], list[Row]] = {}
    for book in folder.books:
        for row in book.rows:
            by_attempt.setdefault((row.round, row.attempt), []).append(row)
    for line in folder.metrics:
        rows = by_attempt.get((line.get("round", 0), line.get("attempt", 0)), [])
        where = f"round {line.get('round')} of metrics.jsonl"
        faults.require(bool(rows), f"{where} is in no ledger")
        if law == "masked sum" and not folder.task.private_parameters:
            continue  # what is released is a gradient made of noised tables; nothing of it has one standard deviation
        total, reported = sigma_of(folder, rows, line.get("clients", 0)), line.get("sigma")
        several = folder.local and line.get("clients") != len(rows)  # who was lost is charged and not in the sum
        same = reported is not None and (several or math.isclose(float(reported), total, rel_tol=1e-6))
        faults.require(not rows or same, f"{where} says σ = {reported}, its rows {total:.6g}")
