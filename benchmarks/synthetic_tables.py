"""Synthetic tables of Adult at one epsilon: what classifiers learn from them, beside MST, AIM and the real records.

    python -m benchmarks.synthetic_tables --data-dir DATA [--epsilon 1] [--seeds 3] [--methods real sketch sketch-local]
                                          [--sketch public=2000 balance=size generator=tree]
                                          [--python SMARTNOISE/bin/python] [--aim rounds=26 max_model_size=2]
                                          [--minutes 40]

One table of declared columns (all of Adult's but `fnlwgt`, a sampling weight, and `education`,
which `education-num` repeats), 33 916 private records and 11 306 held-out ones, delta = 1e-9. Logistic
regression and gradient boosting learn from as many synthetic rows as there are private records, and are tested on the
held-out real ones; the total variation is that of single columns and of pairs, class included, in the codes of the row.
`--sketch` has settings of tables, `later`, the part of the budget of a second stage, and `public`: so many held-out records, on which then nothing is tested, are declared
public, and numbers are cut at their quantiles. `sketch-local` has ten clients that trust nobody. MST and AIM are those of smartnoise-synth, in an
environment of its own that `--python` names; they get the same codes of columns, so that no budget goes into bounds,
and their epsilon is about a record that is there or not, the weaker promise of the two. `--aim` bounds the work of AIM by
its own settings; settings stand in the row's name; what has not ended after `--minutes` is stopped, and its row says so. Rows
that are in benchmarks/results/synthetic_tables.json already are not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.machine import describe
from fedsw.accounting import Ledger
from fedsw.columns.declaration import Coded, Columns, coded_columns, ranges
from fedsw.data import Records
from fedsw.data.codes import cells_of_table, codes_of, one_hot, records_of_table
from fedsw.data.files import find_data
from fedsw.data.tabular import CATEGORIES, CLASSES, COLUMNS, read_rows
from fedsw.models.tables import TableGenerator
from fedsw.own_data.synthesis import STEPS
from fedsw.single.sketching import plan_sketch, release_sketch
from fedsw.sketches.fit import FitSettings, fit_generator
from fedsw.sketches.law import Law
from fedsw.sketches.noised import NoisedSketch, pooled
from fedsw.sketches.tables import Pairs
from fedsw.sketches.trees import choose, next_pairs
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
    chosen = dict(each.split("=") for each in asked.sketch)
    columns, public = declared(), int(chosen.pop("public", 0))
    private, held_out = adult_table(asked.data_dir, columns)
    if public:
        known = held_out.take(torch.arange(public))
        held_out = held_out.take(torch.arange(public, len(held_out)))
        columns = cut_at_quantiles(columns, known)
    coded = coded_columns(columns, bins=16, group_in_cell=False)
    for seed in range(asked.seeds):
        for method in asked.methods:
            wanted = (method, seed, asked.epsilon, asked.aim if method == "aim" else asked.sketch)
            if any(
                (row["method"], row["seed"], row["epsilon"], row.get("settings", [])) == wanted
                for row in stored["rows"]
            ):
                continue
            if method == "real" and seed:
                continue
            row = _row(method, seed, asked, chosen, private, held_out, columns, coded)
            print(json.dumps(row), flush=True)
            stored["rows"].append(row)
            stored["machine"], stored["private"] = describe(), len(private)
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
    chosen: dict[str, str],
    private: Records,
    held_out: Records,
    columns: Columns,
    coded: tuple[Coded, ...],
) -> dict[str, Any]:
    began = time.process_time()
    extra: dict[str, Any] = {"settings": asked.sketch} if asked.sketch else {}
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
        clients = CLIENTS if method == "sketch-local" else 1
        sketches = sketched(private, coded, chosen, asked.epsilon, seed, clients=clients)
        generator = chosen.get("generator", "network")
        made, extra["from"] = learnt_from(sketches, columns, coded, len(private), seed, generator)
        extra["sigma"] = [round(each.sigma, 3) for each in sketches]
        extra["bytes"] = sum(each.value.numel() for each in sketches) * 8
    spent = extra.pop("seconds", time.process_time() - began)
    found = {
        "method": method,
        "seed": seed,
        "epsilon": asked.epsilon,
        **scores(made, held_out),
        **variation(made, held_out, coded),
        **extra,
    }
    return {**found, "cpu_seconds": round(spent, 1)}


def cut_at_quantiles(columns: Columns, known: Records, parts: int = 12) -> Columns:
    """The declaration with numbers cut at quantiles of public records: a value that many have by itself, others evenly."""
    plain = columns.model_dump(exclude_defaults=True)
    for coded in coded_columns(columns, bins=16, group_in_cell=False):
        number = coded.number
        if number is None or number.low is None or number.high is None:
            continue
        values = (known.features[:, coded.place].double().numpy() * (number.high - number.low) + number.low).round()
        each, count = np.unique(values, return_counts=True)
        many = each[count >= len(values) / parts]
        rest = values[~np.isin(values, many)]
        evenly = max(round(parts * len(rest) / len(values)), 5)
        edges = {*many, *(many + 1), *np.ceil(np.quantile(rest, np.arange(1, evenly) / evenly))}
        feature = next(each for each in plain["features"] if each["name"] == coded.name)
        feature["edges"] = sorted(float(edge) for edge in edges if number.low < edge <= number.high)
    return Columns.model_validate(plain)


def part_of(coded: tuple[Coded, ...], chosen: dict[str, str]) -> Pairs:
    """What is measured, with the settings `singles` and `balance` of a sketch of tables."""
    singles, balance = chosen.get("singles", "0.2"), chosen.get("balance", "equal")
    return Pairs(
        ranges(coded), "auto" if singles == "auto" else float(singles), "size" if balance == "size" else "equal"
    )


def sketched(
    private: Records, coded: tuple[Coded, ...], chosen: dict[str, str], epsilon: float, seed: int, *, clients: int
) -> list[NoisedSketch]:
    """The releases of all records, or of each client's with noise of its own, added up. Nominal: Adult is public.

    One, or, where `later` is a part of the budget, a second one of the pairs that the first one chose.
    """
    later, found = float(chosen.get("later", 0)), list[NoisedSketch]()
    for number, share in enumerate((1 - later, later)):
        if not share:
            continue
        part = part_of(coded, chosen) if not number else replace(part_of(coded, chosen), chosen=next_pairs(found, 15))
        law = Law(ranges(coded)[-1][1], (part,), classes=len(CLASSES), counts=0.01 if number else 0.1)
        sketcher, parts = law.drawn(), []
        for client in range(clients):
            own = private.take(torch.arange(client, len(private), clients))
            whole = plan_sketch(law, records=len(own), delta=DELTA, epsilon=epsilon)
            noise, random = whole.multiplier / share**0.5, seed * clients + client + 10_000 * number
            plan = plan_sketch(law, records=len(own), delta=DELTA, noise_multiplier=noise, seed=random)
            codes = one_hot(codes_of(own, coded), coded)
            with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger.sqlite", plan) as ledger:
                parts.append(release_sketch(sketcher, codes, own.target, plan, ledger))
        found.append(pooled(parts))
    return found


def learnt_from(
    sketches: Sequence[NoisedSketch], columns: Columns, coded: tuple[Coded, ...], rows: int, seed: int, generator: str
) -> tuple[Records, dict[str, Any]]:
    """Rows learnt from the sketch, with the settings of `fedsw synthesize`, and what they were drawn from."""
    wanted: Literal["auto", "network", "tree"] = "auto" if generator == "auto" else "network"
    network = TableGenerator(ranges(coded), len(CLASSES), seed=seed)
    if generator == "tree":
        wanted = "tree"
    else:
        later = [(each, each.law.drawn()) for each in sketches[1:]]
        fit_generator(sketches[0], network, FitSettings(STEPS, 500, seed, 0.005), later=later)
    chosen = choose(sketches, network, wanted=wanted, sketchers=[None] * len(sketches))
    described = {"kind": chosen.kind, **{kind: round(each, 8) for kind, each in chosen.distances.items()}}
    return records_of_table(made_table(network, columns, coded, rows, seed=seed), columns), described


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


def variation(made: Records, held_out: Records, coded: tuple[Coded, ...]) -> dict[str, float]:
    """The mean total variation of single columns and of pairs of them, the class among them."""
    sizes, tables = [*(each.size for each in coded), len(CLASSES)], []
    for records in (made, held_out):
        tables.append(torch.cat([codes_of(records, coded), records.target.unsqueeze(1)], dim=1).numpy())

    def law(codes: Any, columns: Sequence[int]) -> Any:
        place = np.ravel_multi_index([codes[:, k] for k in columns], [sizes[k] for k in columns])
        return np.bincount(place, minlength=int(np.prod([sizes[k] for k in columns]))) / len(codes)

    found = {}
    for name, count in (("one_way", 1), ("two_way", 2)):
        apart = [
            np.abs(law(tables[0], chosen) - law(tables[1], chosen)).sum() / 2
            for chosen in itertools.combinations(range(len(sizes)), count)
        ]
        found[name] = round(float(np.mean(apart)), 4)
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
    parser.add_argument("--sketch", nargs="+", default=[], help="settings of tables, and how many records are public")
    parser.add_argument("--python", type=Path, help="the interpreter of an environment with smartnoise-synth")
    parser.add_argument("--aim", nargs="+", default=["max_model_size=5"], help="whole numbers that AIM is made with")
    parser.add_argument("--minutes", type=float, help="after so many MST or AIM is stopped")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
