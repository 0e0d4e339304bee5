"""Synthetic tables of Adult at one epsilon: what classifiers learn from them, beside MST, AIM and the real records.

    python -m benchmarks.synthetic_tables --data-dir DATA [--epsilon 1] [--seeds 3] [--methods real sketch sketch-local]
                                          [--python SMARTNOISE/bin/python] [--aim rounds=26 max_model_size=2]
                                          [--minutes 40]

One table of declared columns (all of Adult's but `fnlwgt`, a sampling weight, and `education`,
which `education-num` repeats), 33 916 private records and 11 306 held-out ones, delta = 1e-9. Logistic
regression and gradient boosting learn from as many synthetic rows as there are private records, and are tested on the
held-out real ones. `sketch-local` has ten clients that trust nobody. MST and AIM are those of smartnoise-synth, in an
environment of its own that `--python` names; they get the same codes of columns, so that no budget goes into bounds,
and their epsilon is about a record that is there or not, the weaker promise of the two. `--aim` bounds the work of AIM by
its own settings, which stand in the row's name; what has not ended after `--minutes` is stopped, and its row says so. Rows
that are in benchmarks/results/synthetic_tables.json already are not measured again.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.machine import describe
from fedsw.accounting import Ledger
from fedsw.columns.declaration import Coded, Columns, coded_columns, ranges
from fedsw.data import Records
from fedsw.data.codes import cells_of_table, codes_of, one_hot, records_of_table
from fedsw.data.files import find_data
from fedsw.data.tabular import CATEGORIES, CLASSES, COLUMNS, read_rows
from fedsw.models.labelled import VectorGenerator
from fedsw.own_data.synthesis import STEPS
from fedsw.single.sketching import plan_sketch, release_sketch
from fedsw.sketches.fit import FitSettings, fit_generator
from fedsw.sketches.law import Law
from fedsw.sketches.noised import NoisedSketch, pooled
from fedsw.sketches.tables import Pairs
from fedsw.tasks.measures import made_table

RESULT = Path(__file__).parent / "results" / "synthetic_tables.json"
DELTA, CLIENTS = 1e-9, 10
BOUNDS = {
    "age": (17, 90),
    "education-num": (1, 16),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 5_000),
    "hours-per-week": (1, 99),
}
LEFT_OUT = ("fnlwgt", "education", "income")

_THEIRS = """
import sys, time, numpy, pandas
method, seed, epsilon, delta, source, target, *settings = sys.argv[1:]
codes = numpy.load(source)
frame = pandas.DataFrame(codes, columns=[f"c{k}" for k in range(codes.shape[1])])
numpy.random.seed(int(seed))
if method == "mst":
    from snsynth.mst import MSTSynthesizer as Made
    made = Made(epsilon=float(epsilon), delta=float(delta))
else:
    from snsynth.aim import AIMSynthesizer as Made
    chosen = {name: int(number) for name, number in (each.split("=") for each in settings)}
    made = Made(epsilon=float(epsilon), delta=float(delta), **chosen)
began = time.process_time()
made.fit(frame, categorical_columns=list(frame.columns), preprocessor_eps=0.0)
rows = numpy.array(made.sample(len(frame))).astype(int)
numpy.savez(target, rows=rows, seconds=time.process_time() - began)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    stored = json.loads(RESULT.read_text()) if RESULT.exists() else {"rows": []}
    columns = declared()
    private, held_out = adult_table(asked.data_dir, columns)
    coded = coded_columns(columns, bins=16, group_in_cell=False)
    for seed in range(asked.seeds):
        for method in asked.methods:
            wanted = (method, seed, asked.epsilon, asked.aim if method == "aim" else [])
            if any(
                (row["method"], row["seed"], row["epsilon"], row.get("settings", [])) == wanted
                for row in stored["rows"]
            ):
                continue
            if method == "real" and seed:
                continue
            row = _row(method, seed, asked, private, held_out, columns, coded)
            print(json.dumps(row), flush=True)
            stored["rows"].append(row)
            stored["machine"], stored["private"], stored["held_out"] = describe(), len(private), len(held_out)
            RESULT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0


def declared() -> Columns:
    """Adult as somebody's own table: bounds and categories from its documentation."""
    features: list[dict[str, Any]] = []
    for name in COLUMNS:
        if name in BOUNDS:
            low, high = BOUNDS[name]
            features.append({"name": name, "kind": "integer", "low": low, "high": high})
        elif name not in LEFT_OUT:
            features.append({"name": name, "categories": CATEGORIES[name]})
    target = {"name": "income", "values": CLASSES}
    return Columns.model_validate(
        {"features": features, "sensitive": {"name": "sex", "values": CATEGORIES["sex"]}, "target": target}
    )


def adult_table(data_dir: Path, columns: Columns) -> tuple[Records, Records]:
    """Private and held-out records of the split that `fedsw.data.tabular` makes."""
    folder = find_data("adult", data_dir)
    rows = np.array(
        [row for name in ("adult.data", "adult.test") for row in read_rows(folder / name) if row is not None]
    )
    shuffled, cut = np.random.RandomState(100).permutation(len(rows)), round(0.75 * len(rows))

    def records(places: Any) -> Records:
        cells = {}
        for name in columns.names:
            values = rows[places, COLUMNS.index(name)].tolist()
            known = CLASSES if name == "income" else CATEGORIES.get(name)
            cells[name] = [str(value) if known is None else known[value] for value in values]
        return records_of_table(cells, columns)

    return records(np.sort(shuffled[:cut])), records(np.sort(shuffled[cut:]))


def _row(
    method: str,
    seed: int,
    asked: argparse.Namespace,
    private: Records,
    held_out: Records,
    columns: Columns,
    coded: tuple[Coded, ...],
) -> dict[str, Any]:
    began = time.process_time()
    extra: dict[str, Any] = {}
    if method == "real":
        made = private
    elif method in ("mst", "aim"):
        if method == "aim":
            extra["settings"] = asked.aim
        try:
            made, extra["seconds"] = theirs(method, seed, asked, private, columns, coded)
        except subprocess.TimeoutExpired:
            return {
                "method": method,
                "seed": seed,
                "epsilon": asked.epsilon,
                "stopped_after_minutes": asked.minutes,
                "cpu_seconds": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime, 1),
                **extra,
            }
    else:
        sketch = sketched(private, coded, asked.epsilon, seed, clients=CLIENTS if method == "sketch-local" else 1)
        made = learnt_from(sketch, columns, coded, len(private), seed)
        extra["sigma"], extra["bytes"] = round(sketch.sigma, 3), sketch.value.numel() * 8
    spent = extra.pop("seconds", time.process_time() - began)
    found = {"method": method, "seed": seed, "epsilon": asked.epsilon, **scores(made, held_out), **extra}
    return {**found, "cpu_seconds": round(spent, 1)}


def sketched(private: Records, coded: tuple[Coded, ...], epsilon: float, seed: int, *, clients: int) -> NoisedSketch:
    """One release of all records, or one of each client's with noise of its own, added up. Nominal: Adult is public."""
    law = Law(ranges(coded)[-1][1], (Pairs(ranges(coded)),), classes=len(CLASSES), counts=0.1)
    sketcher, parts = law.drawn(), []
    for client in range(clients):
        own = private.take(torch.arange(client, len(private), clients))
        plan = plan_sketch(law, records=len(own), delta=DELTA, epsilon=epsilon, seed=seed * clients + client)
        codes = one_hot(codes_of(own, coded), coded)
        with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger.sqlite", plan) as ledger:
            parts.append(release_sketch(sketcher, codes, own.target, plan, ledger))
    return pooled(parts)


def learnt_from(sketch: NoisedSketch, columns: Columns, coded: tuple[Coded, ...], rows: int, seed: int) -> Records:
    """Rows of a generator that learnt from the sketch, with the settings of `fedsw synthesize`."""
    codes = ranges(coded)
    network = VectorGenerator(codes[-1][1], len(CLASSES), latent=16, hidden=(200, 200), codes=codes, seed=seed)
    fit_generator(sketch, network, FitSettings(STEPS, 500, seed, 0.005))
    return records_of_table(made_table(network, columns, coded, rows, seed=seed), columns)


def theirs(
    method: str, seed: int, asked: argparse.Namespace, private: Records, columns: Columns, coded: tuple[Coded, ...]
) -> tuple[Records, float]:
    """Rows of MST or AIM, from the same codes, and the processor seconds they took; TimeoutExpired after the minutes."""
    if asked.python is None:
        raise SystemExit(f"{method} is of smartnoise-synth: name the interpreter of its environment with --python")
    codes = torch.cat([codes_of(private, coded), private.target.unsqueeze(1)], dim=1)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "codes.npy", Path(folder) / "rows.npz"
        np.save(source, codes.numpy())
        words = [method, seed, asked.epsilon, DELTA, source, target, *(asked.aim if method == "aim" else [])]
        command, seconds = [asked.python, "-c", _THEIRS, *map(str, words)], asked.minutes and 60 * asked.minutes
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=seconds)
        found = np.load(target)
        rows, spent = torch.from_numpy(found["rows"]).to(torch.int64), float(found["seconds"])
    cells = cells_of_table(
        rows[:, :-1], rows[:, -1], torch.zeros(len(rows), dtype=torch.int64), columns, coded, seed=seed
    )
    return records_of_table(cells, columns), spent


def scores(made: Records, held_out: Records) -> dict[str, float]:
    """Accuracy and AUC on held-out records of two classifiers that learnt from made-up ones."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, roc_auc_score

    x, y, found = held_out.features.numpy(), held_out.target.numpy(), {}
    for name, model in (
        ("logistic", LogisticRegression(max_iter=300)),
        ("boosting", HistGradientBoostingClassifier(random_state=0)),
    ):
        model.fit(made.features.numpy(), made.target.numpy())
        found[f"{name}_accuracy"] = round(float(accuracy_score(y, model.predict(x))), 4)
        found[f"{name}_auc"] = round(float(roc_auc_score(y, model.predict_proba(x)[:, 1])), 4)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synthetic_tables")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=("real", "sketch", "sketch-local", "mst", "aim"),
        default=["real", "sketch", "sketch-local"],
    )
    parser.add_argument("--python", type=Path, help="the interpreter of an environment with smartnoise-synth")
    parser.add_argument("--aim", nargs="+", default=["max_model_size=5"], help="whole numbers that AIM is made with")
    parser.add_argument("--minutes", type=float, help="after so many MST or AIM is stopped")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
