"""Laws of runs whose unit is a person: everything that is said counts persons, and the audits agree."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedsw._tools.randomness import Stream
from fedsw.audit import canary, one_run
from fedsw.audit.record import audit as recomputed
from fedsw.cli.app import main
from fedsw.data import BadRecords, as_records
from fedsw.data.units import Units
from fedsw.desk.use.trained import load
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.federation.node import replies as nodes
from fedsw.federation.node.held_records import Held
from fedsw.federation.node.node import Node
from fedsw.federation.server import settling as preset
from fedsw.federation.trust.round_plan import make_plan
from fedsw.federation.trust.sums_once import SUMS, Sum
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.relations import ADD_OR_REMOVE
from tests.federations import sites_of

COLUMNS = {
    "features": [{"name": f"x{place}"} for place in range(5)],
    "sensitive": {"name": "sex", "values": ["female", "male"]},
    "target": {"name": "income", "values": ["low", "high"]},
}


def experiment(*overrides: str, **data) -> Experiment:
    raw = {
        "name": "visits",
        "data": {"source": "object", "columns": COLUMNS, "unit": "patient", **data},
        "training": {"rounds": 3, "batch_fraction": 0.5},
        "privacy": {"noise_multiplier": 2.0, "delta": "1/n^2"},
        "federation": {"clients": 2},
    }
    return parse_experiment(raw, overrides)


def visits(persons: int = 40, *, seed: int = 0, prefix: str = "p") -> pd.DataFrame:
    """Persons of one to four visits, and one of fifty, in no order."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 5, persons)
    counts[0] = 50
    who = rng.permutation(np.repeat(np.arange(persons), counts))
    frame = pd.DataFrame(rng.normal(size=(len(who), 5)).round(3), columns=[f"x{place}" for place in range(5)])
    frame["sex"] = np.array(["female", "male"])[who % 2]
    frame["income"] = np.array(["low", "high"])[rng.integers(0, 2, len(who))]
    frame["patient"] = [f"{prefix}{number}" for number in who]
    return frame


@pytest.mark.parametrize("trust", ["central", "local-gradient"])
def test_sizes_delta_and_the_sentence_of_a_run_are_those_of_persons_and_its_audit_passes(tmp_path, trust, capsys):
    found = run(experiment(f"privacy.trust={trust}"), data=visits(), runs=tmp_path)
    plan = json.loads((found.directory / "plan.json").read_text())
    guarantee = found.summary["guarantee"]
    assert sorted(plan["groups"].values()) == [20, 20] and found.summary["delta"] == 40.0**-2
    assert guarantee["unit"] == "patient" and "replacement of all records of one 'patient'" in guarantee["statement"]
    assert guarantee["protects"].startswith("each 'patient' of every client, with all of its records")
    config = json.loads((found.directory / "config.json").read_text())
    assert [each["records"] for each in config["experiment"]["data"]["objects"]] == [40]
    assert recomputed(found.directory).passed
    capsys.readouterr()
    assert main(["show", str(found.directory), "ledger", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unit"] == "patient"
    assert main(["show", str(found.directory), "ledger"]) == 0
    assert "all records of one 'patient'" in " ".join(capsys.readouterr().out.split())


def test_a_run_of_persons_who_come_or_go_says_so_everywhere_and_tells_nowhere_how_many_they_are(tmp_path, capsys):
    """A person that comes or goes is all of her rows: of 40 persons none is counted, and a batch has a row of each."""
    asked = experiment(*ADDED, "privacy.moments=0.2", "calibration.share=0.2")
    found = run(asked, data=visits(), runs=tmp_path)
    plan, guarantee = json.loads((found.directory / "plan.json").read_text()), found.summary["guarantee"]
    assert sum(plan["groups"].values()) == 50 and found.summary["delta"] == 50.0**-2 and guarantee["unit"] == "patient"
    for words in ("addition or removal of all records of one 'patient'", "declared number of different 'patient', 50"):
        assert words in guarantee["statement"]
    assert "at each client by itself" in guarantee["statement"] and recomputed(found.directory).passed
    assert not any("which 'patient' there are" in fact for fact in guarantee["public"])
    capsys.readouterr()
    assert main(["show", str(found.directory), "ledger"]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    assert "for the addition or removal of all records of one 'patient', at each client by itself" in screen


def test_a_person_who_goes_with_all_her_rows_moves_every_sum_by_at_most_the_bound_of_one_record():
    """Others have equal rows, so that whichever is drawn, the sums without her differ by her row alone."""
    task = Problem.from_experiment(experiment(*ADDED, "privacy.moments=0.2", "thresholds.share=0.2"))
    frame = visits(30)
    others = frame.groupby("patient").transform("first").assign(patient=frame["patient"])
    gone = others["patient"] == "p0"  # who has fifty rows
    plan = make_plan(task, sites_of((9,)))
    for part in ("moments", "scores"):
        total = SUMS[part].at(task, 0, torch.zeros(task.parameters).double())
        moved = float((_summed(total, others) - _summed(total, others[~gone])).norm())
        bound = total.budget(plan.delta, plan.shares).sensitivity
        assert 0.3 * bound.value < moved <= bound.value and bound.relation == ADD_OR_REMOVE


def _summed(total: Sum, frame: pd.DataFrame) -> torch.Tensor:
    records = as_records(frame, group="sex", target="income", unit="patient")
    node = Node.of(
        total.task, Held(records, np.zeros(len(records), dtype=np.int64), np.zeros(1, dtype=np.int64)), "law"
    )
    return total.steps(node, [0], Stream.secure()).double() * total.step


def test_the_audit_of_a_run_refuses_a_sentence_about_another_unit(tmp_path):
    found = run(experiment(), data=visits(), runs=tmp_path)
    path = found.directory / "summary.json"
    written = path.read_text()
    path.write_text(written.replace("all records of one 'patient'", "one record"))
    assert not recomputed(found.directory).passed
    path.write_text(written.replace('"unit": "patient"', '"unit": "record"'))
    assert not recomputed(found.directory).passed
    path.write_text(written.replace(", at each client by itself", ""))
    assert not recomputed(found.directory).passed
    path.write_text(written)
    assert recomputed(found.directory).passed


@pytest.mark.parametrize("trust", ["central", "local-gradient"])
def test_whatever_says_the_guarantee_of_persons_says_at_each_client(tmp_path, trust, capsys):
    """Nobody can see whether a person is at two clients too, who then has less than epsilon says."""
    found = run(experiment(f"privacy.trust={trust}"), data=visits(), runs=tmp_path)
    apart = "replacement of all records of one 'patient' within its group, at each client by itself"
    assert apart in found.summary["guarantee"]["statement"]
    assert "protected less against all of them together" in found.summary["guarantee"]["protects"]
    short = "all records of one 'patient', at each client by itself"
    for what, said in (("summary", apart), ("ledger", short), ("progress", short)):
        capsys.readouterr()
        assert main(["show", str(found.directory), what]) == 0
        assert said in " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert main(["show", str(found.directory), "card"]) == 0
    assert apart in " ".join((found.directory / "card.md").read_text().split())
    assert apart in load(found.directory).guarantee
    alone = run(experiment(unit=None), data=visits().drop(columns="patient"), runs=tmp_path / "records")
    assert "at each client" not in alone.summary["guarantee"]["statement"]


def two_clients(shared: int) -> list[pd.DataFrame]:
    """Two tables of forty persons, of whom so many have rows in both."""
    other = visits(seed=1, prefix="q")
    number = other["patient"].str.removeprefix("q").astype(int)
    other["patient"] = other["patient"].where(number >= shared, "p" + number.astype(str))
    return [visits(), other]


def test_persons_at_two_clients_are_refused_wherever_one_process_sees_both(tmp_path):
    said = r"3 values of 'patient' have rows at several clients: 3 at clients 0 and 1\. .* give them to one client"
    frames = two_clients(3)
    for sites in (1, 2):
        asked = experiment(f"federation.sites={sites}")
        with pytest.raises(BadRecords, match=said):
            run(asked, data=frames, runs=tmp_path / "runs")
        with pytest.raises(BadRecords, match=said):
            run(asked, data=lambda client, clients: frames[client], runs=tmp_path / "runs")
    folder = tmp_path / "data"
    for client, frame in enumerate(frames):
        (folder / str(client)).mkdir(parents=True)
        frame.to_csv(folder / str(client) / "train.csv", index=False)
    for sites in (1, 2):
        files = experiment(f"federation.sites={sites}", source="files", data_dir=str(folder))
        with pytest.raises(BadRecords, match=said):
            run(files, runs=tmp_path / "runs")
        with pytest.raises(BadRecords, match=said):
            preset.sizes_at_hand(files)
    nodes._nodes.clear()
    site = {
        "partition-id": 0,
        "num-partitions": 1,
        "num-clients": 2,
        "data-dir": str(folder),
        "own-data": 1,
        "trust": "any",
    }
    with pytest.raises(BadRecords, match=said) as refused:
        nodes.join(files.model_dump_json(), "0" * 32, 1, site)
    assert not any(name in str(refused.value) for name in ("p0", "p1", "p2"))
    with pytest.raises(ValueError, match="client 0's records do not fit") as sent:
        nodes.join(files.model_dump_json(), "0" * 32, 2, {**site, "trust": "central"})
    assert "several clients" not in str(sent.value)
    assert not list((tmp_path / "runs").rglob("*.sqlite"))
    nodes._nodes.clear()


def test_tables_of_different_persons_and_tables_without_a_unit_run(tmp_path):
    assert run(experiment(), data=two_clients(0), runs=tmp_path).summary["status"] == "completed"
    without = [frame.drop(columns="patient") for frame in two_clients(3)]
    assert run(experiment(unit=None), data=without, runs=tmp_path).summary["status"] == "completed"


def test_a_seeded_run_does_not_depend_on_how_persons_are_spread_over_processes(tmp_path):
    vectors = []
    for sites in (1, 2):
        asked = experiment("seed=3", f"federation.sites={sites}")
        found = run(asked, data=visits(), runs=tmp_path / str(sites))
        vectors.append((found.directory / "model.safetensors").read_bytes())
    assert vectors[0] == vectors[1]


ADDED = (
    *("privacy.relation=add-remove", "privacy.sampling=poisson", "privacy.records=50"),
    *("objective.penalty=none", "objective.alpha=0.0"),
)
"""The coming and going of persons, of whom a declared number is public."""
SHOWN = [((), 0.85), (ADDED, 0.8)]
"""Of a replacement .89 to .91 of epsilon at this confidence; of a person there or not, whose mu is half, less."""


def own_file(folder: Path, *relation: str) -> Experiment:
    folder.mkdir()
    visits(24).to_csv(folder / "train.csv", index=False)
    overrides = ("training.rounds=1", "training.batch_fraction=1.0", "federation.clients=1", *relation)
    return experiment(*overrides, "privacy.delta=1e-3", source="files", data_dir=str(folder))


def attacked(asked: Experiment) -> canary.Finding:
    return canary.audit(asked, trials=200_000, confidence=1 - 1e-10, draws=1000, singly=20)


@pytest.mark.parametrize(("relation", "part"), SHOWN, ids=["replaced", "added"])
def test_a_person_of_all_her_records_shows_nearly_all_of_epsilon_and_no_more(tmp_path, relation, part):
    found = attacked(own_file(tmp_path / "data", *relation))
    assert found.passed and part * found.claimed <= found.shown <= found.claimed


@pytest.mark.parametrize("relation", [(), ADDED], ids=["replaced", "added"])
def test_the_attack_catches_a_client_that_takes_rows_for_persons(tmp_path, monkeypatch, relation):
    """All rows of the canary are in a batch of all rows; what is claimed is still that of one of them."""
    genuine = Units.of
    asked = own_file(tmp_path / "data", *relation)
    monkeypatch.setattr(Units, "of", lambda records: genuine(replace(records, unit=None)))
    assert not attacked(asked).passed


def test_single_canaries_are_refused_where_a_person_is_the_unit():
    with pytest.raises(ExperimentError, match="audit it with --canary"):
        one_run.audit(experiment(), canaries=10, show=False)


def test_held_out_rows_of_a_person_in_training_are_refused_though_the_rows_differ(tmp_path):
    other = visits(12, seed=9)
    with pytest.raises(ExperimentError, match="held_out: 12 values of its column 'patient'"):
        run(experiment(), data=visits(), held_out=other, runs=tmp_path)
    found = run(experiment(), data=visits(), held_out=visits(12, seed=9, prefix="h"), runs=tmp_path)
    assert found.summary["held_out"]
    (tmp_path / "data").mkdir()
    visits().to_csv(tmp_path / "data" / "train.csv", index=False)
    other.to_csv(tmp_path / "held.csv", index=False)
    files = experiment(source="files", data_dir=str(tmp_path / "data"), held_out=str(tmp_path / "held.csv"))
    with pytest.raises(ExperimentError, match="12 values of its column 'patient' are also in the private records"):
        run(files, runs=tmp_path)


def test_data_frames_that_say_whose_their_rows_are_make_an_experiment_of_persons(tmp_path):
    records = as_records(visits(), group="sex", target="income", unit="patient")
    raw = experiment().model_dump(mode="json", exclude_unset=True)
    raw["data"] = {"source": "object"}
    found = run(parse_experiment(raw), data=records, runs=tmp_path)
    assert found.summary["guarantee"]["unit"] == "patient"
    assert recomputed(found.directory).passed
