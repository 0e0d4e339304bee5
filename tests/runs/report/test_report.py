"""The summary says what was trained, for whom it is private, and where everything is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.metrics import roc_auc_score

from fedsw._tools.text import json_text, measured, number, to_float
from fedsw.experiment import parse_experiment
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.tally import RegressionSums
from fedsw.runs.evaluation.held_out_metrics import Tallied, held_out_of
from fedsw.runs.group_names import Names
from fedsw.runs.progress import describe_round
from fedsw.runs.report import facts
from fedsw.runs.report.console import table_of
from fedsw.runs.report.metric_names import ordered_metrics, short_metrics
from fedsw.runs.report.run_documents import card, summary_screen
from fedsw.runs.report.screens import demo_table, experiments_table
from fedsw.runs.run_files import read_lines, write_json
from fedsw.runs.view import read_outputs, read_run
from tests.federations import small

MakeRun = Callable[..., Path]


def shown(renderable: object, width: int = 100) -> str:
    console = Console(width=width, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(renderable)
    return console.export_text()


def test_the_summary_fits_one_screen_and_says_what_a_reader_must_know(finished_run: MakeRun) -> None:
    directory = finished_run()
    text = shown(summary_screen(read_run(directory)), width=200)
    assert len(text.splitlines()) <= 24
    for words in (
        "toy: A toy",
        "4 clients, 60 rounds",
        "engine inprocess",
        "12.3 MB up",
        "ε = 1 at δ = 3.3e-06",
        "replace-one",
        "σ/Δ = 9.25",
        "one record of one client, against whoever sees the models",
        "the group of every record, group sizes",
        "· DI 0.62",
        "metrics.jsonl",
        str(directory),
    ):
        assert words in text


def test_accuracy_auc_and_log_loss_come_first_beside_a_constant_s_with_their_intervals(central) -> None:
    """On the screen, on the card and in what is plain: of one fact."""
    view = read_run(central)
    first = facts.worth(view).rows[:3]
    assert [name for name, *_ in first] == ["accuracy", "AUC", "log loss"] and all(" to " in row[1] for row in first)
    text = " ".join(shown(summary_screen(view), width=1_000).split())
    for values in zip(*(row[1:] for row in first), strict=True):
        line = " · ".join(f"{name} {value}" for (name, *_), value in zip(first, values, strict=True))
        assert line in text
    assert all(value in shown(card(view), width=1_000) for row in first for value in row)
    summary, model = json.loads((central / "summary.json").read_text()), read_outputs(central / "outputs.npz")
    assert summary["held_out"]["auc"] == pytest.approx(roc_auc_score(model.target, model.values[:, 0]))
    assert summary["constant"]["auc"] == 0.5 and summary["constant"]["calibration_error"] == 0
    low, high = summary["held_out_intervals"]["auc"]
    assert low < summary["held_out"]["auc"] < high


def test_a_seeded_run_is_called_nominal(finished_run: MakeRun) -> None:
    assert "nominal: seed 7" in shown(summary_screen(read_run(finished_run("seed=7"))))
    assert "nominal" not in shown(summary_screen(read_run(finished_run("name=other"))))


def test_a_record_with_unsafe_metrics_says_infinity_for_its_reader(finished_run: MakeRun) -> None:
    assert "for a reader of this record ε = ∞" in shown(summary_screen(read_run(finished_run("unsafe_metrics=true"))))
    assert "reader of this record" not in shown(summary_screen(read_run(finished_run("name=other"))))


def test_the_panel_marks_an_accountant_that_is_no_guarantee(finished_run: MakeRun) -> None:
    directory = finished_run()
    assert "no guarantee" not in shown(summary_screen(read_run(directory)))
    summary = json.loads((directory / "summary.json").read_text())
    summary["guarantee"] |= {"accountant": "gdp-clt-uniform", "accountant_is_guarantee": False}
    write_json(directory / "summary.json", summary)
    text = shown(summary_screen(read_run(directory)), width=200)
    assert "no guarantee: what the accountant gdp-clt-uniform says may fall below the truth" in text


def test_the_panel_states_laplace_noise_as_pure(finished_run: MakeRun) -> None:
    directory = finished_run()
    summary = json.loads((directory / "summary.json").read_text())
    summary["delta"] = 0.0
    summary["guarantee"] |= {"accountant": "laplace", "mechanism": "laplace"}
    write_json(directory / "summary.json", summary)
    text = shown(summary_screen(read_run(directory)), width=200)
    assert "ε = 1 at δ = 0 " in text and "scale b/Δ = 9.25" in text and "noise multiplier" not in text


def test_a_run_without_noise_says_infinity(finished_run: MakeRun) -> None:
    text = shown(summary_screen(read_run(finished_run("privacy.epsilon=inf"))))
    assert "ε = ∞" in text
    assert "noise multiplier" not in text
    assert "protects" not in text


def test_what_noise_made_impossible_is_said_to_be_below_what_can_be_seen_and_never_cut(finished_run: MakeRun) -> None:
    """A regression that predicts 0.42 where targets lie about 0.4, of 60 records through noise."""
    task, law, directory = Problem.from_experiment(small()), np.random.default_rng(2), finished_run()
    target = torch.from_numpy(law.normal(0.4, 0.06, (60, 1)))
    sums = RegressionSums(1, 1).vectors(torch.full_like(target, 0.42), target).sum(0, keepdim=True).numpy()
    seen = set()
    for _ in range(8):
        values = sums + law.normal(size=sums.shape) * 10.0
        found = held_out_of(task, RegressionSums(1, 1), Tallied(values, 10.0, np.array([60]), 3, 0, 1.0, round=1))
        value, interval = found.metrics["mean_squared_error"], found.quality.intervals["mean_squared_error"]
        assert interval.low == 0 and interval.high >= 1.9 * 10.0 / 60
        words = measured(value, interval)
        assert ("below what the noise allows to see (0 to 0." in words) == (value < 0)
        summary = json.loads((directory / "summary.json").read_text()) | found.said()
        write_json(directory / "summary.json", summary)
        assert (
            words in shown(summary_screen(read_run(directory)), width=300)
            and words in card(read_run(directory)).markdown()
        )
        seen.add(value < 0)
    assert seen == {True, False}


def test_no_metric_is_shown_without_the_interval_that_it_stands_for(finished_run: MakeRun) -> None:
    directory = finished_run()
    summary = json.loads((directory / "summary.json").read_text())
    around = {"accuracy": [0.77, 0.815], "disparate_impact": [0.5, 0.75]}
    groups = {"female": {"count": 40, "accuracy": 0.8}, "male": {"count": 60, "accuracy": None}}
    summary |= {"held_out": {"accuracy": 0.79, "disparate_impact": 0.6, "mine": 2.0}, "held_out_intervals": around}
    summary["held_out_by_group"] = groups
    summary["held_out_by_group_intervals"] = {name: {"accuracy": [0.6, 0.9]} for name in groups}
    summary |= {"constant": {"accuracy": 0.75}, "constant_intervals": {"accuracy": [0.73, 0.77]}}
    summary |= {"constant_answers": "always 'low'"}
    summary["gain"] = {"value": 0.04, "low": -0.01, "high": 0.09, "claim": "cannot be told"}
    write_json(directory / "summary.json", summary)
    text = shown(summary_screen(read_run(directory)), width=300)
    for words in (
        "accuracy 0.79 (0.77 to 0.815) · DI 0.6 (0.5 to 0.75) · mine 2 (no interval is known of mine)",
        "accuracy 0.75 (0.73 to 0.77)",
        "always 'low'. The model cannot be told from a constant: 0.04 (-0.01 to 0.09) better.",
        "0.6 to 0.9",
        "not to be seen",
    ):
        assert words in text
    written = card(read_run(directory)).markdown()
    assert "The model cannot be told from a constant: 0.04 (-0.01 to 0.09) better." in written
    assert "0.79 (0.77 to 0.815)" in written and "2 (no interval is known)" in written
    assert "0.75 (0.73 to 0.77)" in written


def test_a_model_below_the_constant_is_said_to_be_worse_and_never_less_than_0_better(finished_run: MakeRun) -> None:
    directory = finished_run()
    summary = json.loads((directory / "summary.json").read_text())
    summary |= {"constant": {"accuracy": 0.75}, "constant_answers": "always 'low'"}
    summary["gain"] = {"value": -0.477, "low": -0.5, "high": -0.45, "claim": "worse"}
    write_json(directory / "summary.json", summary)
    said = "The model is 0.477 (0.45 to 0.5) worse than a constant."
    assert said in shown(summary_screen(read_run(directory)), width=300)
    assert said in card(read_run(directory)).markdown()
    summary["gain"] |= {"high": 0.1, "claim": "cannot be told"}
    write_json(directory / "summary.json", summary)
    assert "told from a constant: 0.477 (-0.1 to 0.5) worse" in shown(summary_screen(read_run(directory)), width=300)


def test_where_moments_were_bought_rounds_below_the_noise_do_not_say_that_nothing_was_learnt(
    finished_run: MakeRun,
) -> None:
    directory = finished_run()
    summary = json.loads((directory / "summary.json").read_text())
    faint = {"a_round": 0.0, "the_run": 0.0, "rounds": 50}
    summary["signal_to_noise"] = {**faint, "words": "mostly noise: the rounds may have taught the model nothing"}
    write_json(directory / "summary.json", summary)
    assert "may have taught the model nothing" in shown(summary_screen(read_run(directory)), width=300)
    constant = {"value": 0.6, "low": 0.58, "high": 0.62}
    narrow = [{"name": "age", "part": 0.0, "most": 0.0021}]
    summary["moments"] = {"constant": constant, "classes": ["low", "high"], "share": 0.1, "records": 100,
                          "narrow_columns": narrow}  # fmt: skip
    write_json(directory / "summary.json", summary)
    text = shown(summary_screen(read_run(directory)), width=300)
    assert "taught the model nothing" not in text and "age at most 1 %" in text
    assert "the start came from the released moments, which did the learning; the rounds added little" in text
    summary["signal_to_noise"] |= {"the_run": 9.0, "words": "well above"}
    write_json(directory / "summary.json", summary)
    assert "well above" in shown(summary_screen(read_run(directory)), width=300)


def test_a_run_that_never_ended_says_what_it_spent_and_how_to_go_on(finished_run: MakeRun) -> None:
    directory = finished_run()
    (directory / "summary.json").unlink()
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    (directory / "metrics.jsonl").write_text("\n".join(lines[:15]) + "\n" + lines[15][:20])
    text = shown(summary_screen(read_run(directory)), width=200)
    assert "15 of 60 rounds" in text
    assert "ε = 0.5 of 1 was spent" in text
    assert f"fedsw resume {directory}" in text


def test_a_run_that_failed_shows_the_fault_what_is_promised_and_what_is_spent(finished_run: MakeRun) -> None:
    directory = finished_run()
    summary = json.loads((directory / "summary.json").read_text())
    summary |= {"status": "failed: client 2 is gone", "released_rounds": 20, "epsilon_spent": 0.577}
    write_json(directory / "summary.json", summary)
    text = shown(summary_screen(read_run(directory)), width=200)
    for words in ("failed after 20 of 60 rounds: client 2 is gone", "ε = 0.577 of 1 was spent", "fedsw resume"):
        assert words in text


def test_only_the_last_line_of_a_history_may_be_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"round": 1}\n{"round"')
    assert read_lines(path) == [{"round": 1}]
    path.write_text('{"round"\n{"round": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1"):
        read_lines(path)


@pytest.mark.parametrize("name", ["config.json", "summary.json", "outputs.npz"])
def test_a_damaged_file_is_named(finished_run: MakeRun, name: str) -> None:
    directory = finished_run()
    (directory / name).write_bytes(b"{]")
    with pytest.raises(ValueError, match=name):
        read_run(directory)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run"):
        read_run(tmp_path)


def test_the_progress_line_shows_only_what_a_round_released() -> None:
    plan = {"epsilon": 3.0}
    noisy = {"round": 5, "epsilon": 1.234, "snr": 0.567}
    assert describe_round(noisy, plan, "accuracy 0.8") == "ε 1.24 of 3  SNR 0.57  accuracy 0.8"
    plain = {"round": 5, "epsilon": "inf", "snr": None}
    assert describe_round(plain, {"epsilon": "inf"}, "") == "ε ∞ of ∞"
    assert "training loss 0.5 (unsafe)" in describe_round({**noisy, "training_loss": 0.5}, plan, "")


def test_the_metrics_people_ask_for_come_first() -> None:
    held_out = {"od_0": 0.1, "disparate_impact": 0.6, "unknown": 1.0, "accuracy": 0.8, "words": "x", "flag": True}
    assert ordered_metrics(held_out) == ["accuracy", "disparate_impact", "od_0", "unknown"]
    assert short_metrics(held_out) == "accuracy 0.8 · DI 0.6"


@pytest.mark.parametrize("groups", [(), ("all",), ("f", "m")])
def test_metrics_that_compare_groups_are_shown_where_there_are_several(groups):
    between = ["disparate_impact", "disparate_impact_1", "w2_squared", "demographic_parity_difference", "ks", "eo_0"]
    of_one = ["accuracy", "loss", "auc", "sw2", "mean_squared_error"]
    shown = set(ordered_metrics(dict.fromkeys([*between, *of_one], 1.0), Names(groups=groups)))
    assert shown == {*of_one, *(between if len(groups) != 1 else ())}


def test_json_has_no_literal_that_json_does_not_know() -> None:
    value = {"a": math.inf, "b": [-math.inf, math.nan], "c": (1, True, None, "x"), "d": {"e": 0.1}}
    text = json_text(value)
    assert json.loads(text) == {"a": "inf", "b": ["-inf", None], "c": [1, True, None, "x"], "d": {"e": 0.1}}
    assert to_float(json.loads(text)["a"]) == math.inf


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.79412, "0.794"), ("inf", "∞"), (-math.inf, "-∞"), (None, "–"), ("nan", "–"), (3.3e-6, "3.3e-06")],
)
def test_numbers_are_short(value: object, text: str) -> None:
    assert number(value) == text


def test_the_tables_hold_a_row_for_each_experiment_and_cell() -> None:
    known = [
        parse_experiment({"name": name, "privacy": noise}) for name, noise in (("a", {}), ("b", {"epsilon": math.inf}))
    ]
    text = shown(experiments_table([*known, parse_experiment({"name": "c", "privacy": {"noise_multiplier": 2.0}})]))
    assert "∞" in text
    assert "σ/Δ = 2" in text
    row = {
        "alpha": 0.5,
        "target_epsilon": "inf",
        "epsilon": "inf",
        "noise_multiplier": 0.0,
        "accuracy": 0.8,
        "disparate_impact": 0.6,
        "seconds": 3.14159,
    }
    text = shown(demo_table([row], caption="said below"))
    assert "said below" in text
    assert text.count("∞") == 2


def test_the_summary_shows_a_line_for_every_group_however_many_there_are(finished_run: MakeRun) -> None:
    directory = finished_run()
    summary = json.loads((directory / "summary.json").read_text())
    groups = {f"g{g}": {"count": 1000 + g, "accuracy": 0.5 + g / 100, "selection_rate": g / 7} for g in range(6)}
    groups["empty"] = {"count": 0, "accuracy": "nan", "selection_rate": "nan"}
    write_json(directory / "summary.json", summary | {"held_out_by_group": groups})
    lines = [line.strip("│ ").split() for line in shown(summary_screen(read_run(directory)), width=120).splitlines()]
    for g in range(6):
        assert [f"g{g}", f"1,00{g}", f"{0.5 + g / 100:.3g}", f"{g / 7:.3g}"] in lines
    assert ["empty", "0", "–", "–"] in lines


def test_a_table_wraps_on_a_narrow_screen_and_cuts_nothing() -> None:
    headings, row = (
        ("data set", "of those with a guarantee"),
        ("patients of the northern hospital", "0.1234 (0.1 to 0.2)"),
    )
    letters = "".join([*headings, *row]).replace(" ", "")
    assert sorted("".join(shown(table_of(headings, [row]), width=30).split()).replace("─", "")) == sorted(letters)


def test_an_interval_stands_on_one_line_where_the_screen_is_as_wide_as_that() -> None:
    headings = ("group", "count", "accuracy", "true positives", "false positives", "AUC")
    row = ("f", "291", *(f"0.8{each}\n0.77{each} to 0.86{each}" for each in range(4)))
    text = shown(table_of(headings, [row]), width=62)
    assert all(f"0.77{each} to 0.86{each}" in text for each in range(4))
    assert text.count("group") == 2 and "…" not in text and max(map(len, text.splitlines())) <= 62
