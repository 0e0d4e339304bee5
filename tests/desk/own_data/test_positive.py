"""Laws of the favourable class: it is declared, taken where its name gives it away, and named by every number of it."""

from __future__ import annotations

import csv
import json
import random
import tomllib
from pathlib import Path

import pytest

import fedsw
from fedsw.cli.app import main
from fedsw.data.columns.declaration import Columns
from fedsw.desk.own_data.positive import positive_of
from fedsw.experiment import ExperimentError
from fedsw.runs.group_names import Names
from fedsw.runs.report.metric_names import metric_name, ordered_metrics

CLASSES = {"hired": ("hired", "rejected"), "verdict": ("reject", "refer", "accept")}


def drawn(column: str, count: int, seed: int) -> list[list[object]]:
    """Of "verdict" women get accept at .15 and men at .5, and both refer at 1/3; of "hired" .2 and .5."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        group, u = draw.choice("fm"), draw.random()
        most = 0.5 if group == "m" else 0.15
        if column == "verdict":
            label = "refer" if u < 1 / 3 else "accept" if u < 1 / 3 + most else "reject"
        else:
            label = "hired" if u < (0.5 if group == "m" else 0.2) else "rejected"
        middle = {"refer": 50, "accept": 85, "hired": 80, "reject": 15, "rejected": 25}[label]
        score = 100 - abs(100 - abs(middle + draw.gauss(0, 5)))
        rows.append([score, 2 * abs(score - 50), group, label])
    return rows


def write(path: Path, column: str, rows: list[list[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["score", "far", "sex", column], *rows])


def trained(folder: Path, column: str, **target) -> Path:
    """A run without noise and penalty on two clients' tables, measured on another one; its folder."""
    rows = drawn(column, 600, 3)
    for client in range(2):
        write(folder / "DATA" / str(client) / "t.csv", column, rows[client::2])
    write(folder / "other.csv", column, drawn(column, 400, 4))
    bounds = {"low": 0, "high": 100}
    columns = {
        "features": [{"name": name, **bounds} for name in ("score", "far")],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": column, "values": list(CLASSES[column]), **target},
    }
    about = {"source": "files", "data_dir": str(folder / "DATA"), "held_out": str(folder / "other.csv")}
    settings = {
        "name": "own",
        "data": {**about, "held_out_fraction": 0.2, "columns": columns},
        "objective": {"alpha": 0.0},
        "training": {"rounds": 40, "batch_fraction": 0.5, "learning_rate": 4.0},
        "privacy": {"trust": "none"},
        "federation": {"clients": 2},
    }
    return fedsw.run(settings, runs=folder / "runs").directory


@pytest.fixture(scope="module")
def hired(tmp_path_factory) -> Path:
    """A run whose favourable class is the first that is declared."""
    return trained(tmp_path_factory.mktemp("hired"), "hired", positive="hired")


@pytest.fixture(scope="module")
def verdict(tmp_path_factory) -> Path:
    """A run of three classes, none of which is declared to be favourable."""
    return trained(tmp_path_factory.mktemp("verdict"), "verdict")


def said(capsys, *command: str) -> str:
    capsys.readouterr()
    assert main(list(command)) == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("values", "positive"),
    [
        (("hired", "rejected"), "hired"),
        (("no", "yes"), "yes"),
        (("1", "0"), "1"),
        (("<=50K", ">50K"), ">50K"),
        (("not employed", "employed"), "employed"),
        (("Good", "Bad"), "Good"),
        (("granted", "denied"), "granted"),
    ],
)
def test_a_class_whose_name_gives_it_away_is_taken(values, positive):
    for order in (values, values[::-1]):
        found = positive_of("y", order, None)
        assert (found.value, found.sure) == (positive, True) and "by its name" in found.why


@pytest.mark.parametrize(
    ("column", "values", "wanted"),
    [
        ("death", ("no", "yes"), "no"),
        ("ill", ("1", "0"), "0"),
        ("Verstorben", ("ja", "nein"), "nein"),
        ("default_payment", ("0", "1"), "0"),
        ("décès", ("oui", "non"), "non"),
        ("смерть", ("нет", "да"), "нет"),
        ("死亡", ("否", "是"), "否"),
        ("loan_status", ("Default", "Fully Paid"), "Fully Paid"),
        ("outcome", ("survived", "died"), "survived"),
        ("y", ("ill", "not ill"), "not ill"),
        ("isDead", ("true", "false"), "false"),
    ],
)
def test_what_names_harm_is_asked_about_and_never_called_favourable(column, values, wanted):
    for order in (values, values[::-1]):
        found = positive_of(column, order, None)
        assert (found.value, found.sure) == (wanted, False) and "favourable" not in found.why
    assert positive_of(column, values, None, lambda question: values[0]).value == values[0]


@pytest.mark.parametrize(
    "column", ["skill", "hired", "still_here", "total_income", "mortgage_granted", "Krankenhaus", "医院"]
)
def test_names_that_only_look_like_harm_are_none(column):
    assert positive_of(column, ("no", "yes"), None).sure


def test_a_class_that_nobody_names_is_the_second_of_two_and_none_of_more():
    assert positive_of("y", ("a", "b"), None).value == "b" and not positive_of("y", ("a", "b"), None).sure
    assert positive_of("y", ("a", "b"), None, lambda question: "a").value == "a"
    assert positive_of("y", ("reject", "refer", "accept"), None).value is None
    assert positive_of("y", ("reject", "refer", "accept"), "accept").value == "accept"
    with pytest.raises(ExperimentError, match="said to be 'acept'; nearest: 'accept'"):
        positive_of("y", ("reject", "refer", "accept"), "acept")


def test_a_positive_class_is_one_of_the_declared_values():
    def columns(**target) -> Columns:
        return Columns.model_validate({"features": [{"name": "x"}], "target": {"name": "y", **target}})

    assert columns(values=["a", "b"]).positive == 1 and columns(values=["a", "b"], positive="a").positive == 0
    assert columns(values=[1, 2], positive=1).positive == 0
    assert (
        columns(values=["a", "b", "c"]).positive is None and columns(values=["a", "b", "c"], positive="c").positive == 2
    )
    with pytest.raises(ValueError, match="positive 'd', which is none of its values"):
        columns(values=["a", "b"], positive="d")


def test_every_number_of_a_class_names_it():
    two, three = Names((), ("hired", "rejected"), 0), Names((), ("reject", "refer", "accept"))
    assert metric_name("disparate_impact", two) == "DI of hired" and metric_name("disparate_impact") == "DI"
    assert metric_name("true_positive_rate", two) == "TPR of hired"
    assert metric_name("selection_rate", two) == "rate of hired"
    assert metric_name("eo_1", two) == "EO of hired, true rejected" and metric_name("od_0", two) == "OD, true hired"
    assert metric_name("disparate_impact", three) == "worst DI"
    assert metric_name("disparate_impact_2", three) == "DI of accept"
    assert metric_name("selection_rate_1", three) == "rate of refer"
    shown = {
        "loss": 1.0,
        "disparate_impact_1": 1.0,
        "accuracy": 1.0,
        "disparate_impact_0": 1.0,
        "disparate_impact": 1.0,
    }
    assert ordered_metrics(shown) == [
        "accuracy",
        "loss",
        "disparate_impact",
        "disparate_impact_1",
        "disparate_impact_0",
    ]


def test_init_writes_the_obvious_class_with_a_comment_and_says_when_it_guesses(tmp_path, capsys):
    for client in range(2):
        write(tmp_path / "DATA" / str(client) / "t.csv", "hired", drawn("hired", 10, client))
    out = tmp_path / "own.toml"
    named = ["init", str(tmp_path / "DATA"), "--group", "sex", "--target", "hired", "-o", str(out)]

    def positive(*more: str) -> tuple[str, str]:
        shown = said(capsys, *named, *more, "--force")
        return tomllib.loads(out.read_text())["data"]["columns"]["target"]["positive"], shown

    assert positive("--from-public")[0] == "hired"  # alphabetical, so that it is the first of the two
    assert "hired is the favourable one by its name" in out.read_text()
    guessed, shown = positive("--categories", "hired=oui,non")
    assert guessed == "non" and "non, the second, is taken; --positive says which" in shown
    assert positive("--categories", "hired=oui,non", "--positive", "oui")[0] == "oui"


def test_ratios_rates_and_thresholds_of_two_classes_are_of_the_positive_one(hired, capsys):
    summary = json.loads((hired / "summary.json").read_text())
    rates = {group: each["selection_rate"] for group, each in summary["held_out_by_group"].items()}
    assert summary["held_out_impact_of"] == "'hired'"
    assert summary["held_out"]["disparate_impact"] == pytest.approx(min(rates.values()) / max(rates.values()))
    assert 0.2 < summary["held_out"]["disparate_impact"] < 0.7 and rates["f"] < rates["m"] < 0.8
    data = str(hired.parents[2] / "DATA")
    for command in (["show", str(hired)], ["evaluate", str(hired), "--data-dir", data]):
        shown = said(capsys, *command)
        assert "DI of hired" in shown and "rate of hired" in shown and "DI of rejected" not in shown
    page = hired.parent.parent / "page.html"
    said(capsys, "report", str(hired), "-o", str(page))
    assert "DI of hired" in page.read_text()
    said(capsys, "show", str(hired), "card")
    assert "DI of hired" in (hired / "card.md").read_text() and "positive: hired" in (hired / "card.md").read_text()
    table = f"{data}/0/t.csv"
    chances = sorted(fedsw.load(hired).predictions(table)["probability_hired"])
    for at in (chances[60], chances[-60]):
        shown = said(capsys, "predict", str(hired), table, "--threshold", repr(float(at)), "--json")
        each = json.loads(shown)["predictions"]
        assert 0 < each["predicted_hired"].count("hired") < len(chances)
        chosen = [chance > at for chance in each["probability_hired"]]
        assert chosen == [label == "hired" for label in each["predicted_hired"]]
    assert "threshold 0.3 of 'hired' (as given)" in said(
        capsys, "predict", str(hired), table, "--threshold", "0.3", "-o", str(hired.parent.parent / "p.csv")
    )


def test_of_several_classes_each_has_its_ratio_and_the_worst_leads(verdict, capsys):
    summary = json.loads((verdict / "summary.json").read_text())
    by_group, held_out = summary["held_out_by_group"], summary["held_out"]
    ratios = []
    for c in range(3):
        rates = [each[f"selection_rate_{c}"] for each in by_group.values()]
        ratios.append(min(rates) / max(rates))
        assert held_out[f"disparate_impact_{c}"] == pytest.approx(ratios[-1])
    assert held_out["disparate_impact"] == pytest.approx(min(ratios)) == pytest.approx(ratios[2])
    assert summary["held_out_impact_of"] == "'accept'" and ratios[2] < 0.6 < ratios[1]
    for name in ("disparate_impact", *(f"disparate_impact_{c}" for c in range(3))):
        low, high = summary["held_out_intervals"][name]
        assert low <= held_out[name] <= high
    data = str(verdict.parents[2] / "DATA")
    for command in (["show", str(verdict)], ["evaluate", str(verdict), "--data-dir", data]):
        shown = said(capsys, *command)
        assert "worst DI" in shown and "rate of accept" in shown and "selection rate" not in shown
        assert "DI of reject" in shown and "DI of refer" in shown and "DI of accept" in shown
