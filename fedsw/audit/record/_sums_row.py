"""Check every row's noise against its sensitivity, by the formulas of its law, and its rate; kept records, too."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedsw._tools.text import upward
from fedsw.audit.finding import Check, Faults
from fedsw.audit.record import _bounds_again as sensitivity
from fedsw.audit.record._bounds_again import EXACT, SLACK, require_sensitivity
from fedsw.audit.record._folder import HELD_OUT, SCORES_FILE, Folder, Row, real, without_ledgers
from fedsw.audit.record._spent import planned_cost
from fedsw.experiment.trust import Law
from fedsw.learning.moments.beside_rounds import scores_of
from fedsw.learning.tasks.calibration import calibration_of

HELD_OUT_FILE = "held_out.json"

HELD_OUT_KEYS = frozenset({"values", "sigma", "records", "clients", "attempt", "epsilon", "round", "cut"})


def _least_sensitivity(folder: Folder) -> float:
    """How far a replaced record moves counts, and half counts; of a regression differences, their squares, and so on.

    A task of one's own may sum either, which its record does not say: the smaller of both.
    """
    task, counted = folder.experiment["objective"]["task"], 1 / 8 if folder.task.dimension == 1 else 0.0
    counts, numbers = math.sqrt(2 + 1 / 2), math.sqrt(1 + 1 / 16 + 1 / 4 + 1 / 4 + counted)
    if ":" in task:
        return SLACK * min(counts, numbers)
    return SLACK * (numbers if task == "regression" else counts)


def require_held_out(folder: Folder, faults: Faults) -> str:
    """Look at the row of every ledger, and at what was stored: what is well in words, none if nothing is released."""
    path = folder.directory / HELD_OUT_FILE
    rows = [(book, row) for book in folder.books for row in book.rows]
    if not folder.releases_kept:
        faults.require(not path.exists(), f"{HELD_OUT_FILE} is there, and the settings release nothing of kept records")
        charged = [book.name for book, row in rows if any(c["group"] == HELD_OUT for c in row.charges)]
        faults.require(not charged, f"{charged[:1]} charges kept records, of which nothing is released")
        return ""
    least = _least_sensitivity(folder)
    most = math.ceil(1 + folder.experiment["local"]["failing"]) if folder.masked else 1
    for book in folder.books:
        many = len(book.tallies)
        faults.require(many <= most, f"{book.name} has {many} rows of kept records; its noise is for {most}")
    for book, row in rows:
        where, said = f"{book.name}, row {row.sequence}", [c for c in row.charges if c["group"] == HELD_OUT]
        faults.require(len(said) == 1, f"{where} does not say what it costs kept records")
        if (charge := row.kept) is None:
            continue
        faults.require(charge["sampling_rate"] == 1.0, f"{where}: kept records are all released, at a rate below 1")
        require_sensitivity(charge, least, f"{where}, of kept records", faults)
        others = [c["group"] for c in row.trained if c["sampling_rate"] > 0]
        faults.require(not others, f"{where} releases kept records and charges {others}, which are trained on")
    if not path.is_file():
        said_so = folder.summary.get("held_out_release") is None
        faults.require(said_so, f"the summary has a release of kept records, and there is no {HELD_OUT_FILE}")
        return "; nothing of kept records was released"
    return _held_out_stored(folder, faults)


def _require_stored(
    folder: Folder, stored: Mapping[str, Any], file: str, rows: Sequence[Row], faults: Faults, *, several: bool = False
) -> None:
    """Require that what is stored is in a ledger, whose rows have its sigma together, unless some are not in it."""
    if folder.books:
        faults.require(bool(rows), f"{file} is in no ledger")
        total, sigma = folder.sigma_of(rows, stored["clients"]), float(stored["sigma"])
        same = several or math.isclose(sigma, total, rel_tol=1e-6)
        faults.require(not rows or same, f"{file} has noise of σ = {sigma:.6g}, its rows {total:.6g}")


def _held_out_stored(folder: Folder, faults: Faults) -> str:
    stored = json.loads((folder.directory / HELD_OUT_FILE).read_text(encoding="utf-8"))
    rows = [row for book in folder.books for row in book.tallies]
    more = sorted(stored.keys() - HELD_OUT_KEYS)
    faults.require(not more, f"{HELD_OUT_FILE} holds {more}")
    several = folder.local and stored["clients"] != len(rows)  # who was lost is charged and not in the sums
    _require_stored(folder, stored, HELD_OUT_FILE, rows, faults, several=several)
    whole = all((2 * float(value)).is_integer() for row in stored["values"] for value in row)
    faults.require(not folder.noisy or not whole, f"{HELD_OUT_FILE} holds whole numbers, as counts without noise are")
    return f"; {sum(stored['records'])} kept records released once"


MOMENTS_FILE = "moments.json"

MOMENTS_KEYS = frozenset({"values", "sigma", "records", "clients", "attempt", "epsilon", "counted"})


def require_moments(folder: Folder, faults: Faults) -> str:
    """Look at the row of every ledger, and at what was stored; in words what is well, empty without moments.

    A record's vector is at most 1 long, so that its replacement moves the sums by sqrt(2), and its addition or removal
    by 1 (docs/guarantees/moments.md).
    """
    if not folder.share_of_moments:
        faults.require(folder.moments is None, f"{MOMENTS_FILE} is there, and the settings release no moments")
        charged = [book.name for book in folder.books if book.moments]
        faults.require(
            not charged, f"{charged[:1]} charges a release before the first round; the settings ask for none"
        )
        return ""
    least = SLACK * (math.sqrt(2) if folder.declared is None else 1.0)
    summed = folder.masked and any(book.moments for book in folder.books)  # a client may be away from the one sum
    for book in folder.books:
        released = summed or bool(book.moments)
        faults.require(not book.rounds or released, f"{book.name} has rounds, and no release of moments")
        for row in book.moments:
            where = f"{book.name}, row {row.sequence}"
            for charge in row.trained:
                full = charge["sampling_rate"] == 1.0
                faults.require(full, f"{where}: moments are of all records, charged at a rate below 1")
                require_sensitivity(charge, least, f"{where}, of moments", faults)
            said = {charge["group"] for charge in row.trained if charge["sampling_rate"] > 0}
            missing = sorted({charge["group"] for planned in book.rounds for charge in planned.trained} - said)
            faults.require(not missing, f"{where} does not charge {missing}")
    return _stored(folder, faults)


def _stored(folder: Folder, faults: Faults) -> str:
    stored = folder.moments
    if stored is None:
        faults.require(not folder.metrics, f"rounds are in metrics.jsonl, and there is no {MOMENTS_FILE}")
        return "; no moments were released"
    more = sorted(stored.keys() - MOMENTS_KEYS)
    faults.require(not more, f"{MOMENTS_FILE} holds {more}")
    rows = [row for book in folder.books for row in book.moments if row.attempt == stored["attempt"]]
    if folder.masked or not folder.local:
        _require_stored(folder, stored, MOMENTS_FILE, rows, faults)
    # What every record adds to its cell's first number:
    one = (math.floor(2**14 * float(stored["counted"])) / 2**14) ** 2
    exact = all(row[0] == many * one for row, many in zip(stored["values"], stored["records"], strict=True) if many)
    faults.require(not folder.noisy or not exact, f"{MOMENTS_FILE} counts records exactly, as sums without noise do")
    return f"; moments of {sum(stored['records'])} records released once"


SCORES_KEYS = frozenset({"values", "sigma", "records", "clients", "attempt", "epsilon", "calibration"})


def require_scores(folder: Folder, faults: Faults) -> str:
    """Look at the row of every ledger, and at what was stored; in words what is well, empty without scores.

    A record is counted in one place of every class that is counted, one of two classes or all of more, so that its
    replacement moves counts by the root of two for each (docs/guarantees/calibration.md). How probabilities were
    corrected is computed again from the counts.
    """
    stored, rows = folder.scores, [(book, row) for book in folder.books for row in book.scores]
    if not folder.share_of_scores:
        faults.require(stored is None, f"{SCORES_FILE} is there, and the settings release no scores")
        charged = [book.name for book, _ in rows]
        faults.require(not charged, f"{charged[:1]} charges a release after the last round; the settings ask for none")
        return ""
    classes = folder.task.classes
    least = SLACK * math.sqrt((1 if classes == 2 else classes) * (2 if folder.declared is None else 1))
    most = math.ceil(1 + folder.experiment["local"]["failing"]) if folder.masked else 1
    for book in folder.books:
        many = len(book.scores)
        faults.require(many <= most, f"{book.name} has {many} rows of scores; its noise is for {most}")
    for book, row in rows:
        where = f"{book.name}, row {row.sequence}"
        faults.require(row.round == book.last + 2, f"{where} releases something in round {row.round}, after the last")
        for charge in row.trained:
            full = charge["sampling_rate"] == 1.0
            faults.require(full, f"{where}: scores are of all records, charged at a rate below 1")
            require_sensitivity(charge, least, f"{where}, of scores", faults)
        said = {charge["group"] for charge in row.trained}
        missing = sorted({charge["group"] for planned in book.rounds for charge in planned.trained} - said)
        faults.require(not missing, f"{where} does not charge {missing}")
    if stored is None:
        for name in ("calibration", "thresholds"):
            said_so = (folder.summary.get(name) or {}).get("sigma") is None
            faults.require(said_so, f"the summary has {name}, and there is no {SCORES_FILE}")
        return "; no scores were released"
    more = sorted(stored.keys() - SCORES_KEYS)
    faults.require(not more, f"{SCORES_FILE} holds {more}")
    several = folder.local and stored["clients"] != len(rows)  # who was lost is charged and not in the sums
    _require_stored(folder, stored, SCORES_FILE, [row for _, row in rows], faults, several=several)
    whole = all(float(value).is_integer() for row in stored["values"] for value in row)
    faults.require(not folder.noisy or not whole, f"{SCORES_FILE} holds whole numbers, as counts without noise are")
    _require_calibration(folder, stored, faults)
    return f"; scores of {sum(stored['records'])} records counted once"


def _require_calibration(folder: Folder, stored: Mapping[str, Any], faults: Faults) -> None:
    """Require that probabilities were corrected as the counts say, in the file and in the summary, or not at all."""
    said, counts = stored.get("calibration"), scores_of(folder.task)
    calibrates = float(folder.experiment.get("calibration", {}).get("share", 0.0)) > 0
    faults.require((said is not None) == calibrates, f"{SCORES_FILE} and the settings differ on whether it calibrates")
    if said is None or counts is None:
        return
    values = np.array(stored["values"], dtype=np.float64)
    public = float(sum(stored["records"])) if folder.declared is None else None
    again = calibration_of(counts, values, float(stored["sigma"]), public).said()
    shown = folder.summary.get("calibration", said)
    for name, known in again.items():
        same = all(_alike(known, where.get(name)) for where in (said, shown))
        faults.require(same, f"the calibration's {name} is not what the counts of {SCORES_FILE} say")


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and all(_alike(value, other.get(name)) for name, value in one.items())
    return np.shape(one) == np.shape(other) and bool(np.allclose(one, other, rtol=1e-6, atol=1e-9))


NAME = "noise against Δ"

_GRID = 1e-3
_LARGEST = 2 * 10**6


def check(folder: Folder) -> Check:
    """Check every row: sigma / Delta, Delta against the formulas for the settings, and p against the groups' sizes."""
    if not folder.noisy:
        faults = Faults()
        faults.require(
            folder.claimed == math.inf, f"no noise was asked for, and ε = {upward(folder.claimed, 6)} is claimed"
        )
        return faults.check(NAME, "no noise was asked for, and ε = ∞ is claimed")
    if not folder.books:
        return without_ledgers(NAME)
    faults, least = Faults(), math.inf
    planned_ratio = _asked(folder)
    for book in folder.books:
        for row in book.rounds:
            where = f"{book.name}, row {row.sequence}"
            most = max((float(charge["sensitivity"]) for charge in row.trained), default=0.0)
            ratio = row.sigma / most if most else math.inf
            least = min(least, ratio)
            faults.require(
                ratio >= planned_ratio * (1 - EXACT),
                f"{where}: σ/Δ = {ratio:.6g}, and the plan's is {planned_ratio:.6g}",
            )
        planned = planned_cost(folder, book) if planned_ratio == 0 and folder.accountant == "pld" else None
        if planned is not None:
            budget = real(book.promise["epsilon"])
            enough = planned.epsilon - planned.error <= budget * (1 + _GRID)
            fault = f"{book.name}: over all planned rounds its noise is for ε = {upward(planned.epsilon, 6)}"
            faults.require(enough, f"{fault}, not {upward(budget, 6)}")
    _require_sampling(folder, faults)
    checked = _against_settings(folder, faults)
    checked += require_moments(folder, faults) + require_held_out(folder, faults) + require_scores(folder, faults)
    _metrics(folder, faults)
    numbers = {"least_noise_multiplier": least, "planned_noise_multiplier": planned_ratio or None}
    margin = f"σ/Δ is {least:.6g} or more" + (f" (planned {planned_ratio:.6g})" if planned_ratio else "")
    return faults.check(NAME, f"{margin}; {checked}", **numbers)


def _require_sampling(folder: Folder, faults: Faults) -> None:
    """Every charge is of the sampling that its epsilon is computed for, and plan.json has the declared number."""
    expected = "without-replacement" if folder.declared is None else "poisson"
    for book in folder.books:
        for row in book.rows:
            others = {charge["sampling"] for charge in row.charges} - {expected}
            where = f"{book.name}, row {row.sequence}"
            faults.require(not others, f"{where}: sampling {sorted(others)}, where the settings have {expected}")
    if folder.declared is not None:
        said, known = sum(folder.sizes.values()), folder.declared
        faults.require(said == known, f"plan.json has {said} records, and the settings declare {known}")


def _asked(folder: Folder) -> float:
    """sigma / Delta that every row must have; 0 where each client has its own, for its own sampling rate."""
    multiplier = folder.privacy.get("noise_multiplier")
    if multiplier is not None:
        return float(multiplier)
    if folder.model.law in ("clipped sum", "masked sum", "whole records", "sum of waves"):
        return float(folder.summary.get("guarantee", {}).get("noise_multiplier", 0.0))
    return 0.0


def _against_settings(folder: Folder, faults: Faults) -> str:
    if (law := folder.model.law) is None:
        faults.left = f"trust {folder.trust!r} does not say what its ledgers account for: Δ and p against the settings"
        return faults.left
    return _LAWS[law](folder, faults)


def _diameter(folder: Folder, faults: Faults) -> str:
    """Features in a ball of radius rho: a replaced record moves them by 2 rho."""
    rates = folder.model.law == "random slices"
    clip, slicing = folder.experiment["clip"], folder.experiment["slicing"]
    once = folder.planned_releases == 1
    for book in folder.books:
        for row in book.rounds:
            (charge,), where = row.trained, f"{book.name}, row {row.sequence}"
            require_sensitivity(charge, 2 * clip["output"], where, faults)
            if once:
                faults.require(charge["sampling_rate"] == 1.0, f"{where}: everything is released, at a rate below 1")
            if rates:
                slices, expected = charge.get("slicing") or {}, (slicing["directions"], slicing["scheme"])
                same = (slices.get("k"), slices.get("scheme")) == expected and slices.get("d") == folder.task.dimension
                faults.require(same, f"{where}: other slices than the settings'")
                if not once:
                    _require_rate(charge["sampling_rate"], folder, max(folder.sizes.values()), where, faults)
    return "Δ is no less than the diameter of the ball"


def _contributions(folder: Folder, faults: Faults) -> str:
    """Jointly with the table, Delta / sqrt(1 - share); batches are at most one record larger at each client."""
    alpha, sizes = folder.experiment["objective"]["alpha"], folder.sizes
    share = folder.experiment["local"]["table_share"] if alpha > 0 else 0.0
    fraction, clients = folder.experiment["training"]["batch_fraction"], folder.experiment["federation"]["clients"]
    scale = clips_scale(folder)
    largest = {group: min(size, math.floor(fraction * size) + clients) for group, size in sizes.items()}
    for book in folder.books:
        for row in book.rounds:
            (charge,), where = row.trained, f"{book.name}, row {row.sequence}"
            bounds = _of_contribution(folder, largest, row)
            least = scale * min(bounds.values()) / math.sqrt(1 - share)  # a client holds records of one group at least
            require_sensitivity(charge, least, where, faults)
            _require_rate(charge["sampling_rate"], folder, max(sizes.values()), where, faults)
    return "Δ is no less than the formulas' for the largest batches"


def _of_contribution(folder: Folder, largest: Mapping[str, int], row: Row) -> dict[str, float]:
    return sensitivity.of_sum(
        folder.experiment,
        largest,
        spreads=spreads_of(folder, row),
        bound=sensitivity.TABLES,
        penalties=folder.penalties,
    )


def _masked(folder: Folder, faults: Faults) -> str:
    """Every client's row is at least that of the contribution, or of tables alone; its rate is the batch's."""
    fraction = folder.experiment["training"]["batch_fraction"]
    largest = {group: max(1, math.floor(fraction * size)) for group, size in folder.sizes.items()}
    for book in folder.books:
        for row in book.rounds:
            (charge,), where = row.trained, f"{book.name}, row {row.sequence}"
            least = math.sqrt(
                2 * sum(directions.shape[1] for directions in folder.task.all_directions(row.round, row.attempt))
            )
            if folder.task.private_parameters:
                bounds = _of_contribution(folder, largest, row)
                least = clips_scale(folder) * max(bounds.values())
            require_sensitivity(charge, least, where, faults)
            faults.require(charge["sampling_rate"] >= fraction, f"{where}: the rate is below {fraction:g}")
    return "Δ is no less than the formulas' for the largest batches"


def _sums(folder: Folder, faults: Faults) -> str:
    """Under `central`: batches from the recorded rates, Delta from the batches."""
    training, sizes = folder.experiment["training"], folder.sizes
    stratified = folder.privacy["sampling"] == "stratified"
    scale = clips_scale(folder)
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
            if folder.declared is not None:
                largest = max(1, math.floor(training["batch_fraction"] * folder.declared))
                same = rate == training["batch_fraction"]
                faults.require(
                    same, f"{where}: p = {rate:.6g}, and every record joins with {training['batch_fraction']:g}"
                )
            elif stratified:
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
        bounds = sensitivity.of_sum(
            folder.experiment, batch, spreads=spreads_of(folder, row), penalties=folder.penalties
        )
        part = scale if folder.declared is None else scale / 2  # one term comes or goes, where else two differ
        for charge in row.trained:
            require_sensitivity(charge, part * bounds[charge["group"]], f"{where}, of {charge['group']}", faults)
    whose = ""
    if folder.word == "stated":
        whose = f", where that of {', '.join(folder.own_penalties)} is stated by the user and proven by nobody"
    return f"Δ and p of {len(folder.books[0].rounds)} rows are no less than the formulas'{whose}"


_LAWS: Mapping[Law, Callable[[Folder, Faults], str]] = {
    "clipped sum": _sums,
    "masked sum": _masked,
    "clipped contribution": _contributions,
    "random slices": _diameter,
    "whole records": _diameter,
    "sum of waves": sensitivity.noise,
}


def clips_scale(folder: Folder) -> float:
    """Read what multiplies the clips of Jacobians and loss gradients, and Delta with them: 1 without moments."""
    return 1.0 if folder.preparation is None else folder.preparation.scale


def _sizes_stayed(folder: Folder) -> bool:
    """Say whether the last process planned the rates that plan.json's sizes imply."""
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
    """Find the largest batch that has exactly this rate for some number of records, at most `size`; 0 if none has."""
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
    if folder.model.law not in ("clipped sum", "masked sum", "clipped contribution"):
        return
    by_attempt: dict[tuple[int, int], list[Row]] = {}
    for book in folder.books:
        for row in book.rows:
            by_attempt.setdefault((row.round, row.attempt), []).append(row)
    for line in folder.metrics:
        rows = by_attempt.get((line.get("round", 0), line.get("attempt", 0)), [])
        where = f"round {line.get('round')} of metrics.jsonl"
        faults.require(bool(rows), f"{where} is in no ledger")
        total, reported = folder.sigma_of(rows, line.get("clients", 0)), line.get("sigma")
        if folder.model.law == "masked sum" and not folder.task.private_parameters:
            continue  # what is released is a gradient made of noised tables; nothing of it has one standard deviation
        several = folder.local and line.get("clients") != len(rows)  # who was lost is charged and not in the sum
        same = reported is not None and (several or math.isclose(float(reported), total, rel_tol=1e-6))
        faults.require(not rows or same, f"{where} says σ = {reported}, its rows {total:.6g}")


def spreads_of(folder: Folder, row: Row) -> list[float]:
    """Compute lambda_max of every penalty's directions: known for orthogonal blocks, else of the public draw."""
    slicing = folder.experiment["slicing"]
    widths = [penalty.get("dimension") or folder.task.dimension for penalty in folder.penalties]
    k = int(slicing["directions"])
    if slicing["scheme"] == "orthogonal" or max(widths) == 1:
        return [1.0 if d == 1 else math.ceil(k / d) / k for d in widths]
    drawn = [np.asarray(penalty, dtype=np.float64) for penalty in folder.task.all_directions(row.round, row.attempt)]
    return [float(np.linalg.eigvalsh(penalty @ penalty.T / penalty.shape[1]).max()) for penalty in drawn]
