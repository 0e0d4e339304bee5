"""`fedsw describe`: one noised release of every column's histogram, and nothing else of the records."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsw.cli.app import main
from fedsw.data.downloads import find_data
from fedsw.desk.own_data.described_column import DescribedColumn, on_simplex
from fedsw.desk.own_data.description import as_description, described
from fedsw.experiment import ExperimentError, load_experiment
from fedsw.learning.sketches.noised import NoisedSketch, sketch_sensitivity
from fedsw.learning.sketches.sketch_law import Law
from fedsw.learning.sketches.table_counts import Pairs, column_means
from fedsw.runs.accounts import read_ledger

OWN = """
name = "own"
[data]
source = "files"
[data.columns]
features = [
  {name = "age", kind = "integer", low = 18, high = 117},
  {name = "city", categories = ["Paris", "Lyon", "Nice"]},
  {name = "dose", low = 0, high = 20, missing = [""], fill = 0},
]
sensitive = {name = "sex", values = ["f", "m"]}
target = {name = "sick", values = ["no", "yes"]}
[objective]
alpha = 0.2
[privacy]
trust = "central"
epsilon = 1.0
delta = 1e-5
[federation]
clients = 3
"""
RANGES = ((0, 3), (3, 5), (5, 9))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three clients with 400 rows each, and their experiment."""
    place = tmp_path_factory.mktemp("described")
    draw = np.random.default_rng(5)
    for client in range(3):
        rows = ["age,city,dose,sex,sick"]
        for _ in range(400):
            age, sick = draw.integers(18, 40), draw.random() < 0.3
            dose = "" if draw.random() < 0.1 else f"{draw.random() * (5 if sick else 20):.3f}"
            rows.append(
                f"{age},{draw.choice(['Paris', 'Lyon'])},{dose},{draw.choice(['f', 'm'])},{'yes' if sick else 'no'}"
            )
        (place / "DATA" / str(client)).mkdir(parents=True)
        (place / "DATA" / str(client) / "t.csv").write_text("\n".join(rows) + "\n")
    (place / "own.toml").write_text(OWN)
    return place


@pytest.mark.parametrize("overlap", ["refuse", "other-people", "allow"])
def test_histograms_are_of_clients_records_whatever_is_said_of_held_out_ones(folder, overlap):
    said = f'source = "files"\nheld_out = "held-out.csv"\nheld_out_overlap = "{overlap}"'
    (folder / "overlap.toml").write_text(OWN.replace('source = "files"', said))
    made = as_description(load_experiment(folder / "overlap.toml"), epsilon=1.0)
    assert made.data.held_out is None and made.data.held_out_overlap == "refuse"


@pytest.fixture(scope="module")
def truth(folder):
    """All rows as dictionaries."""
    rows = []
    for client in range(3):
        head, *lines = (folder / "DATA" / str(client) / "t.csv").read_text().splitlines()
        rows += [dict(zip(head.split(","), line.split(","), strict=True)) for line in lines]
    return rows


def shares_of(rows, column):
    """The exact share of each bin."""
    cells = [row[column.name] for row in rows]
    if not column.edges:
        return np.array([np.mean([cell == label for cell in cells]) for label in column.labels])
    numbers = np.array([float(cell) for cell in cells if cell])
    counts = np.histogram(numbers, np.array(column.edges))[0].astype(float)
    missing = [cells.count("")] if column.missing else []
    return np.array([*counts, *missing]) / len(cells)


def run(folder, tmp_path, *more):
    """Describe the tables, into runs below a folder."""
    command = [
        "describe",
        str(folder / "own.toml"),
        "--data-dir",
        str(folder / "DATA"),
        "--runs",
        str(tmp_path),
        "--json",
    ]
    assert main([*command, *more]) == 0


@pytest.mark.parametrize("trust", ["central", "distributed", "local-gradient"])
def test_every_histogram_is_the_truth_within_its_stated_noise(folder, truth, tmp_path, trust, capsys):
    run(folder, tmp_path, f"privacy.trust={trust}", "--epsilon", "50")
    shown = json.loads(capsys.readouterr().out)
    found = described(next(tmp_path.glob("own-described/*")))
    assert [column.name for column in found.columns] == ["age", "city", "dose", "sex", "sick"]
    assert shown["records"] == len(truth)
    for column in found.columns:
        error = np.abs(column.shares - shares_of(truth, column))
        assert error.max() <= 5 * column.deviation
        assert column.plausible.sum() == pytest.approx(1) and column.plausible.min() >= 0
        for number, name in enumerate(found.classes if len(column.by_class) else ()):
            own = [row for row in truth if row["sick"] == name]
            exact = shares_of(own, column) * len(own) / len(truth)
            assert np.abs(column.by_class[number] - exact).max() <= 5 * column.class_deviation


def test_a_description_is_charged_once_and_shown_again_at_no_cost(folder, tmp_path, capsys):
    run(folder, tmp_path)
    first = json.loads(capsys.readouterr().out)
    directory = next(tmp_path.glob("own-described/*"))
    assert len(read_ledger(directory)["entries"]) == 1
    assert first["epsilon_spent"] <= 1.0 + 1e-9
    page = tmp_path / "page.html"
    assert main(["describe", str(directory), "-o", str(page), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["columns"] == first["columns"]
    assert "declared bounds" in page.read_text()
    assert main(["describe", str(directory), "--epsilon", "2"]) == 2


@pytest.mark.slow
def test_kept_histograms_are_those_of_the_sketch_and_of_no_other(folder, tmp_path, capsys, monkeypatch):
    run(folder, tmp_path)
    capsys.readouterr()
    directory = next(tmp_path.glob("own-described/*"))
    path, kept = directory / "description.json", described(directory).plain()
    with monkeypatch.context() as patched:
        patched.setattr("fedsw.desk.own_data._histograms.columns_of", lambda experiment, directory: None)
        assert described(directory).plain() == kept  # off the file
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "of": "another"}))
        with pytest.raises(ExperimentError, match="has not ended"):  # of another sketch: they would be counted anew
            described(directory)
    assert described(directory).plain() == kept
    content["columns"][0]["shares"].pop()
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"description\.json is damaged"):
        described(directory)


def test_wide_bounds_are_named_with_what_would_do(folder, tmp_path, capsys):
    run(folder, tmp_path, "--epsilon", "20")
    (advice,) = json.loads(capsys.readouterr().out)["findings"]
    assert "'age'" in advice and "18 to" in advice


def test_intervals_cover_nineteen_of_twenty():
    law, draw = Law(9, (Pairs(RANGES, 0.7, "codes", among=2),)), torch.Generator().manual_seed(1)
    sizes = [end - first for first, end in RANGES]
    rows = torch.cat([torch.eye(size)[torch.randint(size, (300,), generator=draw)] for size in sizes], dim=1)
    exact, truth = law.drawn()(rows).double().sum(dim=0), rows.double().mean(dim=0)
    inside = []
    for _ in range(150):
        noise = 4.0 * torch.randn(len(exact) + 1, generator=draw, dtype=torch.float64)
        sketch = NoisedSketch(law, (torch.cat([exact, torch.zeros(1)]) + noise).unsqueeze(0), 4.0, 300)
        for mean, (first, end) in zip(column_means(sketch), RANGES, strict=True):
            inside.append((mean.numbers - truth[first:end]).abs() <= 1.96 * mean.deviation)
    covered = float(torch.cat(inside).double().mean())
    assert covered == pytest.approx(0.95, abs=0.025)


def test_no_description_without_noise_or_without_a_trust_model_that_has_one(folder):
    own = load_experiment(folder / "own.toml")
    with pytest.raises(ExperimentError, match="epsilon"):
        as_description(own, epsilon=math.inf)
    with pytest.raises(ExperimentError, match="choose --trust among"):
        as_description(load_experiment(folder / "own.toml", ["privacy.trust=none", "privacy.epsilon=inf"]))


def test_a_folder_without_a_run_is_refused_and_not_made(tmp_path):
    with pytest.raises(ExperimentError, match="no run of"):
        described(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


@given(
    first=st.lists(st.floats(-2, 2), min_size=9, max_size=9),
    second=st.lists(st.floats(-2, 2), min_size=9, max_size=9),
    among=st.sampled_from([0, 1, 2]),
    balance=st.sampled_from(["equal", "size", "codes"]),
)
def test_replacing_one_record_moves_histograms_by_class_by_no_more_than_their_bound(first, second, among, balance):
    law = Law(9, (Pairs(RANGES, 0.7, balance, among=among),))
    vectors = law.drawn()(torch.tensor([first, second]))
    assert float(torch.linalg.vector_norm(vectors[0] - vectors[1])) <= sketch_sensitivity(law).value
    assert float(torch.linalg.vector_norm(vectors, dim=1).max()) <= 1 + 1e-6


def test_two_records_that_share_no_bin_attain_the_bound():
    law = Law(9, (Pairs(RANGES, 0.7, "codes", among=1),))
    rows = torch.zeros((2, 9))
    rows[0, [0, 3, 5]] = rows[1, [1, 4, 6]] = 1
    vectors = law.drawn()(rows)
    assert float(torch.linalg.vector_norm(vectors[0] - vectors[1])) == pytest.approx(math.sqrt(2), rel=1e-5)


@given(st.lists(st.floats(-1, 2), min_size=1, max_size=12))
def test_plausible_shares_are_the_nearest_ones(shares):
    nearest = on_simplex(np.array(shares))
    assert nearest.min() >= 0 and nearest.sum() == pytest.approx(1)
    draw = np.random.default_rng(0).dirichlet(np.ones(len(shares)), 50)
    distances = np.linalg.norm(draw - np.array(shares), axis=1)
    assert np.linalg.norm(nearest - np.array(shares)) <= distances.min() + 1e-9


def test_one_column_among_others_has_products_with_all_of_them_and_no_more():
    part = Pairs(RANGES, 0.7, among=1).of_codes
    pairs = {(int(a), int(b)) for a, b in zip(part.column[part.first], part.column[part.second], strict=True)}
    assert pairs == {(0, 1), (1, 2)}
    assert float(part.single.square().sum() + part.pair.square().sum() / 2) == pytest.approx(1)
    with pytest.raises(ValueError, match="among is 7"):
        Pairs(RANGES, among=7)


@pytest.mark.slow
@pytest.mark.parametrize(("trust", "clients"), [("central", 4), ("distributed", 25)])
def test_adult_s_histograms_are_within_a_hundredth_at_epsilon_one(tmp_path, trust, clients):
    try:
        folder = find_data("adult")
    except FileNotFoundError as absent:
        pytest.skip(f"Adult is not here: {absent}")
    lines = [line.strip().rstrip(".") for name in ("adult.data", "adult.test") for line in (folder / name).open()]
    cells = [line.split(", ") for line in lines if line.count(", ") == 14 and "?" not in line][:33_917]
    names = [
        "age",
        "work",
        "weight",
        "school",
        "years",
        "married",
        "job",
        "family",
        "race",
        "sex",
        "gain",
        "loss",
        "hours",
        "country",
        "income",
    ]
    bounds = {
        "age": (17, 90),
        "weight": (10_000, 1_500_000),
        "years": (1, 16),
        "gain": (0, 100_000),
        "loss": (0, 4_500),
    }
    bounds["hours"] = (1, 99)
    features = []
    for place, name in enumerate(names[:-1]):
        if name in bounds:
            features.append(f'{{name = "{name}", low = {bounds[name][0]}, high = {bounds[name][1]}}}')
        elif name != "sex":
            features.append(f'{{name = "{name}", categories = {json.dumps(sorted({row[place] for row in cells}))}}}')
    columns = ",\n".join(features)
    text = OWN.replace(OWN[OWN.index("features") : OWN.index("sensitive")], f"features = [\n{columns}\n]\n")
    for old, new in (
        ('"f", "m"', '"Female", "Male"'),
        ('"sick", values = ["no", "yes"]', '"income", values = ["<=50K", ">50K"]'),
        ("clients = 3", f"clients = {clients}"),
        ('"central"', f'"{trust}"'),
    ):
        text = text.replace(old, new)
    (tmp_path / "own.toml").write_text(text)
    for client in range(clients):
        place = tmp_path / "DATA" / str(client)
        place.mkdir(parents=True)
        rows = [names, *cells[client::clients]]
        (place / "t.csv").write_text("\n".join(",".join(row) for row in rows) + "\n")
    run(tmp_path, tmp_path / "runs")
    found = described(next((tmp_path / "runs").glob("own-described/*")))
    truth = [dict(zip(names, row, strict=True)) for row in cells]
    inside = []
    for column in found.columns:
        exact = shares_of(truth, column)
        inside += (np.abs(column.shares - exact) <= column.half_width).tolist()
        if len(column.labels) <= 40:
            assert np.abs(column.plausible - exact).sum() / 2 <= 0.01, column.name
    assert np.mean(inside) >= 0.9


@pytest.mark.parametrize("deviation", [0.0005, 0.005, 0.03, 0.2])
@pytest.mark.parametrize("law", [[0.05] * 20, [0.0] * 5 + [0.9, 0.05] + [0.05 / 13] * 13, [0.4, 0.3, 0.3] + [0.0] * 17])
def test_a_range_that_is_said_to_hold_nearly_all_records_does_whatever_the_noise(deviation, law):
    edges, held = tuple(float(at) for at in range(21)), []
    for seed in range(200):
        shares = np.array(law) + np.random.default_rng(seed).normal(size=20) * deviation
        column = DescribedColumn(
            "x", "feature", ("",) * 20, edges, shares, deviation, np.zeros((0, 20)), 0.0, missing=False
        )
        if column.advice is not None:
            low, high = (float(number) for number in re.findall(r"about (\d+) to (\d+)", column.advice)[0])
            held.append(sum(law[int(low) : int(high)]))
    assert sum(part < 0.9 for part in held) <= 0.05 * 200
    assert held or deviation > 0.001 or law[0] == 0.05


@pytest.mark.slow
def test_days_are_told_as_dates_in_bins_quantiles_and_advice(tmp_path):
    own = OWN.replace(
        '{name = "age", kind = "integer", low = 18, high = 117}', '{name = "born", kind = "date", BOUNDS}'
    )
    own = own.replace("BOUNDS", "low = 2000-01-01, high = 2099-12-31, since = 1990-01-01")
    for client in range(3):
        rows = [f"2003-0{row % 9 + 1}-1{client},Paris,1,{'fm'[row % 2]},no" for row in range(400)]
        (tmp_path / "DATA" / str(client)).mkdir(parents=True)
        (tmp_path / "DATA" / str(client) / "t.csv").write_text("\n".join(["born,city,dose,sex,sick", *rows, ""]))
    (tmp_path / "own.toml").write_text(own)
    page, run = tmp_path / "page.html", ["--data-dir", str(tmp_path / "DATA"), "--epsilon", "20"]
    assert main(["describe", str(tmp_path / "own.toml"), *run, "-o", str(page), "--runs", str(tmp_path / "runs")]) == 0
    born = described(next((tmp_path / "runs").glob("*/*"))).columns[0]
    assert (
        born.labels[0].startswith("2000-01-01")
        and born.labels[-1].endswith("2099-12-31")
        and born.words(born.quantile(0.5)).startswith("200")
    )
    assert "declare about 2000-01-01 to 20" in born.advice and born.labels[0] in page.read_text()
    assert DescribedColumn.of_content(born.content()).labels == born.labels


def test_a_description_counts_in_the_account_of_its_data(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(tmp_path / "accounts"))
    run(folder, tmp_path / "runs", "data.account=clinic")
    capsys.readouterr()
    assert main(["account", "show", "clinic", "--json"]) == 0
    (counted,) = json.loads(capsys.readouterr().out)["runs"]
    assert counted["label"] == "own-described" and counted["releases"] == 1 and counted["epsilon"] >= 1.0
