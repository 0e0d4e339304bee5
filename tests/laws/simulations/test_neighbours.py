"""The law of neighbours side by side: given equal releases, nothing that a run leaves or says tells them apart.

The door is made to hand out the same numbers whatever it was given, as it may by chance. Whatever else the two runs
write, print, log or send then follows from what the run's own sentence says is public, so it has to be equal, byte for
byte, but for times.
"""

from __future__ import annotations

import datetime
import itertools
import json
import logging
import math
import re
import shutil
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

from fedsw.audit.record import audit
from fedsw.cli.app import main
from fedsw.data import as_records, sources
from fedsw.desk.planning import search
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.federation import messages
from fedsw.federation.engines import deployed, driver
from fedsw.federation.engines.driver import run
from fedsw.federation.messages.codec import Broadcast, Seen, fields_of
from fedsw.federation.node.own_ledger import KEY_FILE
from fedsw.federation.server.summary import within
from fedsw.federation.trust.distributed import site
from fedsw.privacy import release
from fedsw.privacy.accounting import ledger as ledgers
from fedsw.privacy.accounting.lifetime import dataset_account as accounts
from fedsw.privacy.masks import whole_steps
from fedsw.privacy.mechanisms import spacing
from fedsw.runs.run_files import RunFile
from tests.federation.sketch_runs import sketched
from tests.federations import Federation

TIMES = frozenset({"seconds", "begun", "date", "time", "operator_only"})
"""Keys whose values are times: how long a run takes in all is published, and no guarantee is about it."""

READ = ("progress", "summary", "ledger")
ROWS, CLIENTS = 48, 2
CLASSES = {"sensitive": {"name": "sex", "values": ["f", "m"]}, "target": {"name": "income", "values": ["low", "high"]}}
NUMBERS = {"sensitive": CLASSES["sensitive"], "targets": [{"name": "y", "low": 0, "high": 1}]}
FOUR = {"features": [{"name": f"x{place}", "low": 0, "high": 1} for place in range(4)]}
MATCHED = {"penalty": "distribution-matching", "alpha": 1.0}
GENERATOR = {"model": {"kind": "generator", "latent": 2, "hidden": [4]}, "objective": {"task": "generation", **MATCHED}}
WAVES = {
    "model": {"kind": "vector-generator", "latent": 2, "hidden": [4]},
    "objective": {"task": "synthesis", **MATCHED},
    "sketch": {"bandwidths": [0.5], "pairs": 6, "batch": 20, "generated": 50, "groups": True},
}
TABLE = {
    **WAVES,
    "model": {"kind": "table-generator", "latent": 2, "hidden": [4]},
    "sketch": {"kind": "table", "bins": 3, "batch": 20, "generated": 50},
}
DESCRIBED = {
    **TABLE,
    "sketch": {
        **{"kind": "table", "crossed": "class", "singles": 0.7, "balance": "codes", "bins": 5, "labels": False},
        "batch": 20,
    },
}
PERSONS = ("data.unit=who",)
KEPT = ("data.held_out_fraction=0.25", "data.held_out_to=everybody")
BY_GROUP = ("partition.scheme=group",)
BY_LABEL = ("partition.scheme=dirichlet", "partition.by=target")
ODDS = ("objective.penalty=equality-of-odds",)


@dataclass(frozen=True)
class Case:
    """A trust model with a task, and what of a record its sentence says is public.

    `whole` is one table for all clients, which the run deals; `unit` makes all rows of a person one unit; a run with
    `held_out` records measures its model on them.
    """

    trust: str
    task: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=lambda: {**FOUR, **CLASSES})
    public: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    seeded: bool = False
    whole: bool = False
    unit: bool = False
    held_out: bool = True


def _cases() -> Iterator[tuple[str, Case]]:
    """What is asked for by name below, and what differs in more than a name of a registry; those are walked beside."""
    yield "central, classification", Case("central", public=("sex",))
    yield "central, kept records", Case("central", public=("sex",), overrides=KEPT)
    yield "central, preset", Case("central", public=("sex",), overrides=("training.preset=auto",))
    yield "central, stratified", Case("central", public=("sex",), overrides=("privacy.sampling=stratified",))
    yield "local-gradient, classification", Case("local-gradient", public=("sex",))
    yield "local-gradient, odds", Case("local-gradient", public=("sex", "income"), overrides=ODDS)
    both = Case("local-gradient", public=("sex",), overrides=(*PERSONS, *KEPT), unit=True)
    yield "local-gradient, persons and kept records", both
    for trust in ("none", "central", "local-gradient"):
        yield f"{trust}, no penalty", Case(trust, public=("sex",), overrides=("objective.alpha=0.0",))
        yield f"{trust}, dealt by group", Case(trust, public=("sex",), overrides=BY_GROUP, whole=True)
    for trust, task, public in (("central", {}, ("sex",)), ("sketch-local", WAVES, ())):
        yield f"{trust}, account", Case(trust, task, public=public, overrides=("data.account=clinic",))
    for trust in ("local-slices", "local-release"):
        yield f"{trust}, generation", Case(trust, GENERATOR, seeded=True)
    for trust in ("sketch", "sketch-local", "distributed"):
        yield f"{trust}, waves", Case(trust, WAVES)
        yield f"{trust}, table", Case(trust, TABLE)
        yield f"{trust}, describe", Case(trust, DESCRIBED, held_out=False)
    for trust in ("sketch", "sketch-local"):
        yield f"{trust}, one table for all", Case(trust, TABLE, whole=True)


def _masked() -> Iterator[tuple[str, Case]]:
    """Nobody is trusted: all that leaves is in masked sums, of one batch in both runs, so that they can be compared."""
    both = {"trust": "distributed", "seeded": True}
    parity = {**both, "public": ("sex",)}
    yield "distributed, odds", Case(**both, public=("sex", "income"), overrides=ODDS)
    several = ("objective.also=[{penalty='equality-of-odds', weight=0.2}]",)
    yield "distributed, several penalties", Case(**both, public=("sex", "income"), overrides=several)
    own = ("objective.penalty=tests.federation.penalties:Fair",)
    yield "distributed, a penalty of one's own", Case(**both, public=("sex", "income"), overrides=own)
    yield "distributed, no penalty", Case(**parity, overrides=("objective.alpha=0.0",))
    yield "distributed, kept records", Case(**parity, overrides=KEPT)
    yield "distributed, account", Case(**parity, overrides=("data.account=clinic",))
    yield "distributed, preset", Case(**parity, overrides=("training.preset=auto",))
    yield "distributed, bins", Case(**parity, overrides=("local.bins=auto",))


CASES = dict([*_cases(), *_masked()])
QUICK = (
    *("central, kept records", "local-gradient, odds", "local-slices, generation"),
    "local-gradient, persons and kept records",
    *("distributed, odds", "distributed, kept records"),
    *("local-release, generation", "sketch, waves", "sketch, one table for all", "sketch-local, table"),
)
"""One for every trust model that promises something, and what the others do not have; the rest is in the slow stage."""


def table(case: Case) -> pd.DataFrame:
    """Records of every column that a case may declare."""
    rng = np.random.default_rng(3)
    (first, *_), count = case.columns["features"], len(case.columns["features"])
    found = pd.DataFrame(rng.uniform(size=(ROWS, first.get("count", count))).round(3))
    found.columns = [f"x{place}" for place in found.columns]
    found["sex"] = np.array(["f", "m"])[np.arange(ROWS) // 2 % 2]
    found["income"] = np.array(["low", "high"])[np.arange(ROWS) // 4 % 2]
    found["who"] = [f"p{place // 2}" for place in range(ROWS)]
    found["y"], found["digit"] = rng.uniform(size=ROWS).round(3), (np.arange(ROWS) % 10).astype(str)
    return found


def neighbour(records: pd.DataFrame, case: Case) -> pd.DataFrame:
    """The same with one record replaced by the farthest that leaves what is public; or a person, who has a row more."""
    other, rows = records.copy(), [4, 5] if case.unit else [5]
    for name in other.columns:
        if name.startswith("x"):
            other.loc[rows, name] = 1.0 if other.loc[5, name] < 0.5 else 0.0
    for name, value in {"sex": "m", "income": "low", "y": 1.0, "digit": "9"}.items():
        if name not in case.public:
            assert other.loc[5, name] != value
            other.loc[rows, name] = value
    return pd.concat([other[:6], other[5:]], ignore_index=True) if case.unit else other


def parts(records: pd.DataFrame) -> list[pd.DataFrame]:
    """What each client holds: whole persons, and as many rows of others in every table."""
    first = records["who"].str.slice(1).astype(int) < ROWS // 2 // CLIENTS
    return [records[first], records[~first]]


def settings(case: Case) -> dict[str, Any]:
    epsilon = math.inf if case.trust == "none" else 4.0
    batch = 1.0 if case.trust == "distributed" else 0.25  # so that the replaced record is in every masked sum
    return {
        "name": "neighbours",
        "data": {"source": "object", "columns": case.columns},
        "training": {"rounds": 2, "learning_rate": 0.05, "batch_fraction": batch},
        **({} if case.task.get("objective", {}).get("task") == "synthesis" else {"slicing": {"directions": 6}}),
        "federation": {"clients": CLIENTS, "timeout": 20.0},
        "privacy": {"trust": case.trust, "epsilon": epsilon, "delta": 1e-5},
        "seed": 7 if case.seeded else None,
        **case.task,
    }


def same_numbers(value: torch.Tensor, scale: float, mechanism: str, stream: Any) -> torch.Tensor:
    """What leaves in both runs: numbers of the noise's size, on its grid, that were drawn long ago."""
    drawn = torch.randn(value.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    scale = scale or 0.01
    return (scale * drawn / spacing(scale)).round() * spacing(scale)


@dataclass
class Left:
    """What a run left: its files, what commands print of it, what it logged, and what may be seen of its messages.

    Of masked sums also what was `summed` before it had noise: the part, its values, and how far a record may move it.
    """

    files: dict[str, Any]
    printed: dict[str, Any]
    logged: list[str]
    sent: list[Any]
    summed: list[tuple[str, torch.Tensor, float]]


@pytest.fixture
def leave(monkeypatch, tmp_path, caplog, capsys) -> Callable[[Case, pd.DataFrame], Left]:
    sent: list[Any] = []
    summed: list[tuple[str, torch.Tensor, float]] = []
    nonces = itertools.count()
    strangers: set[threading.Thread] = set()  # clients that hung in another test, and may answer now
    secret = {Seen.SECRET}
    encode, load = messages.encode, sources._load

    def seen(message, terms):
        if threading.current_thread() in strangers:
            return encode(message, terms)
        for name, each in fields_of(type(message)).items():
            if each.seen not in secret and name != "nonce":
                sent.append((type(message).__name__, name, listed(getattr(message, name))))
        return encode(message, terms)

    def digits(spec, *rest):  # which every machine has, in place of the public images of an adaptation
        return load(spec.model_copy(update={"source": "digits"}) if spec.source == "mnist" else spec, *rest)

    def same_share(bounded, paid, name, share, mask, stream):
        parts = [release._leaving(bounded, each, name) for each in paid]
        exact = bounded._take().nan_to_num(0.0, share.most, -share.most).clamp(-share.most, share.most)
        summed.append((name, exact.clone().reshape(-1), min(part.sensitivity for part in parts)))
        scale = share.scale(parts[0].scale)
        return whole_steps(same_numbers(exact, scale, "gaussian", stream), share.step) + mask

    monkeypatch.setattr(release, "_noised", same_numbers)
    monkeypatch.setattr(site, "release_share", same_share)
    monkeypatch.setattr(site, "os", SimpleNamespace(urandom=lambda count: next(nonces).to_bytes(count)))
    monkeypatch.setattr(messages, "encode", seen)
    monkeypatch.setattr(sources, "_load", digits)
    monkeypatch.setattr(ledgers, "uuid4", lambda: uuid.UUID(int=1))
    monkeypatch.setattr("secrets.token_hex", lambda count: "ab" * count)
    monkeypatch.setattr(accounts, "uuid4", lambda: uuid.UUID(int=2))
    monkeypatch.setattr(accounts, "datetime", Mock(datetime=Mock(now=Mock(return_value=datetime.datetime(2026, 1, 1)))))

    directory, accounts_of_run = tmp_path / "run", tmp_path / "accounts"  # of one place: paths are written down
    monkeypatch.setattr(driver, "fresh_folder", lambda folder: directory)
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(accounts_of_run))

    def left(case: Case, records: pd.DataFrame, *, shown: bool = True) -> Left:
        nonlocal nonces
        nonces = itertools.count()
        sent.clear(), summed.clear(), caplog.clear()
        strangers.update(set(threading.enumerate()) - {threading.current_thread()})
        caplog.set_level(logging.DEBUG, logger="fedsw")
        whole = parse_experiment(settings(case), case.overrides)
        if whole.privacy.hides_sizes:
            secret.add(Seen.COUNTED)
        held_out = (
            None
            if whole.data.held_out_released or not case.held_out
            else table(case).assign(x0=0.123, who=[f"other{place}" for place in range(ROWS)])
        )
        data = records if case.whole else parts(records)
        for place in (directory, accounts_of_run):
            shutil.rmtree(place, ignore_errors=True)
        run(whole, data=data, held_out=held_out)
        printed = {}
        views = (("card",), *(each for name in READ for each in ((name,), (name, "--json"))))
        for command in views if shown else ():
            main(["show", str(directory), *command])
            printed[" ".join(command)] = _printed(capsys.readouterr().out, directory)
        if whole.objective.task == "synthesis" and whole.sketch.kind == "table" and case.held_out:
            main(["synthesize", str(directory), "-o", str(tmp_path / "made.csv"), "--rows", "9", "--quiet"])
            capsys.readouterr()
            printed |= {suffix: (tmp_path / f"made.{suffix}").read_text() for suffix in ("csv", "md")}
        assert not shown or audit(directory, ["tests.federation.penalties"]).passed
        logged = [without_times(record.getMessage(), directory) for record in caplog.records]
        return Left(contents(directory) | contents(accounts_of_run), printed, logged, list(sent), list(summed))

    return left


def listed(value: Any) -> Any:
    """A field of a message, to be compared."""
    if isinstance(value, Broadcast):
        value = value.tensor()
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.tolist())
    return [listed(each) for each in value] if isinstance(value, tuple | list) else value


def contents(directory: Path) -> dict[str, Any]:
    """Every file of a run: as it is, but for times, and rows of ledgers in place of the pages that SQLite keeps."""
    return {
        str(path.relative_to(directory)): _content(path, directory)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def _content(path: Path, directory: Path) -> Any:
    if path.suffix == ".sqlite":
        with sqlite3.connect(path) as database:
            return list(database.iterdump())
    if path.suffix == ".digest" or path.name == KEY_FILE:  # of the records, under a client's own key: neither leaves it
        return len(path.read_bytes())
    if path.name == RunFile.ROLL:
        return _called(json.loads(path.read_text())["clients"])
    if path.suffix == ".json":
        return _timeless(json.loads(path.read_text()), directory)
    if path.suffix == ".jsonl":
        lines = [_timeless(json.loads(line), directory) for line in path.read_text().splitlines()]
        rolls = [line for line in lines if line.get("event") == "roll call"]
        return [*_called(rolls), *(line for line in lines if line not in rolls)]
    return without_times(path.read_text(), directory) if path.suffix == ".md" else path.read_bytes()


def _called(lines: list[dict[str, Any]]) -> list[str]:
    """A roll call without numbers of nodes, clocks, and who was first."""
    return sorted(json.dumps({key: line[key] for key in line if key not in ("node", "clock")}) for line in lines)


def _timeless(value: Any, directory: Path) -> Any:
    if isinstance(value, dict):
        return {key: "a time" if key in TIMES else _timeless(each, directory) for key, each in value.items()}
    if isinstance(value, list):
        return [_timeless(each, directory) for each in value]
    return without_times(value, directory) if isinstance(value, str) else value


def without_times(text: str, directory: Path) -> str:
    """Words without the run's own place, dates and durations."""
    text = text.replace(str(directory), "RUN")
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+\d\d:\d\d|Z)?", "WHEN", text)
    return re.sub(r"(\d+ min )?[\d.]+ s( a round \(for the operator, not for publication\))?", "so long", text)


def _printed(text: str, directory: Path) -> Any:
    """What a command printed, whole words or JSON."""
    if text.startswith("{"):
        return _timeless(json.loads(text), directory)
    return [" ".join(line.split()) for line in without_times(text, directory).splitlines()]


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in CASES]
)
def test_neighbours_leave_the_same_in_every_file_line_and_message_but_what_was_noised(leave, name):
    case = CASES[name]
    records = table(case)
    require_the_same(case, leave(case, records), leave(case, neighbour(records, case)))


def require_the_same(case: Case, one: Left, other: Left) -> None:
    """Nothing that two runs left tells them apart, and masked sums are no farther apart than what was charged."""
    assert one.files.keys() == other.files.keys()
    for path, content in one.files.items():
        assert content == other.files[path], path
    for command, printed in one.printed.items():
        assert printed == other.printed[command], command
    assert one.logged == other.logged and one.sent == other.sent
    assert "model.safetensors" in one.files and "summary.json" in one.files and len(one.sent) > 0
    assert bool(one.summed) == (case.trust == "distributed")
    require_within_the_charge(one, other)


def require_within_the_charge(one: Left, other: Left) -> None:
    """Given equal sums before, no masked sum of the neighbours is farther apart than what was charged for it."""
    moved = []
    for (name, before, most), (same, after, again) in zip(one.summed, other.summed, strict=True):
        assert (name, before.shape, most) == (same, after.shape, again)
        moved.append(float(torch.linalg.vector_norm(before - after)) / most)
        assert moved[-1] <= 1 + 1e-9, f"{name} moves by {moved[-1]:.6g} times what is charged"
    assert not moved or max(moved) > 0, "the replaced record is in no sum"


@pytest.mark.parametrize(
    ("name", "overrides", "told"),
    [
        ("sketch, table", BY_GROUP, "group"),
        ("sketch-local, waves", ("partition.scheme=dirichlet",), "group"),
        ("sketch, waves", BY_LABEL, "label"),
        ("central, classification", BY_LABEL, "label"),
        ("local-gradient, classification", BY_LABEL, "label"),
        ("local-slices, generation", BY_LABEL, "label"),
    ],
)
def test_own_records_are_dealt_to_clients_by_nothing_that_the_guarantee_covers(name, overrides, told):
    words = f"chooses a record's client by its {told}, .*would tell {told}s, which the guarantee .* covers: use 'iid'"
    with pytest.raises(ExperimentError, match=words):
        parse_experiment(settings(CASES[name]), [*CASES[name].overrides, *overrides])


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("central, classification", (), "replacement of one record within its group)"),
        ("central, classification", BY_GROUP, "replacement of one record within its group)"),
        ("local-gradient, classification", ODDS, "replacement of one record within its group and label)"),
        ("central, classification", (*ODDS, *BY_LABEL), "replacement of one record within its group and label)"),
        ("sketch, waves", (), "replacement of one record, its label and group included)"),
        ("sketch-local, waves", (), "replacement of one record, its label and group included)"),
    ],
)
def test_the_sentence_says_what_of_a_record_stays(name, overrides, words):
    case = CASES[name]
    experiment = parse_experiment(settings(case), [*case.overrides, *overrides])
    assert f"replacement of one record{within(experiment)})" == words


@pytest.mark.parametrize(
    ("overrides", "words", "relation"),
    [
        ((), "replacement of one record, its label and group included)", "replace-one, label and group included"),
        (BY_GROUP, "replacement of one record within its group)", "replace-one"),
        (BY_LABEL, "replacement of one record within its label)", "replace-one"),
    ],
)
def test_records_of_a_named_data_set_that_are_dealt_by_label_or_group_are_not_claimed_to_hide_it(
    tmp_path, overrides, words, relation
):
    experiment = sketched("training.rounds=1", *overrides)
    guarantee = Federation(tmp_path).run(experiment, directory=tmp_path / "run")["guarantee"]
    assert words in guarantee["statement"] and guarantee["relation"] == relation
    told = experiment.partition.tells
    assert (f"each record's {told}, by which its client was chosen" in guarantee["public"]) == (told is not None)
    assert "the number of every client's records" in guarantee["public"]
    assert audit(tmp_path / "run").passed


def test_what_is_public_of_own_records_is_named_in_the_guarantee(leave, tmp_path):
    case = CASES["sketch, table"]
    public = leave(case, table(case)).files["summary.json"]["guarantee"]["public"]
    assert public == ["the columns with their bounds, groups and classes", "the number of every client's records"]


@pytest.mark.parametrize("name", ["central, classification", "sketch, waves", "sketch-local, waves"])
@pytest.mark.parametrize("declared", [True, False])
def test_which_groups_and_classes_occur_is_public_by_the_sentence_where_nobody_declared_them(tmp_path, name, declared):
    case = CASES[name]
    lists = {"groups": ["f", "m"], "classes": ["low", "high"]} if declared else {}
    asked = {**settings(case), "data": {"source": "object"}, "seed": 7}
    features = case.columns["features"]
    data = as_records(table(case), features=features, group="sex", target="income", **lists)
    guarantee = run(parse_experiment(asked), data=data, runs=tmp_path).summary["guarantee"]
    (folder,) = (tmp_path / "neighbours").iterdir()
    told = "Public, for nobody declared it and it was read off the records: which classes and groups occur."
    assert (told in guarantee["statement"]) == (not declared)
    occur = "which classes and groups occur among the records, which nobody declared"
    assert (occur in guarantee["public"]) == (not declared)
    assert audit(folder).passed
    summary = json.loads((folder / "summary.json").read_text())
    summary["guarantee"]["statement"] = guarantee["statement"].replace(told, "")
    (folder / "summary.json").write_text(json.dumps(summary))
    assert audit(folder).passed == declared


def test_what_is_planned_and_searched_for_a_sketch_knows_the_number_of_records_alone(tmp_path, monkeypatch, capsys):
    case, asked = CASES["sketch, table"], []
    monkeypatch.setattr(search, "score_on_twins", lambda sizes, metric, sign: asked.append(sizes) or (lambda each: 0.0))

    def shown(own: pd.DataFrame) -> tuple[Any, ...]:
        raw = {**settings(case), "data": written(own, case, tmp_path / "data")}
        (tmp_path / "own.toml").write_text("\n".join(f"{name} = {_toml(raw[name])}" for name in raw if raw[name]))
        assert main(["plan", str(tmp_path / "own.toml"), "--json"]) == 0
        plan = capsys.readouterr().out
        assert main(["tune", str(tmp_path / "own.toml"), "--try", "sketch.bins=3,4", "--metric", "-sw2", "--json"]) == 0
        return plan, capsys.readouterr().out, asked.pop()

    records = table(case)
    one, other = shown(records), shown(neighbour(records, case))
    assert one == other and "groups of one size are assumed" in one[0]


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    return "[" + ", ".join(map(_toml, value)) + "]" if isinstance(value, list) else json.dumps(value)


def written(records: pd.DataFrame, case: Case, folder: Path) -> dict[str, Any]:
    """A file for each client in the folder, and the section [data] that reads them."""
    for client, part in enumerate(parts(records)):
        (folder / str(client)).mkdir(parents=True, exist_ok=True)
        part.drop(columns=["who", "y", "digit"]).to_csv(folder / str(client) / "own.csv", index=False)
    return {"source": "files", "data_dir": str(folder), "columns": case.columns}


OF_THE_RELEASE = frozenset(
    {
        *("held_out", "held_out_by_group", "held_out_standard_errors", "distance"),
        *("snr", "gradient_norm", "signal_to_noise"),
        "generator",  # of a table: network or tree, whichever is nearer to the released sketch
    }
)
"""Keys of what is computed from the release alone, which differs as noised numbers do."""


@pytest.mark.slow
def test_real_processes_on_neighbours_leave_the_same_but_what_was_noised(tmp_path, monkeypatch, capsys):
    """What other trust models leave is written by the same functions as in one process, which are tried above."""
    case = CASES["central, classification"]
    records, removed = table(case), shutil.rmtree

    def keep_logs(path, *arguments, **options):
        if Path(path, "logs").exists():
            shutil.copytree(Path(path, "logs"), tmp_path / "logs")
        removed(path, *arguments, **options)

    def left(own: pd.DataFrame) -> dict[str, Any]:
        for name in ("data", "logs", "runs"):
            removed(tmp_path / name, ignore_errors=True)
        raw = {**settings(case), "data": written(own, case, tmp_path / "data"), "seed": 7}
        raw["federation"]["timeout"] = 600.0
        asked = tmp_path / "own.toml"
        asked.write_text("\n".join(f"{key} = {_toml(value)}" for key, value in raw.items()))
        assert main(["deploy", "local", str(asked), "--runs", str(tmp_path / "runs"), "--quiet"]) == 0
        (directory,) = (tmp_path / "runs" / "neighbours").iterdir()
        files = contents(directory)
        found = {_anonymous(path, directory): _without_release(path, files[path]) for path in files}
        found |= {path.name: _log(path, directory) for path in (tmp_path / "logs").iterdir()}
        for client in range(CLIENTS):
            main(["show", str(directory / "nodes" / str(client)), "client"])
            status = _anonymous(capsys.readouterr().out, directory)
            found[f"status of {client}"] = " ".join(status.split())  # columns are as wide as a duration
        return found

    monkeypatch.setattr(deployed.shutil, "rmtree", keep_logs)
    monkeypatch.setenv("COLUMNS", "500")  # no path is broken into lines
    one, other = left(records), left(neighbour(records, case))
    assert one.keys() == other.keys() and "run.log" in one and "client0.log" in one
    assert [(name, content, other[name]) for name, content in one.items() if content != other[name]] == []


def _without_release(path: str, content: Any) -> Any:
    """A file without what was noised, which has the same size, and without numbers that name runs and processes."""
    if path.endswith((".safetensors", ".pt", ".npz")):
        return len(content)
    if path.endswith(".lock"):
        return "a process"
    if path.endswith((".png", "-wal", "-shm")):
        return "what is compared in another form: numbers of the release, rows of the database"
    if isinstance(content, dict):
        return {key: _without_release("", each) for key, each in content.items() if key not in OF_THE_RELEASE}
    if isinstance(content, list):
        return [_without_release("", each) for each in content]
    text = content.decode() if isinstance(content, bytes) else content
    return _anonymous(text, Path("runs")) if isinstance(text, str) else text


def _log(path: Path, directory: Path) -> set[str]:
    """A process's lines with a number in them; how often it looks for work is a matter of time."""
    lines = re.sub("\x1b\\[[0-9;]*m", "", _anonymous(path.read_text(), directory)).splitlines()
    return {line for line in lines if re.search(r"\d", line)}


def _anonymous(text: str, directory: Path) -> str:
    text = without_times(text, directory)
    text = re.sub(r"127\.0\.0\.1:\d+|process \[\d+\]|bundle-\w+|\d{8}-\d{6}", "PROCESS", text)
    return re.sub(r"[0-9a-f]{16,}|\b[0-9a-f]{8}\b|\d{15,}", "NUMBER", text)
