"""`fedsw budget` gives the numbers of the accountant, rounded to the safe side, and refuses what makes no sense."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw._tools.text import downward, upward
from fedsw.cli.app import main

Capture = pytest.CaptureFixture[str]


def budget_json(line: str, capsys: Capture) -> dict[str, Any]:
    assert main(["budget", *line.split(), "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_the_noise_multiplier_and_the_steps_give_epsilon(capsys: Capture) -> None:
    report = budget_json("--sampling-rate 0.01 --steps 5000 --delta 1e-5 --noise-multiplier 1.0", capsys)
    assert 5.372 <= report["epsilon"] <= 5.375
    assert report["bracket"]["lower"] <= report["epsilon"] == report["bracket"]["upper"]
    assert (report["relation"], report["solved"]) == ("replace-one", "epsilon")


def test_the_three_questions_agree(capsys: Capture) -> None:
    given = "-p 0.1 --delta 1e-6 --no-compare "
    multiplier = budget_json(given + "--epsilon 2 --steps 50", capsys)["noise_multiplier"]
    assert budget_json(given + f"--steps 50 --noise-multiplier {multiplier!r}", capsys)["epsilon"] <= 2
    assert budget_json(given + f"--epsilon 2 --noise-multiplier {multiplier!r}", capsys)["steps"] == 50


def test_every_accountant_is_marked_as_a_guarantee_or_not(capsys: Capture) -> None:
    rows = budget_json("-p 0.01 --steps 100 --delta 1e-5 --noise-multiplier 1", capsys)["accountants"]
    assert {row["name"]: row["guarantee"] for row in rows} == {
        "pld": True,
        "gdp-clt-uniform": False,
        "gdp-clt-poisson": False,
        "rdp-wor": True,
    }
    assert "accountants" not in budget_json("-p 0.01 --steps 9 --delta 1e-5 --noise-multiplier 1 --no-compare", capsys)


def test_the_page_for_people_says_guarantee_bracket_and_convention(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert main(["budget", "-p", "0.1", "--steps", "500", "--delta", "3.3e-6", "--epsilon", "1"]) == 0
    page = capsys.readouterr().out
    for words in ("ε = 1 at δ = 3.3e-06", "replace-one neighbours", "the noise multiplier", "≤ ε ≤", "sigma / Delta"):
        assert words in page
    (clt,) = [line.split() for line in page.splitlines() if "gdp-clt-uniform" in line]
    assert clt[2] == "no"


def test_poisson_batches_are_for_adding_or_removing_a_record(capsys: Capture) -> None:
    report = budget_json("-p 0.01 --steps 100 --delta 1e-5 --noise-multiplier 1 --sampling poisson", capsys)
    assert report["relation"] == "add-or-remove-one"
    assert [row["epsilon"] for row in report["accountants"] if row["name"] == "rdp-wor"] == [None]


SLICES = "--slices 200 --dimension 784 --diameter 1 --records 60000 --batch 100 --steps 60000 --delta 1e-5 "


def test_random_slices_stand_beside_the_published_calculations_in_one_table(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = budget_json(SLICES + "--noise 1", capsys)
    rows = {row["name"]: row for row in report["accountants"]}
    assert 0.966 <= report["epsilon"] == rows["pld"]["epsilon"] <= 0.98
    assert rows["pld-norm"]["epsilon"] == pytest.approx(2.97, abs=0.005)
    assert rows["clt"]["epsilon"] == pytest.approx(2.48, abs=0.005) and not rows["clt"]["guarantee"]
    assert rows["bernstein"]["epsilon"] > 1000 and rows["bernstein"]["guarantee"]
    assert report["slicing"] == {"d": 784, "k": 200, "scheme": "iid", "diameter": 1.0, "sigma": 1.0}
    monkeypatch.setenv("COLUMNS", "250")
    assert main(["budget", *SLICES.split(), "--noise", "1"]) == 0
    page = capsys.readouterr().out
    assert "features of dimension 784 through 200 iid directions, diameter 1 and σ = 1" in page
    lines = [line.split() for line in page.splitlines()]
    assert [words[0] for words in lines if words[2:3] in (["yes"], ["no"])] == list(rows)


def test_slices_take_a_sampling_rate_orthogonal_directions_and_an_epsilon_to_solve_for(capsys: Capture) -> None:
    line = "--slices 3 --dimension 5 --directions-scheme orthogonal -p 0.1 --delta 1e-5 --no-compare "
    report = budget_json(line + "--epsilon 1 --steps 20 --diameter 2", capsys)
    assert 0.99 < report["epsilon"] <= 1 and report["slicing"]["scheme"] == "orthogonal"
    again = budget_json(line + f"--steps 20 --diameter 2 --noise {report['slicing']['sigma']!r}", capsys)
    assert again["epsilon"] == pytest.approx(report["epsilon"], rel=1e-9)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--slices 0 --dimension 5 -p 0.1 --delta 1e-5 --noise-multiplier 1 --steps 5", "directions, is 0"),
        ("--slices 5 --dimension -1 -p 0.1 --delta 1e-5 --noise-multiplier 1 --steps 5", "features, is -1"),
        ("--slices 5 -p 0.1 --delta 1e-5 --noise-multiplier 1 --steps 5", "dimension is None"),
        ("--directions-scheme iid -p 0.1 --delta 1e-5 --noise-multiplier 1 --steps 5", "need both"),
        ("--slices 5 --dimension 5 -p 0.1 --delta 1e-5 --noise 0 --diameter 1 --steps 5", "noise is 0.0"),
        ("--slices 5 --dimension 5 -p 0.1 --delta 1e-5 --noise nan --diameter 1 --steps 5", "noise is nan"),
        ("--slices 5 --dimension 5 -p 0.1 --delta 1e-5 --noise 1 --diameter -2 --steps 5", "diameter is -2.0"),
        ("--slices 5 --dimension 5 -p 0.1 --delta 1e-5 --noise 1 --steps 5", "with --diameter"),
        ("-p 0.1 --delta 1e-5 --noise 1 --diameter 1 --steps 5", "no slicing is given"),
        ("--records 10 --batch 20 --delta 1e-5 --noise-multiplier 1 --steps 5", "batch is 20 of records 10"),
        ("-p 0.1 --records 10 --batch 1 --delta 1e-5 --noise-multiplier 1 --steps 5", "sampling rate is 0.1"),
        ("--delta 1e-5 --noise-multiplier 1 --steps 5", "give --sampling-rate"),
        ("-p 0.1 --delta 1e-5 --epsilon 1", "exactly two of noise_multiplier, epsilon and steps"),
        ("-p 0.1 --delta 1e-5 --epsilon 1 --steps 5 --noise-multiplier 1", "exactly two"),
        ("-p 0 --delta 1e-5 --epsilon 1 --steps 5", "sampling_rate is 0"),
        ("-p 0.1 --delta 1e-12 --epsilon 1 --steps 5", "at least 1e-10"),
        ("-p 0.1 --delta 1e-5 --epsilon 0 --steps 5", "epsilon is 0.0"),
        ("-p 0.1 --delta 1e-5 --noise-multiplier -1 --steps 5", "noise_multiplier is -1.0"),
        ("-p 0.1 --delta 1e-5 --epsilon 0.001 --noise-multiplier 0.5", "does not allow a single step"),
        ("-p 0.1 --delta 1e-5 --epsilon 1 --steps 5 --sampling cluster", "'cluster' is not one of"),
        ("-p 0.1 --epsilon 1 --steps 5", "--delta"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_code_2(line: str, words: str, capsys: Capture) -> None:
    assert main(["budget", *line.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1


@given(value=st.floats(min_value=1e-9, max_value=1e9), digits=st.integers(2, 7))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_bounds_are_rounded_to_the_safe_side_and_stay_close(value: float, digits: int) -> None:
    above, below = upward(value, digits), downward(value, digits)
    assert float(below) <= value <= float(above)
    assert float(above) - float(below) <= 10.0 ** (1.000001 - digits) * value * 2


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (math.inf, "∞"), (5.3723410, "5.3724"), (1.0, "1")])
def test_exact_values_stay_as_they_are(value: float, text: str) -> None:
    assert upward(value, 5) == text


def test_a_delta_that_round_off_uses_up_is_one_line_and_code_2(capsys: Capture) -> None:
    assert main(["budget", "-p", "1e-4", "--steps", "1000000", "--noise-multiplier", "1", "--delta", "1e-10"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "is set aside for the floating-point round-off of 1000000 steps" in printed.err
    assert "Use a delta of" in printed.err and "∞" not in printed.err
