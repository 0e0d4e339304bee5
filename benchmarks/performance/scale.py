"""What a record and a message cost here, for the arithmetic of docs/measured/scale.md."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fedsw
from benchmarks.performance import table
from benchmarks.performance.arithmetic import (
    Shape,
    central_round,
    histogram_round,
    rows_of_a_site,
    rows_that_weigh_as_much_as_tables,
)
from benchmarks.performance.runs import overhead
from benchmarks.performance.timing import in_turns, spread
from fedsw._tools.text import table as markdown_table
from fedsw.data._synthetic import synthetic as draw
from fedsw.learning.models import mlp
from fedsw.runs.single.objective import draw_batch

CLIENTS = tuple(10**power for power in range(3, 9))
RECORDS_OF_A_CLIENT, MOST_OF_A_BATCH = 10, 10_000
LOGISTIC = Shape(parameters=17)
MODELS = (
    ("logistic, 16 features", Shape(17)),
    ("perceptron, 100 000 parameters", Shape(100_000, dimension=2, directions=30)),
    ("network, 10 million parameters", Shape(10_000_000, dimension=64, directions=64)),
)
_BYTES_OF_A_RECORD = 16 * 4 + 3 * 8  # float32 features; group, target and number in int64
_BYTES_A_SECOND = 1e9 / 8
_SOME_SITES = 100
NAMES = ("bytes", "seconds", "binds", "histograms", "cluster")
_NOT_YET = "*Not measured yet; `make bench` measures it and writes this table.*"


def measure(quick: bool) -> Iterator[dict[str, Any]]:
    """See `benchmarks.performance.rows`: rows that only report."""
    sizes = (100, 200) if quick else (1000, 10_000, 100_000)
    for name, hidden in (("logistic", ()), ("perceptron of width 64", (64,))):
        yield _step(name, hidden, sizes, turns=1 if quick else 7)
    yield _message(exchanges=5 if quick else 400)


def _step(name: str, hidden: Sequence[int], sizes: Sequence[int], *, turns: int) -> dict[str, Any]:
    """Seconds of a batch's clipped gradient, by the records in it."""
    records = draw(4 * max(sizes)).train
    strata = [(records.sensitive == group).nonzero()[:, 0].numpy() for group in (0, 1)]
    objective = fedsw.Objective("classification", [fedsw.Parity(0.5)])
    clip, model = fedsw.Clip(output=0.5, jacobian=1.0, loss=2.0), mlp(16, hidden, 1)

    def way(size: int) -> Any:
        batch = draw_batch(records, strata, [size // 2] * 2, seed=None, round_=1, attempt=0)

        def once() -> float:
            began = time.perf_counter()
            objective.gradient(model, batch, clip)
            return time.perf_counter() - began

        return once

    taken = in_turns({str(size): way(size) for size in sizes}, turns=turns)
    seconds = [taken[str(size)].median for size in sizes]
    each = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    row = _report(f"clipped gradient of a batch, {name}", each * 1e6, "microseconds a record")
    times = {f"{size} records": taken[str(size)] for size in sizes}
    text = ", ".join(spread(**{name: each}) for name, each in times.items())
    return {**row, "spread": text, "curve": {"over": "records of a batch", "sizes": list(sizes), "seconds": seconds}}


def _message(exchanges: int) -> dict[str, Any]:
    found = overhead(10, exchanges=exchanges)
    row = _report("a message in process whose handler only answers", found["median_ms"] * 1e3, "microseconds")
    return {
        **row,
        "spread": f"a tenth take more than {found['p90_ms'] * 1e3:.0f}",
        "message_seconds": found["median_ms"] / 1e3,
    }


def _report(what: str, value: float, unit: str) -> dict[str, Any]:
    nothing: dict[str, Any] = {"against": "", "other": None, "ratio": None, "goal": "", "met": None, "note": ""}
    return {"what": what, "ours": value, "unit": unit, **nothing}


def tables(folder: Path = table.RESULTS) -> dict[str, str]:
    """The tables of docs/measured/scale.md, by the name of their marks, which are `NAMES`."""
    stored = table.load(folder)
    return {
        "bytes": _bytes(),
        "seconds": _seconds(stored),
        "binds": _binds(),
        "histograms": _histograms(),
        "cluster": _cluster(stored),
    }


def _batch(clients: int) -> int:
    """A tenth of all records, at most `MOST_OF_A_BATCH`."""
    return min(MOST_OF_A_BATCH, clients * RECORDS_OF_A_CLIENT // 10)


def _bytes() -> str:
    rows = []
    for clients in CLIENTS:
        records = clients * RECORDS_OF_A_CLIENT
        ways = [_central(clients, sites).total for sites in (1, _SOME_SITES, clients)]
        network = [f"{_size(way)}, {_time(way / _BYTES_A_SECOND)}" for way in ways]
        rows.append([_count(clients), _size(records * _BYTES_OF_A_RECORD), _count(_batch(clients)), *network])
    headings = ("clients", "their records", "batch", "1 site", f"{_SOME_SITES} sites", "every client a site")
    return markdown_table(headings, rows)


def _central(clients: int, sites: int) -> Any:
    records = clients * RECORDS_OF_A_CLIENT
    return central_round(LOGISTIC, batch=_batch(clients), clients=clients, sites=sites, records=records)


def _binds() -> str:
    rows = []
    for name, shape in MODELS:
        for batch in (10_000, 1_000_000):
            filled = rows_of_a_site(batch, sites=_SOME_SITES, held=10**6, cells=shape.cells)
            outputs = _SOME_SITES * filled * shape.dimension * 12.0
            models = _SOME_SITES * shape.parameters * 16.0
            more = "outputs and cotangents" if outputs > models else "models and contributions"
            rows.append([name, str(shape.dimension), _count(batch), _size(outputs), _size(models), more])
    headings = ("model", "d", "batch", "outputs and cotangents", "models and contributions", "what binds")
    return markdown_table(headings, rows)


def _histograms() -> str:
    rows = []
    for d, k in ((1, 1), (2, 30), (8, 64), (64, 64), (784, 784)):
        shape = Shape(17, dimension=d, directions=k)
        both = histogram_round(shape, clients=1).total - histogram_round(Shape(17, d, 0), clients=1).total
        least = rows_that_weigh_as_much_as_tables(shape)
        rows.append([str(d), str(k), _size(12.0 * d), _size(both), f"{least:,.0f}".replace(",", " ")])
    headings = (
        "d",
        "k",
        "a record's output and cotangent",
        "tables of a client, both ways",
        "tables are smaller above, records a round",
    )
    return markdown_table(headings, rows)


def _seconds(stored: dict[str, dict[str, Any]]) -> str:
    costs = _costs(stored)
    if costs is None:
        return _NOT_YET
    fixed, record, client, message = costs
    rows = []
    for clients in CLIENTS:
        here = fixed + _batch(clients) * record + clients * client
        apart = fixed + _batch(clients) * record + 2 * clients * message
        rows.append([_count(clients), _count(_batch(clients)), _time(here), _time(apart), _time(500 * here)])
    costs_text = (
        f"A round by itself {_time(fixed)}; a record of the batch {_time(record)}; a client of a site {_time(client)}; "
        f"a message {_time(message)}."
    )
    headings = ("clients", "batch", "a round, 1 site", "a round, every client a site", "500 rounds, 1 site")
    return f"{costs_text}\n\n{markdown_table(headings, rows)}"


def _costs(stored: dict[str, dict[str, Any]]) -> tuple[float, float, float, float] | None:
    """Seconds of a round by itself, of a record, of a client and of a message; None before both have been measured."""
    own, runs = (stored.get(name, {"rows": []})["rows"] for name in ("scale", "engines"))
    curve = next((row["curve"] for row in own if "logistic" in row["what"]), None)
    message = next((row["message_seconds"] for row in own if "message_seconds" in row), None)
    grown = [row for row in runs if "rounds" in row and "clients" in row and "batch" in row]
    if curve is None or message is None or not grown:
        return None
    record = (curve["seconds"][-1] - curve["seconds"][0]) / (curve["sizes"][-1] - curve["sizes"][0])
    most = max(grown, key=lambda row: row["clients"])
    client = max(0.0, (most["ours"] - most["other"]) / most["rounds"] / (most["clients"] - 1))
    return max(0.0, most["other"] / most["rounds"] - most["batch"] * record), record, client, message


def _cluster(stored: dict[str, dict[str, Any]]) -> str:
    """Rounds over workers of a cluster beside one process, with what comes before and after them."""
    found = [row for row in stored.get("cluster", {"rows": []})["rows"] if "job" in row]
    if not found:
        return _NOT_YET
    rows = [
        [
            row["job"],
            *(_time(row[side]) for side in ("ours", "other")),
            f"{row['ratio']:.2g}",
            *(_time(row["around"][engine]) for engine in ("inprocess", "ray")),
            _size(row["worker_bytes"]),
        ]
        for row in found
    ]
    machine = stored["cluster"]["machine"]
    about = (
        f"{machine['cores']} cores, {machine['processor']}, ray {machine['versions']['ray']}, {machine['date'][:10]}."
    )
    headings = (
        "clients, model, batch",
        "a round, one process",
        f"4 workers, {found[0]['against'].partition(' workers on ')[2]}",
        "ratio",
        "around the rounds, one process",
        "4 workers",
        "memory of a worker",
    )
    return f"{about}\n\n{markdown_table(headings, rows)}"


def _count(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _size(number: float) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"


def _time(seconds: float) -> str:
    """Seconds in the unit that a reader can compare."""
    for most, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (600.0, 1.0, "s"), (36_000.0, 1 / 60, "min")):
        if seconds < most:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"
