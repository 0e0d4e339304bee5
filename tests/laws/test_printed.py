"""What prints in a line or in a notebook says what is public, and no value of a record."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import fedsw
from fedsw._tools.text import MOST_SHOWN, Short, run_facts
from fedsw.data.units import Units
from fedsw.desk.planning.run_plan import Planned, rows
from fedsw.desk.use.trained import TrainedModel
from fedsw.experiment import load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.federation.trust import round_plan as of_a_federation
from fedsw.learning.tasks.task import Inputs
from fedsw.runs.report.console import table_of
from fedsw.runs.single.objective import Batch
from fedsw.runs.view import HeldOutOutputs, RunView

NUMBERS = st.integers(10**6, 10**9).map(lambda number: number / 1_000 + 1e-4)
"""Numbers of digits that no size, and no number of columns, has."""


def forms(value: object) -> list[str]:
    """All that a console or a notebook shows of a value."""
    return [repr(value), str(value), value._repr_html_()]


def every(kind: type) -> set[type]:
    return {kind} | {each for below in kind.__subclasses__() for each in every(below)}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.sampled_from(["east", "west"])), min_size=1, max_size=8), st.booleans())
def test_no_value_of_a_record_is_printed(rows, with_units):
    frame = pd.DataFrame(rows, columns=["dose", "income", "clinic"])
    people = [
        f"person-{round(dose * 10_000)}-{clinic}" for dose, clinic in zip(frame["dose"], frame["clinic"], strict=True)
    ]
    unit = people if with_units else None
    bounds = {"name": "dose", "low": 0, "high": 1e7}
    records = fedsw.as_records(
        frame, group="clinic", targets="income", features=[bounds], groups=["east", "west"], unit=unit
    )
    tensors = [records.features, records.target]
    values = {f"{number:.4g}" for tensor in tensors for number in tensor.flatten().tolist()} - {"0", "1"}
    digits = {str(int(number)) for row in rows for number in row[:2]} | {name.split("-")[1] for name in people}
    batch = Batch(1, 0, records.take([0]), (1,), (0.5,))
    for printed in [*forms(records), *forms(records.take([0])), repr(batch), repr(Units.of(records))]:
        assert not [value for value in values | digits | set(people) if value in printed]
        assert len(printed) <= 2 * MOST_SHOWN and "\n" not in printed and "tensor" not in printed


def test_declared_records_print_their_number_and_their_declaration():
    frame = pd.DataFrame({"age": [33.0, 44.0, 55.0], "sex": ["f", "m", "f"], "ill": [0, 1, 0]})
    records = fedsw.as_records(frame, group="sex", target="ill")
    line = "DeclaredRecords(from=pandas.DataFrame, records=3, inputs=1, columns=age, groups=f / m, classes=2)"
    assert repr(records) == line
    html = records._repr_html_()
    assert re.findall(r"<th>(\w+)</th>", html) == ["from", "records", "inputs", "columns", "groups", "classes"]


def test_people_are_counted_and_not_their_rows():
    frame = pd.DataFrame({"age": [33.0, 44.0, 55.0], "ill": [0, 1, 0], "patient": ["a", "a", "b"]})
    assert "units=2" in repr(fedsw.as_records(frame, target="ill", unit="patient"))
    assert "3" not in repr(fedsw.as_records(frame, target="ill", unit="patient"))


def test_a_part_of_records_does_not_say_how_many_it_holds():
    records = fedsw.as_records(torch.rand(977, 3, dtype=torch.float64), group=np.arange(977) % 2)
    assert "977" in repr(records)
    assert "977" not in repr(records.take(range(977))) and "911" not in repr(records.part(0, 911))


def test_a_name_is_shown_as_text_in_a_notebook_and_in_one_line():
    frame = pd.DataFrame({"<b>age</b>": [1.0, 2.0], "x\ny": ["<i>", "&"]})
    records = fedsw.as_records(frame, group="x\ny", groups=["<i>", "&"])
    assert "<b>" not in records._repr_html_().replace("&lt;b&gt;", "") and "&lt;i&gt; / &amp;" in records._repr_html_()
    many = fedsw.as_records(np.zeros((2, 50)), names=[f"a_long_name_of_a_column_{number}" for number in range(50)])
    assert "and 44 more" in repr(many) and "\n" not in repr(many)


def test_what_a_model_was_given_is_not_printed():
    assert "0.125" not in repr(Inputs(torch.full((2, 3), 0.125), torch.full((2, 1), 0.125), None))


def test_a_plan_prints_its_budget_in_a_line_and_a_seeded_one_says_nominal():
    objective = fedsw.Objective("classification", [fedsw.Parity(0.25)], classes=2)
    clip = fedsw.Clip(output=1, jacobian=0.1, loss=1)
    asked = {"sizes": (90, 60), "rounds": 5, "epsilon": 2.0, "delta": 1e-5, "batch_fraction": 0.2}
    plan = fedsw.plan(objective, clip, **asked, seed=1)
    assert re.match(r"Plan\(records=150, strata=2, rounds=5, epsilon=nominal 2, delta=1e-05, noise multip", repr(plan))
    assert "epsilon=2," in repr(fedsw.plan(objective, clip, **asked)) and "guarantee" in str(plan)
    unbounded = fedsw.plan(objective, clip, **{**asked, "epsilon": float("inf")})
    assert "epsilon=∞" in repr(unbounded) or "epsilon=inf" in repr(unbounded)


@pytest.mark.parametrize(("reader", "said"), [(2.0, False), ("inf", True)])
def test_a_run_says_in_its_line_what_its_reader_has(reader, said):
    summary = {"status": "completed", "released_rounds": 3, "epsilon": 2.0, "epsilon_of_reader": reader}
    facts = run_facts("clinic", "runs/clinic", {**summary, "guarantee": {"statement": "(2, 1e-05)-DP"}})
    assert ("epsilon of the reader" in facts) == said and facts["guarantee"] == "(2, 1e-05)-DP"
    assert run_facts("clinic", "runs/clinic", {})["status"] is None


def test_a_class_that_prints_in_a_line_writes_no_line_of_its_own():
    assert {TrainedModel, fedsw.Plan, fedsw.SketchPlan, of_a_federation.FederationPlan} <= every(Short)
    for kind in every(Short):
        assert kind.__repr__ is Short.__repr__, f"{kind}: a dataclass needs repr=False"


def test_what_is_read_of_a_run_prints_how_it_ended_and_none_of_its_outputs(tmp_path):
    values = np.full((3, 1), 0.123456)
    outputs = HeldOutOutputs(values, np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64))
    summary = {"status": "failed: gone", "released_rounds": 2, "guarantee": {"statement": "(2, 1e-05)-DP"}}
    record = RunView(
        tmp_path, load_experiment(find_experiment("fair-classification"), []), summary, [{"round": 1}], outputs
    )
    for printed in forms(record):
        assert "failed: gone" in printed and "(2, 1e-05)-DP" in printed and "0.123" not in printed


def plan(**more) -> Planned:
    known = {
        **{"experiment": load_experiment(find_experiment("fair-classification"), []), "sensitivity": None},
        **{"chosen": {}, "by_group": {"a": 20, "b": 30}, "assumed": "", "inputs": 2, "parameters": 3, "batch": (2, 3)},
        **{"releases": 5, "epsilon": 1.0, "delta": 1e-5, "multiplier": 2.0, "why_not": "nothing can be expected"},
    }
    return Planned(**{**known, "forecast": None, **more})


def test_a_plan_says_whether_a_penalty_or_thresholds_fit_by_who_may_read_the_group():
    shown = dict(rows(plan(penalties={0.2: 1.5})))
    assert "may be read of every record that is predicted" in shown["thresholds"]
    assert "A penalty (alpha) fits where it may not" in shown["thresholds"]
    assert "thresholds" not in dict(rows(plan(by_group={"a": 50})))


def test_a_plan_before_a_run_prints_its_verdict_first():
    planned = plan()
    assert repr(planned).startswith("Planned(verdict=") and "nothing can be expected" in planned._repr_html_()


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_number_of_a_table_is_cut_however_narrow_the_screen(width, capsys):
    headings = ["records of", "all", "Asian-Pac-Islander", "accuracy", "missing cells", "faults"]
    rows = [[f"client {place}", f"32,56{place}", "1,039", "0.749\n0.693 to 0.802", "4,262", "0"] for place in range(3)]
    Console(width=width).print(table_of(headings, rows))
    shown = capsys.readouterr().out
    assert "…" not in shown and all(len(line) <= width for line in shown.splitlines())
    words = {word for row in [headings, *rows] for cell in row for word in cell.split()}
    assert words <= set(shown.split())
    assert shown.count("client 1") == shown.count("client 2") >= 1 and (width < 200 or shown.count("client 1") == 1)


@pytest.mark.parametrize("width", range(40, 100, 4))
def test_a_column_that_is_kept_whole_cuts_no_other(width, capsys):
    """The name is longer than its longest word, which once passed for its width."""
    cell = "not to be seen\n0.123 to 0.634"
    headings = ("kept out by", "count", *(f"metric {letter}" for letter in "abcd"))
    rows = [["all the clients", "1,279", *(cell,) * 4]] * 2
    Console(width=width).print(table_of(headings, rows, whole=("kept out by",)))
    shown = capsys.readouterr().out
    assert shown.count("not to be seen") == shown.count("0.123 to 0.634") == 8 and "all the clients" in shown
