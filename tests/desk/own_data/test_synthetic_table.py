"""`fedsw synthesize` and `fedsw distance`: a table of the declared columns, one charge, and a card that says so."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsw.audit import canary
from fedsw.audit.record import audit, model
from fedsw.cli.app import main
from fedsw.data import read_table
from fedsw.desk.own_data.description import trust_once
from fedsw.desk.own_data.drifts import of_each
from fedsw.desk.own_data.synthetic_table import as_synthesis
from fedsw.experiment import Experiment, ExperimentError, load_experiment, parse_experiment
from fedsw.experiment.load import shipped_experiments
from fedsw.experiment.trust import trust_model
from fedsw.learning.sketches.drift import Means, drift_of_means
from fedsw.learning.sketches.from_settings import Stage
from fedsw.learning.sketches.learnt import flat_bytes
from fedsw.learning.sketches.table_parts import Triples
from fedsw.learning.sketches.trees import next_pairs
from fedsw.learning.tasks.measures import law_of_problem
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.accounting import Ledger
from fedsw.runs.directory import RunDirectory
from fedsw.runs.releases import stored_sketch

HEADER = ["age", "city", "dose", "sex", "sick"]
OWN = """
name = "own"
[data]
source = "files"
{held_out}
[data.columns]
features = [
  {{name = "age", kind = "integer", low = 18, high = 90}},
  {{name = "city", categories = ["Paris", "Lyon"]}},
  {{name = "dose", low = 0, high = 20, missing = [""], fill = 0}},
]
sensitive = {{name = "sex", values = ["f", "m"]}}
target = {{name = "sick", values = ["no", "yes"]}}
[objective]
task = "synthesis"
penalty = "distribution-matching"
alpha = 1.0
[model]
kind = "table-generator"
hidden = [32]
latent = 8
[sketch]
kind = "table"
bins = 4
counts = 0.1
batch = 100
learning_rate = 0.02
generated = 100
[training]
rounds = 150
[privacy]
trust = "sketch"
epsilon = 2.0
delta = 1e-6
[federation]
clients = 2
"""


def rows(n: int, seed: int, *, age: int = 40, gone: float = 0.1) -> list[list[object]]:
    rng = np.random.default_rng(seed)
    sex, sick = rng.random(n) < 0.5, rng.random(n)
    sick = sick < np.where(sex, 0.7, 0.3)  # the label depends on the group
    ages = np.clip(rng.normal(age + 15 * sick, 8), 18, 90).astype(int)
    missing = rng.random(n) < gone
    doses = ["" if none else f"{dose:.6f}" for none, dose in zip(missing, rng.uniform(0, 20, n), strict=True)]
    cities = np.where(rng.random(n) < 0.6, "Paris", "Lyon")
    return [
        [a, c, d, "m" if s else "f", "yes" if y else "no"]
        for a, c, d, s, y in zip(ages, cities, doses, sex, sick, strict=True)
    ]


def write(path: Path, content: list[list[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([HEADER, *content])
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with two clients' tables, a held-out one, an experiment, and the table that one run made."""
    folder = tmp_path_factory.mktemp("own")
    for client in range(2):
        write(folder / "DATA" / str(client) / "train.csv", rows(1500, client, age=40 + 20 * client))
    write(folder / "held.csv", rows(400, 9, gone=0.0))
    (folder / "own.toml").write_text(OWN.format(held_out='held_out = "held.csv"'))
    (folder / "none.toml").write_text(OWN.format(held_out=""))
    assert synthesize(folder, "own.toml", "made.csv") == 0
    return folder


@pytest.fixture(scope="module")
def local(place) -> Path:
    """A run of the same tables in which every client noises its own sketch."""
    assert synthesize(place, "none.toml", "local.csv", "--trust", "sketch-local", "training.rounds=1") == 0
    return run_of(place, "local.csv")


def synthesize(folder: Path, experiment: str, output: str, *more: str) -> int:
    words = [str(folder / experiment), "--data-dir", str(folder / "DATA"), "--runs", str(folder / "runs" / output)]
    return main(["synthesize", *words, "-o", str(folder / output), "--rows", "800", "--quiet", *more])


def run_of(folder: Path, output: str) -> Path:
    (found,) = (folder / "runs" / output / "own").iterdir()
    return found


def experiment(folder: Path, name: str = "own.toml") -> Experiment:
    return load_experiment(folder / name)


def test_a_synthetic_table_reads_as_a_clients_own_and_has_its_labels_groups_and_missing_cells(place):
    columns = experiment(place).data.columns
    assert columns is not None
    made = read_table(place / "made.csv", columns)
    assert len(made) == 800
    sick_of_m, sick_of_f = (float(made.target[made.sensitive == group].double().mean()) for group in (1, 0))
    assert sick_of_m - sick_of_f > 0.2  # 0.4 in the records
    assert 0.03 < float(made.features[:, -1].mean()) < 0.2  # missing doses
    older = made.features[made.target == 1, 0].mean() - made.features[made.target == 0, 0].mean()
    assert 0.1 < float(older) < 0.32  # 15 years of 72


def test_the_card_states_the_guarantee_of_the_run_and_compares_with_held_out_records_alone(place):
    text = (place / "made.md").read_text()
    summary = json.loads((run_of(place, "made.csv") / "summary.json").read_text())
    assert summary["guarantee"]["statement"] in text and "(2, 1e-06)-differential privacy" in text
    assert "On 400 records" in text and "trained on real ones" in text
    assert synthesize(place, "none.toml", "unmeasured.csv", "training.rounds=1") == 0
    assert "Private records are never compared with" in (place / "unmeasured.md").read_text()


def test_the_page_beside_a_table_has_every_number_of_its_card(place):
    numbers = set(re.findall(r"\d+\.\d+", (place / "made.md").read_text()))
    page = (place / "made.html").read_text()
    assert len(numbers) > 20 and not [each for each in numbers if each not in page]
    assert "What is not kept" in page and "default-src 'none'" in page


def test_a_later_stage_measures_pairs_that_the_first_release_chose_and_both_fit_the_budget(place):
    changes = (
        "sketch.stages=[{share=0.6, tables=2}]",
        "sketch.balance=size",
        "training.rounds=2",
        "sketch.generator=tree",
    )
    assert synthesize(place, "none.toml", "staged.csv", *changes) == 0
    run = run_of(place, "staged.csv")
    summary = json.loads((run / "summary.json").read_text())
    with Ledger.open(run / "ledger.sqlite", read_only=True) as ledger:
        one, two = ledger.entries()
        assert ledger.replay() == pytest.approx(2.0, rel=2e-3) and ledger.replay() <= 2.0 * (1 + 1e-6)
    assert (two.sensitivity / two.sigma) ** 2 == pytest.approx(1.5 * (one.sensitivity / one.sigma) ** 2)
    assert two.sensitivity == pytest.approx(1.001 * math.sqrt(2 * 1.01))
    kept, names = RunDirectory(run), ("age", "city", "dose", "sex")
    task = Problem.from_experiment(kept.read_config()[0])
    first = stored_sketch(kept, law_of_problem(task))
    assert first is not None
    chosen = next_pairs([first.sketch], 2)  # from what was released, and nothing else
    assert [tuple(pair) for pair in summary["sketch"]["later"][0]["pairs"]] == list(chosen)
    card = (place / "staged.md").read_text()
    assert all(f"{names[i]!r} and {names[j]!r}" in card.split("measured some pairs once more")[1] for i, j in chosen)
    assert audit(run).details["failed"] == []
    tensors = load_file(run / "model.safetensors")
    for name in ("chances", "network.layers.0.weight"):
        path = place / f"changed-{name}"
        shutil.copytree(run, path)
        save_file({**tensors, name: tensors[name] + 0.001}, path / "model.safetensors")
        assert audit(path).details["failed"] == [model.NAME]


TRIPLES = ("sketch.stages=[{share=0.6, tables=2, together=3}]", "training.rounds=2")


@pytest.mark.slow
@pytest.mark.parametrize("trust", ["sketch", "sketch-local", "distributed"])
def test_a_later_stage_measures_triples_that_the_first_release_chose_under_every_trust_model_of_sketches(place, trust):
    assert synthesize(place, "none.toml", f"{trust}.csv", "--trust", trust, *TRIPLES) == 0
    run = run_of(place, f"{trust}.csv")
    summary = json.loads((run / "summary.json").read_text())
    (later,) = summary["sketch"]["later"]
    assert len(later["triples"]) == 2
    card = (place / f"{trust}.md").read_text().split("measured some triples")[1]
    names = ("age", "city", "dose", "sex")
    assert all(" and ".join(repr(names[k]) for k in triple) in card for triple in later["triples"])
    for path in sorted(run.rglob("ledger.sqlite")):
        with Ledger.open(path, read_only=True) as ledger:
            assert 0 < ledger.replay() <= 2.0 * (1 + 1e-6)
            last = ledger.entries()[-1]
            assert last.sensitivity == pytest.approx(1.001 * math.sqrt(2 * 1.01), rel=1e-3)
    assert audit(run).details["failed"] == []


@pytest.mark.slow
def test_canaries_of_a_table_with_triples_show_nine_tenths_of_epsilon_and_never_more(place):
    staged = parse_experiment(
        experiment(place, "none.toml").model_dump(), [f"data.data_dir={place / 'DATA'}", *TRIPLES]
    )
    found = canary.audit(staged, trials=300_000, confidence=1 - 1e-10, singly=20)
    assert found.passed and 0.9 * found.claimed <= found.shown <= found.claimed


def test_whatever_a_server_marks_no_more_triples_are_measured_than_the_settings_say(place):
    task = Problem.from_experiment(parse_experiment(experiment(place).model_dump(), [*TRIPLES]))
    for marks in (torch.ones(4), torch.zeros(4), torch.tensor([0.0, 9e9, float("nan"), -1.0]), None):
        stage = Stage(2, b"" if marks is None else flat_bytes(marks))
        (part,) = law_of_problem(task, stage).parts
        assert isinstance(part, Triples) and 1 <= len(part.chosen) <= 2
    with pytest.raises(ExperimentError, match="3 numbers for 4 triples"):
        law_of_problem(task, Stage(2, flat_bytes(torch.ones(3))))


@pytest.mark.parametrize("changed", ["sketch.labels=false", "sketch.stages=[{together=3},{together=2}]"])
def test_triples_without_labels_or_beside_pairs_are_refused(place, changed):
    with pytest.raises(ExperimentError, match="set labels, and together = 3 in every stage"):
        parse_experiment(experiment(place).model_dump(), [*TRIPLES, changed])


def test_further_rows_of_a_run_are_others_and_cost_nothing(place):
    run, other = run_of(place, "made.csv"), place / "other.csv"
    before = (run / "ledger.sqlite").read_bytes()
    assert main(["synthesize", str(run), "-o", str(other), "--rows", "800", "--draw", "1", "--quiet"]) == 0
    assert (run / "ledger.sqlite").read_bytes() == before
    assert other.read_text() != (place / "made.csv").read_text()
    with Ledger.open(run / "ledger.sqlite") as ledger:
        assert len(list(ledger.entries())) == 1


def test_nothing_is_spent_where_the_table_could_not_be_written(place, capsys):
    assert synthesize(place, "own.toml", "made.csv") == 2
    assert "is there already" in capsys.readouterr().err
    assert len(list((place / "runs" / "made.csv" / "own").iterdir())) == 1
    assert synthesize(place, "own.toml", "nowhere/made.csv") == 2
    assert not (place / "runs" / "nowhere").exists()


def test_a_released_run_takes_no_other_epsilon(place, capsys):
    words = ["synthesize", str(run_of(place, "made.csv")), "-o", str(place / "more.csv"), "--epsilon", "9"]
    assert main(words) == 2
    assert "released" in capsys.readouterr().err and not (place / "more.csv").exists()


def test_fair_labels_do_not_depend_on_the_group_and_groups_keep_their_numbers(place):
    assert synthesize(place, "none.toml", "fair.csv", "--fair") == 0
    columns = experiment(place).data.columns
    assert columns is not None
    made = read_table(place / "fair.csv", columns)
    sick_of_m, sick_of_f = (float(made.target[made.sensitive == group].double().mean()) for group in (1, 0))
    assert abs(sick_of_m - sick_of_f) < 0.02
    assert abs(float(made.sensitive.double().mean()) - 0.5) < 0.1
    assert "Labels do not depend on the group" in (place / "fair.md").read_text()


def compared(place: Path, run: Path, table: Path, *more: str) -> int:
    """Further rows of a run beside a table."""
    words = ["synthesize", str(run), "--held-out", str(table), "-o", str(place / "compared.csv"), "--force", "--json"]
    return main([*words, *more])


def test_no_verb_takes_a_client_s_table_for_one_that_holds_nobody_s_record(place, local, tmp_path, capsys):
    made, data = run_of(place, "made.csv"), str(place / "DATA")
    private = place / "DATA" / "0" / "train.csv"
    known = [line.split(",") for line in private.read_text().split()[1:9]]
    part = write(tmp_path / "part.csv", [*rows(60, 77), *known])
    verbs = [
        lambda table: compared(place, made, table, "--data-dir", data),
        lambda table: main(["distance", str(local), "--reference", str(table), "--data-dir", data]),
        lambda table: main(["plan", str(place / "none.toml"), "--data-dir", data, "--public-table", str(table)]),
    ]
    for verb in verbs:
        for table, why in ((private, "is the private file"), (part, "rows are also in the private records")):
            capsys.readouterr()
            assert verb(table) == 2
            assert why in " ".join(capsys.readouterr().err.split())
    named = ["init", data, "--group", "sex", "--target", "sick", "-o", str(tmp_path / "x.toml")]
    assert main([*named, "--public-table", str(private)]) == 2
    assert "is the client's table" in capsys.readouterr().err and not (tmp_path / "x.toml").exists()


def test_a_table_that_nobody_held_against_the_private_ones_gives_its_reader_no_guarantee(place, local, capsys):
    made, data, private = run_of(place, "made.csv"), str(place / "DATA"), place / "DATA" / "0" / "train.csv"
    capsys.readouterr()
    assert compared(place, made, private) == 0  # which nobody can tell from another without the clients' files
    assert json.loads(capsys.readouterr().out)["epsilon_of_reader"] == "inf"
    card = (place / "compared.md").read_text()
    assert card.count("epsilon = infinity for readers of the comparison") == 2
    assert card.index("epsilon = infinity") < card.index("## Guarantee")
    assert compared(place, made, place / "held.csv", "--data-dir", data) == 0
    assert json.loads(capsys.readouterr().out)["epsilon_of_reader"] == 2.0
    assert "infinity" not in (place / "compared.md").read_text()
    asked = ["distance", str(local), "--reference", str(place / "held.csv"), "--json"]
    assert main(asked) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon_of_reader"] == "inf" and "was not compared with the private records" in found["warning"]
    assert main([*asked, "--data-dir", data]) == 0
    assert "epsilon_of_reader" not in json.loads(capsys.readouterr().out)


def test_drift_between_clients_is_found_through_their_own_noise_and_a_reference_of_one_is_nearer_to_it(
    place, local, capsys
):
    assert "every client by itself added the noise" in (place / "local.md").read_text()
    assert main(["distance", str(local), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["distances"]
    assert found["differ"] and found["records"][0] < found["distance"] < found["records"][1]
    reference = write(place / "reference.csv", rows(3000, 7, age=40))
    assert main(["distance", str(local), "--reference", str(reference), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["distances"]
    assert first["one"] == "client 0" and first["distance"] < second["distance"]
    assert not first["differ"] and second["differ"]


def test_the_column_that_one_client_has_otherwise_is_ranked_first_and_no_charge_is_added(tmp_path, capsys):
    for client in range(3):
        write(tmp_path / "DATA" / str(client) / "train.csv", rows(2500, client, gone=0.8 if client == 1 else 0.1))
    (tmp_path / "none.toml").write_text(OWN.format(held_out=""))
    few = ("training.rounds=1", "federation.clients=3")
    assert synthesize(tmp_path, "none.toml", "local.csv", "--trust", "sketch-local", *few) == 0
    run = run_of(tmp_path, "local.csv")
    before = {path: path.read_bytes() for path in run.rglob("*.sqlite")}
    capsys.readouterr()
    assert main(["distance", str(run), "--by-column", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["columns"]
    first = found[0]
    assert (first["one"], first["other"], first["column"]) == ("client 1", "the other clients", "dose")
    law = 0.7 * math.hypot(1, 1 / 2)  # what is missing more, and each of four parts of the range that has less
    assert first["differ"] and first["populations"][0] < law < first["populations"][1] < law + 0.5
    assert len(found) == 3 * 5 and {line["column"] for line in found if line["one"] == "client 0"} == set(HEADER)
    assert not any(line["differ"] for line in found if line["column"] != "dose")
    assert [line["doubt"] for line in found] == sorted(line["doubt"] for line in found)
    assert main(["distance", str(run), "--by-column"]) == 0
    shown = capsys.readouterr().out
    assert "client 1" in shown and "not shown" in shown and "…" not in shown
    assert main(["predict", str(run), str(tmp_path / "DATA" / "0" / "train.csv")]) == 2
    assert "`fedsw synthesize RUN --rows N` draws rows" in capsys.readouterr().err
    assert before and before == {path: path.read_bytes() for path in run.rglob("*.sqlite")}


@pytest.mark.slow
def test_where_nothing_drifts_a_yes_anywhere_is_as_unlikely_as_is_said():
    """Forty comparisons with intervals of 80 % each would say yes somewhere in every run."""
    draws, count, runs, confidence = np.random.default_rng(0), 40, 20, 0.8
    each, wrong = of_each(confidence, count), 0
    for _ in range(runs):
        noise = torch.as_tensor(draws.normal(size=(2, count, 4)) * 0.01)
        ones, others = ([Means(row, 0.01, 10**9, diameter=1e-6) for row in side] for side in noise)
        wrong += any(drift_of_means(a, b, confidence=each).records[0] > 0 for a, b in zip(ones, others, strict=True))
    assert wrong <= runs * (1 - confidence) + 3 * math.sqrt(runs * confidence * (1 - confidence))


def test_two_clients_are_compared_once_and_each_with_a_public_table(place, local, capsys):
    assert main(["distance", str(local), "--by-column", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["columns"]
    assert {(line["one"], line["other"]) for line in found} == {("client 0", "client 1")}
    assert found[0]["column"] == "age" and len(found) == 5
    reference = write(place / "columns.csv", rows(3000, 7, age=40))
    assert main(["distance", str(local), "--by-column", "--reference", str(reference), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["columns"]
    assert (found[0]["one"], found[0]["column"]) == ("client 1", "age") and len(found) == 10


def test_one_sketch_of_all_clients_has_no_two_sides(place, capsys):
    assert main(["distance", str(run_of(place, "made.csv"))]) == 2
    assert "--reference" in capsys.readouterr().err


def test_an_experiment_of_any_task_on_own_tables_becomes_a_synthesis_with_its_budget(place):
    classification = OWN.format(held_out="").partition("[objective]")[0] + "[privacy]\nepsilon = 3.0\ndelta = 1e-7\n"
    (place / "classes.toml").write_text(classification)
    found = as_synthesis(experiment(place, "classes.toml"), trust=None, fair=False, epsilon=None)
    assert (found.privacy.epsilon, found.privacy.delta, found.privacy.trust) == (3.0, 1e-7, "sketch")
    assert found.sketch.kind == "table" and found.model.kind == "table-generator"
    assert as_synthesis(found, trust="sketch-local", fair=False, epsilon=0.5).privacy.epsilon == 0.5


@pytest.mark.parametrize(
    ("trust", "once"),
    [("none", "sketch"), ("central", "sketch"), ("distributed", "distributed"), ("local-gradient", "sketch-local")],
)
def test_a_table_asks_for_no_more_trust_than_the_experiment_that_it_is_made_of(place, trust, once):
    classification = OWN.format(held_out="").partition("[objective]")[0]
    (place / "trusting.toml").write_text(f'{classification}[privacy]\ntrust = "{trust}"\n[federation]\nclients = 4\n')
    made = as_synthesis(experiment(place, "trusting.toml"), trust=None, fair=False, epsilon=1.0).privacy
    assert made.trust == once and made.model.hides_records() == trust_model(trust).hides_records()


def test_no_table_is_made_under_a_trust_model_that_releases_none_once():
    sliced = next(shipped for shipped in shipped_experiments() if shipped.privacy.trust == "local-slices")
    with pytest.raises(ExperimentError, match="no table is released once; choose --trust among distributed, sketch, "):
        trust_once(sliced, None)


def test_a_drafted_experiment_becomes_a_synthesis_as_it_is_and_its_runs_have_a_name_of_their_own(place):
    own = experiment(place, "classes.toml")
    data = own.data.model_copy(update={"held_out_fraction": 0.2, "held_out_to": "everybody", "account": "DATA-1"})
    found = as_synthesis(own.model_copy(update={"data": data}), trust=None, fair=False, epsilon=None)
    assert found.name == f"{own.name}-synthetic" and found.data.account == "DATA-1"
    assert found.data.held_out_fraction == 0.2 and found.data.held_out_to == "operator"
    assert as_synthesis(found, trust=None, fair=False, epsilon=None).name == found.name


def test_without_declared_columns_no_table_is_promised():
    with pytest.raises(ExperimentError, match="fedsw init"):
        as_synthesis(Experiment(name="x"), trust=None, fair=False, epsilon=None)
