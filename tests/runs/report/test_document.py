"""Laws of pages that are no run's: a comparison's, a plan's, a card's, a synthetic table's say what their files say."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup
from rich.console import Console

from fedsw.cli.app import main
from fedsw.desk.compare import comparison_page as page
from fedsw.desk.compare.comparison_grid import make_grid
from fedsw.desk.compare.comparison_page import read_comparison
from fedsw.desk.compare.table import spread
from fedsw.desk.planning.forecast import Forecast, Score, WhatIf
from fedsw.desk.planning.run_plan import Planned, as_plain, plan_document, planned_view
from fedsw.experiment import load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.runs.report.document import Code, Document, FactTable, Listed, PageSection, Strong
from fedsw.runs.report.figures import Picture
from fedsw.runs.run_files import read_json
from fedsw.runs.write import write_card
from tests.desk.compare.comparing import table_of
from tests.runs.report.test_run_documents_page import MOST_BYTES, Outline


def sound(text: str) -> Outline:
    """What a reader gets of a page that is well formed, loads nothing, and names its figures."""
    found = Outline(text)
    assert not found.open, f"left open: {found.open}"
    assert not [each for each in found.loaded if not each.startswith(("#", "data:image/png"))]
    assert "default-src 'none'" in text and len(text.encode()) < MOST_BYTES
    assert not found.unnamed and len(found.ids) == len(set(found.ids))
    levels = [level for level, _ in found.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))
    return found


WHOLE = Document(
    "A <b>title\x1b[31m",
    "It comes to <this>.",
    (Strong("Mind & this"), "a | b"),
    ("careful",),
    (
        PageSection.of("First", [Listed("Numbers", FactTable.of(("", "x"), [("a|b", 1)])), Code("x = 1\ny = 2"), ""]),
        PageSection.of("Empty", [Listed("None", FactTable.of(("x",), []))]),
        PageSection.of("Drawn", [Picture("A figure", Markup('<svg aria-label="f"></svg>'), 100)]),
    ),
)


def test_a_document_is_the_same_as_a_page_and_in_markdown_but_for_figures():
    html, text = WHOLE.page(), WHOLE.markdown()
    found = sound(html)
    for words in ("It comes to <this>.", "Mind & this", "careful", "Numbers", "x = 1 y = 2"):
        assert words in found.text
    assert "<b>" not in html and "\x1b" not in html + text and "Empty" not in html + text
    assert text.startswith("# A &lt;b>title") and "\n**Mind & this**\n" in text and "- **careful**" in text
    assert "|  | x |\n|---|---|\n| a\\|b | 1 |" in text and "```\nx = 1\ny = 2\n```" in text
    assert "\n\n\n" not in text and "A figure" not in text


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    folder = tmp_path / "compare"
    folder.mkdir()
    table_of(folder, make_grid("fair-classification", methods=["central", "local-gradient"], epsilons=[1, 3], seeds=2))
    return folder


def test_the_page_of_a_comparison_says_what_its_table_says(comparison: Path, capsys: Any) -> None:
    assert main(["report", str(comparison)]) == 0
    assert capsys.readouterr().out.strip() == str(comparison / "report.html")
    text = (comparison / "report.html").read_text()
    found, read = sound(text), read_comparison(comparison)
    rows = [row for group in read.table["groups"] for row in group["rows"]]
    assert len(rows) == 4 and read.verdict in found.text and text.count("<figure>") == 1
    for group in read.table["groups"]:
        assert group["heading"][1:] in found.text
    for row in rows:
        for name in read.table["metrics"]:
            assert spread(row["metrics"][name]) in found.text
    assert "bytes" not in found.text and "seconds" not in found.text, "times and traffic are the operator's"
    assert "best mean" in read._repr_html_() and "<table>" in read._repr_html_()


def test_the_verdict_is_the_best_mean_in_the_metric_s_own_direction(comparison: Path) -> None:
    read = read_comparison(comparison)
    first = next(group for group in read.table["groups"] if group["guarantee"])
    for place, row in enumerate(first["rows"]):
        row["metrics"][read.table["metric"]] = {"mean": 0.1 * (1 + place), "sd": None}
    assert " 0.2, by central at ε = 3" in read.verdict
    lower = type(read)(read.directory, {**read.table, "better": "lower"}, private=False)
    assert " 0.1, by central at ε = 1" in lower.verdict


def test_metrics_of_records_that_may_be_private_are_on_no_page_of_a_comparison(tmp_path: Path, monkeypatch) -> None:
    grid = make_grid("fair-classification", methods=["central"], epsilons=[1], seeds=1)
    table_of(tmp_path, grid)
    data = grid.cells[0].experiment.data.model_copy(update={"held_out_overlap": "allow"})
    private = replace(grid.cells[0], experiment=grid.cells[0].experiment.model_copy(update={"data": data}))
    monkeypatch.setattr(page, "read_grid", lambda folder: replace(grid, cells=(private,)))
    read = read_comparison(tmp_path)
    text = Outline(read.page()).text
    assert read.private and "left out of this page" in text and "<figure>" not in read.page()
    tables = [part for section in read.document().sections for part in section.parts if isinstance(part, Listed)]
    assert [each.facts.headings for each in tables] == [("method", "ε", "δ", "rounds", "seeds")]


KEPT = ((50, 1.0, 0.1), (50, 3.0, 0.5), (100, 1.0, 0.4), (100, 3.0, 1.2))


def planned(forecast: Forecast | None = None) -> Planned:
    return Planned(
        experiment=load_experiment(find_experiment("fair-classification"), []),
        **{"chosen": {"clip": {"output": 1.0}}, "by_group": {"a": 20, "b": 30}, "assumed": "", "inputs": 2},
        **{"parameters": 3, "batch": (2, 3), "releases": 5, "epsilon": 1.0, "delta": 1e-5, "multiplier": 2.0},
        **{"sensitivity": None, "forecast": forecast, "why_not": "nothing can be expected"},
    )


def plan() -> dict[str, Any]:
    shown = [dict(zip(("records", "epsilon", "kept"), each, strict=True)) for each in KEPT]
    return as_plain(planned()) | {"forecast": {"thresholds": {"feasible": 0.3, "about_all": 0.9}, "what_ifs": shown}}


def test_the_screen_of_a_plan_has_a_line_for_each_number_of_records_and_a_column_for_each_epsilon() -> None:
    what_ifs = tuple(WhatIf(*each) for each in reversed(KEPT))
    learnt = (Score(model=0.8, constant=0.6),)
    forecast = Forecast("a linear model", learnt, 0.4, (0.3, 0.5), 2.0, what_ifs)
    screen = Console(width=80, record=True, file=io.StringIO())
    screen.print(planned_view(planned(forecast)))
    lines = [line.split() for line in screen.export_text().splitlines()]
    assert ["records", "ε", "=", "1", "ε", "=", "3"] in lines
    shown = [" ".join(line) for line in lines if line[:1] in (["50"], ["100"])]
    assert shown == ["50 a constant does as well 50 %", "100 40 % 100 %"]


def test_the_page_of_a_plan_says_what_its_json_says(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan()))
    assert main(["report", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(tmp_path / "plan.html")}
    text = (tmp_path / "plan.html").read_text()
    found = sound(text)
    assert plan()["verdict"] in found.text and plan()["words"]["records"] in found.text
    assert "a constant does as well" in found.text and "50 %" in found.text and "100 %" in found.text
    assert 'data-sliders="cells"' in text and text.count("<figure>") == 1
    without = plan_document(plan() | {"forecast": None}).page()
    assert "<figure>" not in without and "What if" not in without


def test_what_is_no_plan_is_refused_by_what_is_missing(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"verdict": "fine"}')
    assert main(["report", str(path)]) == 2
    assert "no plan" in (said := capsys.readouterr().err) and "words" in said
    path.write_text(json.dumps(plan()))
    assert main(["report", str(path), "own"]) == 2 and "alone" in capsys.readouterr().err


def test_a_card_as_a_page_has_the_numbers_of_the_card(central: Path, tmp_path: Path) -> None:
    found = sound(write_card(central, tmp_path / "card.html").read_text())
    card = write_card(central, tmp_path / "card.md").read_text()
    summary = read_json(central / "summary.json")
    assert summary is not None and summary["guarantee"]["statement"] in found.text
    numbers = set(re.findall(r"\d+\.\d+", card.split("## Settings")[0]))
    assert len(numbers) > 10 and not [number for number in numbers if number not in found.text]
