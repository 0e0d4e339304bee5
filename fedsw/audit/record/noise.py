"""Was there the noise that the plan asked for, at rates and sensitivities no smaller than the settings imply?"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fedsw.audit.record import held_out, sensitivity, sketch
from fedsw.audit.record.check import Check, Faults
from fedsw.audit.record.folder import Folder, Row, real
from fedsw.audit.record.spent import planned_cost

NAME = "noise against Δ"

_EXACT = 1e-9
_GRID = 1e-3
_LARGEST = 2 * 10**6


def check(folder: Folder) -> Check:
    """Every row: sigma / Delta, Delta against the formulas for the settings, and p against the groups' sizes.

    Where clients dropped out Delta and p may be larger than planned; p follows the rounded batch of the records that
    were there, which is looked for.
    """
    if not folder.noisy:
        faults = Faults()
        faults.require(folder.claimed == math.inf, f"no noise was asked for, and ε = {folder.claimed:g} is claimed")
        return faults.check(NAME, "no noise was asked for, and ε = ∞ is claimed")
    if not folder.books:
        return Check(NAME, None, "the clients' ledgers are not in the folder; audit them where they are")
    faults, least = Faults(), math.inf
    asked = _asked(folder)
    for book in folder.books:
        for row in book.rounds:
            where = f"{book.name}, row {row.sequence}"
            most = max((float(charge["sensitivity"]) for charge in row.trained), default=0.0)
            ratio = row.sigma / most if most else math.inf
            least = min(least, ratio)
            faults.require(ratio >= asked * (1 - _EXACT), f"{where}: σ/Δ = {ratio:.6g}, and the plan's is {asked:.6g}")
        planned = planned_cost(folder, book) if asked == 0 and folder.accountant == "pld" else None
        if planned is not None:
            budget = real(book.promise["epsilon"])
            fault = f"{book.name}: over all planned rounds its noise is for ε = {planned.epsilon:.6g}, not {budget:.6g}"
            faults.require(planned.epsilon - planned.error <= budget * (1 + _GRID), fault)
    found = _against_settings(folder, faults)
    found += held_out.require(folder, faults)
    _metrics(folder, faults)
    numbers = {"least_noise_multiplier": least, "planned_noise_multiplier": asked or None}
    margin = f"σ/Δ is {least:.6g} or more" + (f" (planned {asked:.6g})" if asked else "")
    return faults.check(NAME, f"{margin}; {found}", **numbers)


def _asked(folder: Folder) -> float:
    """sigma / Delta that every row must have; 0 where each client has its own, for its own sampling rate."""
    given = folder.privacy.get("noise_multiplier")
    if given is not None:
        return float(given)
    if folder.sketch or folder.trust in ("central", "local-release"):
        return float(folder.summary.get("guarantee", {}).get("noise_multiplier", 0.0))
    return 0.0


def _against_settings(folder: Folder, faults: Faults) -> str:
    if folder.sketch:
        return sketch.noise(folder, faults)
    if folder.trust == "local-release":
        return _diameter(folder, faults, rates=False)
    if folder.trust == "local-slices":
        return _diameter(folder, faults, rates=True)
    if folder.trust == "local-gradient":
        return _contributions(folder, faults)
    return _sums(folder, faults)


def _diameter(folder: Folder, faults: Faults, *, rates: bool) -> str:
    """Features in a ball of radius rho: a replaced record moves them by 2 rho."""
    clip, slicing = folder.experiment["clip"], folder.experiment["slicing"]
    once = folder.planned_releases == 1
    for book in folder.books:
        for row in book.rounds:
            (charge,), where = row.trained, f"{book.name}, row {row.sequence}"
            least = 2 * clip["output"]
            faults.require(charge["sensitivity"] >= least, f"{where}: Δ = {charge['sensitivity']:.6g} < {least:.6g}")
            if once:
                faults.require(charge["sampling_rate"] == 1.0, f"{where}: everything is released, at a rate below 1")
            if rates:
                slices, asked = charge.get("slicing") or {}, (slicing["directions"], slicing["scheme"])
                same = (slices.get("k"), slices.get("scheme")) == asked and slices.get("d") == folder.task.dimension
                faults.require(same, f"{where}: other slices than the settings'")
                if not once:
                    _require_rate(charge["sampling_rate"], folder, max(folder.sizes.values()), where, faults)
    return "Δ is no less than the diameter of the ball"


def _contributions(folder: Folder, faults: Faults) -> str:
    """Jointly with the table, Delta / sqrt(1 - share); batches are at most one record larger at each client."""
    alpha, sizes = folder.experiment["objective"]["alpha"], folder.sizes
    share = folder.experiment["local"]["table_share"] if alpha > 0 else 0.0
    fraction, clients = folder.experiment["training"]["batch_fraction"], folder.experiment["federation"]["clients"]
    largest = {group: min(size, math.floor(fraction * size) + clients) for group, size in sizes.items()}
    for book in folder.books:
        for row in book.rounds:
            (charge,), where = row.trained, f"{book.name}, row {row.sequence}"
            (spread,) = spreads_of(folder, row)
            bounds = sensitivity.of_contribution(folder.experiment, largest, spread=spread)
            least = min(bounds.values()) / math.sqrt(1 - share)  # a client holds records of one group at least
            fault = f"{where}: Δ = {charge['sensitivity']:.6g} is less than {least:.6g} by the formula"
            faults.require(charge["sensitivity"] >= least * (1 - _EXACT), fault)
            _require_rate(charge["sampling_rate"], folder, max(sizes.values()), where, faults)
    return "Δ is no less than the formulas' for the largest batches"


def _sums(folder: Folder, faults: Faults) -> str:
    """Under `central`: batches from the recorded rates, Delta from the batches."""
    training, sizes = folder.experiment["training"], folder.sizes
    stratified = folder.privacy["sampling"] == "stratified"
    processes = sum(line.get("event") == "run begins" for line in folder.log)
    if processes > 1 and not _sizes_stayed(folder):
        faults.left = "Δ and p against the settings: the run went on with other sizes than plan.json's"
        return faults.left
    for row in folder.books[0].rounds:
        where = f"{folder.books[0].name}, row {row.sequence}"
        batch, known = {}, True
        for charge in row.trained:
            group, rate = charge["group"], float(charge["sampling_rate"])
            size = sizes[group]
            if stratified:
                fraction = training["batch_fraction"]
                largest = math.floor(fraction * size)
                few = fraction - folder.experiment["federation"]["clients"] / size
                faults.require(few <= rate <= fraction, f"{where}: p = {rate:.6g} of {group}, asked {fraction:g}")
            else:
                largest = batch_of(rate, size, training["batch_fraction"], training["batch_size"])
                fault = f"{where}: p = {rate:.6g} of {group} is the rate of no batch of its {size} records"
                faults.require(largest > 0, fault)
            known = known and largest > 0
            batch[group] = largest
        if not known:
            continue
        bounds = sensitivity.of_sum(folder.experiment, batch, spreads=spreads_of(folder, row))
        for charge in row.trained:
            least, has = bounds[charge["group"]], charge["sensitivity"]
            fault = f"{where}: Δ = {has:.6g} of {charge['group']} is less than {least:.6g} by the formula"
            faults.require(has >= least * (1 - _EXACT), fault)
    return f"Δ and p of {len(folder.books[0].rounds)} rows are no less than the formulas'"


def _sizes_stayed(folder: Folder) -> bool:
    """Whether the last process planned the rates that plan.json's sizes imply."""
    training, reported = folder.experiment["training"], folder.summary.get("guarantee", {}).get("sampling_rates", {})
    if folder.privacy["sampling"] == "stratified" or not reported:
        return True
    return all(
        batch_of(rate, folder.sizes[group], training["batch_fraction"], training["batch_size"])
        == _rounded(folder.sizes[group], training["batch_fraction"], training["batch_size"])
        for group, rate in reported.items()
    )


def _rounded(size: int, fraction: float, fixed: int | None) -> int:
    return fixed if fixed is not None else max(1, math.floor(fraction * size))


@lru_cache(maxsize=4096)
def batch_of(rate: float, size: int, fraction: float, fixed: int | None) -> int:
    """The largest batch that has exactly this rate for some number of records, at most `size`; 0 if there is none."""
    if size > _LARGEST:
        return _rounded(size, fraction, fixed)
    records = np.arange(1, size + 1)
    drawn = np.full(size, fixed) if fixed is not None else np.maximum(1, np.floor(fraction * records))
    fits = drawn[(drawn / records == rate) & (drawn <= records)]
    return int(fits.max()) if fits.size else 0


def _require_rate(rate: float, folder: Folder, size: int, where: str, faults: Faults) -> None:
    fraction = folder.experiment["training"]["batch_fraction"]
    fault = f"{where}: p = {rate:.6g} is the rate of no batch of {fraction:g} of a client's records"
    faults.require(batch_of(rate, size, fraction, None) > 0, fault)


def _metrics(folder: Folder, faults: Faults) -> None:
    """The sigma of every released round is that of its row, or what the clients' rows add up to."""
    if folder.trust not in ("central", "local-gradient"):
        return
    by_attempt: dict[tuple[int, int], list[Row]] = {}
    for book in folder.books:
        for row in book.rows:
            by_attempt.setdefault((row.round, row.attempt), []).append(row)
    for line in folder.metrics:
        rows = by_attempt.get((line.get("round", 0), line.get("attempt", 0)), [])
        where = f"round {line.get('round')} of metrics.jsonl"
        faults.require(bool(rows), f"{where} is in no ledger")
        total, reported = math.hypot(*(row.sigma for row in rows)), line.get("sigma")
        several = folder.local and line.get("clients") != len(rows)  # who was lost is charged and not in the sum
        same = reported is not None and (several or math.isclose(float(reported), total, rel_tol=1e-6))
        faults.require(not rows or same, f"{where} says σ = {reported}, its rows {total:.6g}")


def spreads_of(folder: Folder, row: Row) -> list[float]:
    """lambda_max of every penalty's directions of an attempt: known for orthogonal blocks, else of the public draw."""
    goal, slicing = folder.experiment["objective"], folder.experiment["slicing"]
    widths = [folder.task.dimension, *(each.get("dimension") or folder.task.dimension for each in goal.get("also", ()))]
    k = int(slicing["directions"])
    if slicing["scheme"] == "orthogonal" or max(widths) == 1:
        return [1.0 if d == 1 else math.ceil(k / d) / k for d in widths]
    drawn = [np.asarray(each, dtype=np.float64) for each in folder.task.all_directions(row.round, row.attempt)]
    return [float(np.linalg.eigvalsh(each @ each.T / each.shape[1]).max()) for each in drawn]
