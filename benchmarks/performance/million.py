"""Seconds and memory of `check`, `run` and `predict` on a table of a million rows, against pandas' reading of the same files.

A made-up table of 20 columns (13 numbers, one of them with gaps, 2 whole numbers, 3 of categories, groups, classes) lies
in folders of 4 clients, as CSV and as Parquet, and once more in one file to predict from; with a column that says whose a
row is (5 rows a person, in any order) it is the table of persons. Every turn of a side is a process of its own, which does the
same on a small table first, twice: what is imported, and made once, is then there, and what takes as long whatever the
table is known. The other side is pandas.read_csv, by the quicker of its engines C and pyarrow, or read_parquet, of the
same files. Of `run` all counts but its rounds: reading,
greeting, calibration, the held-out file, metrics, what it leaves; `check` makes no estimate of cost, which is a run on
made-up records. Seconds are those of the processor, of all threads together, which other work on the machine moves
least; `clock` in the JSON has the least seconds by the clock. Memory is the peak above that of the process before the
large table, in float32 tables of 20 columns (4 bytes a cell); Linux tells it.

`python -m benchmarks.performance million` measures, and removes its files; who else uses the machine is not known but by
the load.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.performance.comparing import Row

_ROOT = Path(__file__).parents[2]
_CLIENTS, COLUMNS, SMALL, _TURNS = 4, 20, 2_000, 3
_NUMBERS = [f"number{place}" for place in range(13)]
_CATEGORIES = {"work": ("private", "public", "self", "none"), "region": ("north", "south", "east"),
               "school": ("primary", "secondary", "tertiary")}  # fmt: skip
_LONGEST, _MOST_TABLES = 1.5, 4.0
_VERBS = ("check", "run", "predict")
_Spent = tuple[float, float]
"""Seconds of rounds, by the clock and of the processor."""
_NOTES = {
    "check": "by its profile four fifths are pyarrow's parsing of the blocks of CSV, as long as all that pandas does, or "
    "its reading of Parquet",
    "run": "as check; and what does not grow with the table: calibration, the first metrics, figures, files on disk",
    "predict": "as check; then the model's answers, and the text of two probabilities of 16 digits a row",
    "persons": "as check; and identifiers, which come in any order: each is hashed (0.5 s a million) in every block that it "
    "is in, and all are sorted to compare the rows of each",
}


def measure(quick: bool) -> Iterator[Row]:
    """Rows of every verb, format and kind of table: seconds, and memory."""
    rows, turns = (20_000, 1) if quick else (1_000_000, _TURNS)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, size in (("small", SMALL), ("large", rows)):
            write_tables(folder / name, size)
        (folder / "own.toml").write_text(experiment(unit=False), encoding="utf-8")
        (folder / "persons.toml").write_text(experiment(unit=True), encoding="utf-8")
        timed_turn(folder, "train", "csv")
        for kind in ("csv",) if quick else ("csv", "parquet"):
            readers = ("c", "pyarrow") if kind == "csv" else ("parquet",)
            for verb in (*_VERBS, "persons"):
                ways = (verb, *(f"{_read_by(verb)} {reader}" for reader in readers))
                found = [{way: timed_turn(folder, way, kind) for way in ways} for _ in range(turns)]
                yield from _rows(rows, verb, kind, found)


def _rows(rows: int, verb: str, kind: str, turns: list[dict[str, dict[str, float]]]) -> Iterator[Row]:
    seconds = {way: statistics.median(turn[way]["busy"] for turn in turns) for way in turns[0]}
    others = {way: each for way, each in seconds.items() if way != verb}
    quickest = min(others, key=lambda way: others[way])
    words = "check, under a unit" if verb == "persons" else verb
    spans = [
        f"{way} {min(t[way]['busy'] for t in turns):.3g} to {max(t[way]['busy'] for t in turns):.3g}" for way in seconds
    ]
    ratio = seconds[verb] / seconds[quickest]
    fixed = statistics.median(turn[verb]["fixed"] for turn in turns)
    yield {
        "what": f"{words}, {rows} rows of {COLUMNS} columns, {kind}",
        "against": f"pandas, {quickest.split()[1]}",
        "ours": seconds[verb],
        "other": seconds[quickest],
        "ratio": ratio,
        "goal": f"<= {_LONGEST:g} times the processor time",
        "met": ratio <= _LONGEST,
        "spread": ", ".join(spans),
        "note": "" if ratio <= _LONGEST else f"{_NOTES[verb]}; a table of {SMALL} rows takes {fixed:.2g} s of it",
        "fixed": fixed,
        "least": {way: min(turn[way]["busy"] for turn in turns) for way in seconds},
        "rounds": statistics.median(turn[verb]["rounds"] for turn in turns),
        "clock": {way: min(turn[way]["seconds"] for turn in turns) for way in seconds},
        "versions": {name: importlib.metadata.version(name) for name in ("pandas", "pyarrow")},
    }
    table, peak = 4.0 * COLUMNS * rows, max(turn[verb]["bytes"] for turn in turns)
    yield {
        "what": f"{words}, peak memory, {kind}",
        "against": "the table in float32",
        "ours": peak,
        "other": table,
        "unit": "B",
        "ratio": peak / table,
        "goal": f"<= {_MOST_TABLES:g} tables",
        "met": peak / table <= _MOST_TABLES,
        "spread": f"pandas {max(turn[quickest]['bytes'] for turn in turns) / table:.2g} tables",
        "note": "" if peak / table <= _MOST_TABLES else "records, and what is made of them at once",
    }


def _read_by(verb: str) -> str:
    """Which files pandas reads beside a verb."""
    return {"predict": "whole", "persons": "persons"}.get(verb, "clients")


def timed_turn(folder: Path, way: str, kind: str, root: Path = _ROOT) -> dict[str, float]:
    """Seconds and bytes of one process, of the fedsw in a checkout."""
    command = [sys.executable, "-P", __file__, str(folder), kind, *way.split()]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{way}, {kind}: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_tables(folder: Path, rows: int) -> None:
    """The tables of one size: `clients` and `persons` in folders, `whole` in one, and a small held-out one."""
    import pandas

    table = pandas.DataFrame(_columns(rows + SMALL))
    held_out, table = table.iloc[:SMALL], table.iloc[SMALL:]
    share = -(-rows // _CLIENTS)
    for name, part in [("held_out", held_out.drop(columns="person")), ("whole", table.drop(columns="person"))]:
        _store(part, folder / name)
    for client in range(_CLIENTS):
        part = table.iloc[client * share : (client + 1) * share]
        _store(part.drop(columns="person"), folder / "clients" / str(client))
        _store(part.assign(person=f"{client}-" + part["person"]), folder / "persons" / str(client))


def _store(table: Any, folder: Path) -> None:
    for kind, write in (("csv", table.to_csv), ("parquet", table.to_parquet)):
        place = folder.parent / kind / folder.name if not folder.name.isdecimal() else (
            folder.parent.parent / kind / folder.parent.name / folder.name
        )  # fmt: skip
        place.mkdir(parents=True)
        write(place / f"train.{kind}", index=False)


def _columns(rows: int) -> dict[str, Any]:
    made = np.random.default_rng(0)
    columns: dict[str, Any] = {name: np.round(made.uniform(-5, 5, rows), 4) for name in _NUMBERS}
    chosen = columns["number0"] - columns["number1"] + made.normal(size=rows) > 0
    columns[_NUMBERS[-1]][made.uniform(size=rows) < 0.03] = np.nan
    columns |= {f"count{place}": made.integers(0, 100, rows) for place in range(2)}
    columns |= {name: made.choice(values, rows) for name, values in _CATEGORIES.items()}
    person = made.integers(0, max(1, rows // 5), rows)
    columns["sex"] = np.array(["f", "m"])[person % 2]
    columns["ill"] = np.where(chosen, "yes", "no")
    columns["person"] = np.char.add("p", person.astype(str))
    return columns


def experiment(*, unit: bool) -> str:
    gaps = ', missing = [""], fill = 0'
    features = [f'{{name = "{name}", low = -5, high = 5{gaps if name == _NUMBERS[-1] else ""}}}' for name in _NUMBERS]
    features += [f'{{name = "count{place}", kind = "integer", low = 0, high = 99}}' for place in range(2)]
    features += [f'{{name = "{name}", categories = {json.dumps(values)}}}' for name, values in _CATEGORIES.items()]
    return f"""name = "million"
[data]
source = "files"
{'unit = "person"' if unit else ""}
[federation]
clients = {_CLIENTS}
[privacy]
epsilon = 1
[training]
rounds = 2
batch_fraction = 0.01
[data.columns]
features = [{", ".join(features)}]
sensitive = {{name = "sex", values = ["f", "m"]}}
target = {{name = "ill", values = ["no", "yes"]}}
"""


def _alone(folder: Path, kind: str, way: str, reader: str) -> dict[str, float]:
    """One side in this process: on the small table, then, on the clock, on the large one."""
    ways: dict[str, Callable[[Path], _Spent]] = {
        "init": functools.partial(_init, folder, kind),
        "check": functools.partial(_check, folder, kind, "clients"),
        "persons": functools.partial(_check, folder, kind, "persons"),
        "run": functools.partial(_run, folder, kind),
        "predict": functools.partial(_predict, folder, kind),
    }
    call = functools.partial(_pandas, kind, way, reader) if reader else ways[way]
    call(folder / "small")
    began = time.process_time()
    fixed = call(folder / "small")[1]
    fixed = time.process_time() - began - fixed
    _forget_peak()
    before, began, busy = _memory("VmRSS"), time.perf_counter(), time.process_time()
    rounds, busy_rounds = call(folder / "large")
    seconds, busy = time.perf_counter() - began - rounds, time.process_time() - busy - busy_rounds
    return {"seconds": seconds, "rounds": busy_rounds, "busy": busy, "fixed": fixed, "bytes": _memory("VmHWM") - before}


def _memory(entry: str) -> float:
    """Bytes that the system names of this process, by Linux's word for them."""
    words = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024.0 * int(next(line.split()[1] for line in words.splitlines() if line.startswith(f"{entry}:")))


def _forget_peak() -> None:
    """Let the peak of this process be what it has now: that of a small table is none of a large one."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _pandas(kind: str, way: str, reader: str, tables: Path) -> _Spent:
    import pandas

    read = pandas.read_parquet if kind == "parquet" else functools.partial(pandas.read_csv, engine=reader)
    for path in sorted((tables / kind / way).rglob("train.*")):
        read(path)
    return 0.0, 0.0


def _init(folder: Path, kind: str, tables: Path) -> _Spent:
    from fedsw.cli.app import main

    written = str(folder / "drafted.toml")
    named = ["init", str(tables / kind / "clients"), "--from-public", "--target", "ill", "--group", "sex"]
    said = main([*named, "-o", written, "--force"])
    if said:
        raise RuntimeError(f"init ended with {said}")
    return 0.0, 0.0


def _check(folder: Path, kind: str, which: str, tables: Path) -> _Spent:
    from fedsw.cli.app import main

    named = "persons.toml" if which == "persons" else "own.toml"
    said = main(["check", str(folder / named), "--data-dir", str(tables / kind / which), "--no-estimate", "--json"])
    if said:
        raise RuntimeError(f"check ended with {said}")
    return 0.0, 0.0


def _run(folder: Path, kind: str, tables: Path) -> _Spent:
    from fedsw.experiment import load_experiment
    from fedsw.federation.engines.driver import run

    held_out = tables / kind / "held_out" / f"train.{kind}"
    settings = [f"data.data_dir={tables / kind / 'clients'}", f"data.held_out={held_out}"]
    clock = _Clock()
    run(load_experiment(folder / "own.toml", settings), runs=folder / "runs" / str(time.time_ns()), observer=clock)
    return clock.last[0] - clock.began[0], clock.last[1] - clock.began[1]


class _Clock:
    """An observer that notes when rounds begin and end."""

    def started(self, plan: dict[str, object]) -> None:
        """The time."""
        self.began = self.last = time.perf_counter(), time.process_time()

    def round_done(self, record: dict[str, object]) -> None:
        """The time."""
        self.last = time.perf_counter(), time.process_time()

    def finished(self, summary: dict[str, object]) -> None:
        """Nothing."""


def _predict(folder: Path, kind: str, tables: Path) -> _Spent:
    from fedsw.cli.app import main

    trained = next((folder / "trained").rglob("model.safetensors")).parent
    table = tables / kind / "whole" / f"train.{kind}"
    written = str(folder / f"predicted-{tables.name}.csv")
    said = main(["predict", str(trained), str(table), "--output", written, "--force"])  # every turn writes it anew
    if said:
        raise RuntimeError(f"predict ended with {said}")
    return 0.0, 0.0


def _train(folder: Path) -> dict[str, float]:
    """The model that `predict` uses, learnt from the small table."""
    from fedsw.experiment import load_experiment
    from fedsw.federation.engines.driver import run

    run(
        load_experiment(folder / "own.toml", [f"data.data_dir={folder / 'small' / 'csv' / 'clients'}"]),
        runs=folder / "trained",
    )
    return {}


if __name__ == "__main__":
    _folder, _kind, _way, *_reader = sys.argv[1:]
    _found = _train(Path(_folder)) if _way == "train" else _alone(Path(_folder), _kind, _way, "".join(_reader))
    print(json.dumps(_found), flush=True)
    os._exit(0)  # threads of pyarrow may be at work, and end a process that tidies up
