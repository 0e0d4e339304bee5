"""Laws of what is handed on: a card has no HTML of names, an export says all that cells need, refusals say why."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from fedsw.cli.app import main
from fedsw.data.columns.column import PLAIN
from fedsw.data.columns.declared_kinds import Feature
from fedsw.data.columns.registered import KINDS
from fedsw.desk.own_data.answers import Words
from fedsw.desk.own_data.draft import DraftRequest, draft
from fedsw.desk.use.predictions import settle
from fedsw.experiment import ExperimentError, load_experiment, parse_experiment
from fedsw.runs.report.document import Document, Listed, PageSection, Strong
from tests.desk.use.conftest import INCOME, settings

EVIL = '<img src="//evil/x.png" onerror=alert(1)> and ![x](//evil/y.png) </td><!-- '


def test_a_name_in_a_card_begins_no_html_and_loads_nothing():
    listed = Listed.of(EVIL, (EVIL, "x"), [(EVIL, "1 < 2, a <= b")])
    document = Document(EVIL, EVIL, (Strong(EVIL), EVIL), (EVIL,), (PageSection.of(EVIL, [EVIL, listed]),))
    text = document.markdown()
    assert "<img" not in text and "</td>" not in text and "<!--" not in text and "![" not in text
    assert text.count("&lt;img") >= 8 and "1 < 2, a <= b" in text


def test_an_export_says_how_cut_numbers_dates_and_truth_values_are_encoded(classifier, tmp_path):
    assert main(["export", str(classifier), "-o", str(tmp_path / "m.pt")]) == 0
    about = json.loads((tmp_path / "m.pt.json").read_text())
    for words in (
        "nearer of them where outside is 'cut'",
        "a truth value is 1 (true",
        "days after 'since', 1970-01-01",
    ):
        assert words in about["encoding"]
    assert about["positive"] == "high"
    declared = {each["name"]: each for each in about["columns"]["features"]}
    assert (declared["age"]["low"], declared["age"]["high"]) == (0, 400)


def test_a_rule_for_thresholds_says_that_counts_of_kept_records_are_not_enough(place):
    kept = {"held_out": None, "held_out_fraction": 0.2, "held_out_to": "everybody"}
    asked = settings(place, INCOME)
    experiment = parse_experiment(asked | {"data": asked["data"] | kept})
    with pytest.raises(ExperimentError, match="counts were released, once, at the threshold 0.5: give numbers"):
        settle("parity", experiment, None, groups=("female", "male"), classes=("low", "high"))


@pytest.mark.parametrize(("false", "true"), [("N", "Y"), ("no", "yes"), ("False", "True")])
def test_synthetic_truth_values_are_spelt_as_the_source_s(tmp_path, false, true):
    path = tmp_path / "D" / "t.csv"
    path.parent.mkdir()
    rows = [[20 + i, (false, true)[i % 2], "fm"[i // 2 % 2], ("bad", "good")[i // 4 % 2]] for i in range(30)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["age", "smoker", "sex", "y"], *rows])
    text = draft(DraftRequest(tmp_path / "D", "sex", "y", Words(), from_public=True), name="own").text
    (tmp_path / "own.toml").write_text(text)
    columns = load_experiment(tmp_path / "own.toml").data.columns
    assert columns is not None
    smoker = next(each for each in columns.features if each.name == "smoker")
    assert smoker.kind == "boolean" and smoker.format == f"{false}|{true}"
    assert smoker.reader.write(np.array([1.0, 0.0]), smoker, PLAIN) == [true, false]


def test_a_format_of_truth_values_is_a_word_for_false_and_one_for_true():
    assert Feature(name="x", kind="boolean").format is None and KINDS.get("boolean").formatted
    for odd in ("Y|N", "maybe|yes", "no", "no|yes|y", "%d"):
        with pytest.raises(ValueError, match="a word for false and one for true"):
            Feature(name="x", kind="boolean", format=odd)
