"""Laws of a run's page: it says what its files say, nothing beyond its guarantee, and loads nothing."""

from __future__ import annotations

import functools
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markupsafe import Markup

from fedsw._tools.text import measured, upward
from fedsw.cli.app import main
from fedsw.privacy.accounting import Charge, Ledger, Step
from fedsw.privacy.accounting.lifetime import Cost, total_epsilon
from fedsw.privacy.accounting.meaning import Meaning
from fedsw.privacy.accounting.selection import Repetitions, Selection
from fedsw.runs.accounts import read_ledgers
from fedsw.runs.report import person, run_documents
from fedsw.runs.report.figures import Picture
from fedsw.runs.report.person import percent
from fedsw.runs.report.plots import draw_metrics
from fedsw.runs.report.run_documents import WhatIfs, page
from fedsw.runs.run_files import RunFile, read_json, read_lines
from fedsw.runs.view import read_run, read_whole_run

MOST_BYTES = 2_000_000


class Outline(HTMLParser):
    """What a screen reader walks along: text, headings, names of elements, and what would be loaded."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.headings, self.ids, self.loaded, self.open = "", [], [], [], []
        self.unnamed: list[str] = []
        self.feed(text)
        self.text = re.sub(r"\s+", " ", self.text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        if tag not in ("meta", "br", "img", "input", "path", "use", "rect", "link"):
            self.open.append(tag)
        self.loaded += [value for name, value in attributes if name in ("src", "href", "xlink:href") and value]
        self.ids += [found["id"]] if found.get("id") else []
        if (tag == "img" and not found.get("alt")) or (tag == "svg" and not found.get("aria-label")):
            self.unnamed.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and tag == self.open[-1]:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data
        if self.open and re.fullmatch(r"h[1-6]", self.open[-1]):
            self.headings.append((int(self.open[-1][1]), data))


@functools.cache
def drawn(*directories: Path) -> str:
    """The whole page of some runs."""
    return page([read_whole_run(each) for each in directories])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures out: they take most of the time."""
    for where in (run_documents, person):
        monkeypatch.setattr(where, "picture", lambda figure, caption, **_: Picture(caption, Markup(""), 100))


def outline(directory: Path, *, operator: bool = False) -> Outline:
    return Outline(page([read_whole_run(directory)], operator=operator))


@pytest.mark.parametrize("name", ["central", "local", "distributed"])
def test_the_page_says_what_the_summary_says(name, request, quick):
    directory = request.getfixturevalue(name)
    summary, found = read_json(directory / "summary.json"), outline(directory)
    accuracy = measured(summary["held_out"]["accuracy"], summary["held_out_intervals"]["accuracy"])
    for part in (summary["guarantee"]["statement"], summary["guarantee"]["against"], accuracy, *summary["warnings"]):
        assert re.sub(r"\s+", " ", part) in found.text, part
    meaning = read_whole_run(directory).spending.meaning()
    assert percent(meaning.advantage) in found.text and percent(meaning.posterior(0.5, 0.01)) in found.text
    assert "did not complete" not in found.text and "For the operator" not in found.text


def test_a_page_loads_nothing_and_is_small(central, local):
    text = drawn(central, local)
    assert len(text.encode()) < MOST_BYTES
    found = Outline(text)
    assert not [each for each in found.loaded if not each.startswith(("#", "data:image/png"))]
    assert "default-src 'none'" in text and "@import" not in text and not re.findall(r"url\((?!#)", text)


def test_every_figure_has_words_every_name_is_used_once_and_headings_follow_one_another(central, local):
    for found in map(Outline, (drawn(central), drawn(central, local))):
        assert not found.unnamed and len(found.ids) == len(set(found.ids))
        levels = [level for level, _ in found.headings]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in zip(levels, levels[1:], strict=False))


def test_nothing_shown_is_beyond_the_guarantee_but_for_the_operator(unsafe, quick):
    public, own = (page([read_whole_run(unsafe)], operator=operator) for operator in (False, True))
    assert all("training_loss" in row for row in read_lines(unsafe / "metrics.jsonl"))
    assert not [row for row in read_run(unsafe).shareable().history if "training_loss" in row]
    assert "what was measured on private records" in own and "without noise is left out" in public
    assert "For the operator only" in own and "For the operator only" not in public
    titles = [
        {axes.get_title() for axes in draw_metrics(each).axes}
        for each in (read_run(unsafe), read_run(unsafe).shareable())
    ]
    assert titles[0] - titles[1] == {"training loss (unsafe)"}


def test_records_that_may_be_private_are_not_measured_on_a_page(central):
    record = read_run(central)
    data = record.experiment.data.model_copy(update={"held_out_overlap": "allow"})
    shown = replace(record, experiment=record.experiment.model_copy(update={"data": data})).shareable()
    assert shown.outputs is None and not [name for name in shown.summary if name.startswith(("held_out", "constant"))]


def test_times_and_traffic_are_for_the_operator(central, quick):
    summary = read_json(central / "summary.json")
    public, own = outline(central), outline(central, operator=True)
    assert str(summary["bytes_up"]) in own.text and str(summary["bytes_up"]) not in public.text
    assert str(central) in own.text and str(central) not in public.text


def test_a_run_that_stopped_says_so_first(central, tmp_path, quick):
    stopped = tmp_path / "own" / "20260101-000000"
    shutil.copytree(central, stopped)
    summary = read_json(stopped / "summary.json")
    (stopped / "summary.json").write_text(
        json.dumps({**summary, "status": "failed: client 1 is gone", "released_rounds": 2})
    )
    found = outline(stopped)
    assert found.text.index("This run failed after 2 of 3 rounds: client 1 is gone") < found.text.index("accuracy")
    (stopped / "summary.json").unlink()
    assert "This run stopped after 3 rounds" in outline(stopped).text


def test_without_noise_nobody_is_said_to_be_protected(without_noise, quick):
    found = outline(without_noise)
    assert "No record is protected: no noise was added" in found.text and "What ε means" not in found.text


def test_runs_side_by_side_differ_in_what_their_settings_differ(central, local):
    found = Outline(drawn(central, local))
    assert "privacy.trust" in found.text and "training.rounds" not in found.text.split("Settings that differ")[1][:400]


def test_several_runs_say_what_they_cost_together_before_anything_else(central, local, without_noise):
    costs = [read_whole_run(path).spending.cost for path in (central, local)]
    together = total_epsilon(costs, 1e-4)
    assert all(total_epsilon([cost], 1e-4) < together < 2.0 for cost in costs)
    text = Outline(drawn(central, local)).text
    sentence = f"Together, for a record that is in all of them: ε = {upward(together, 4)} at δ = 0.0001"
    assert sentence in text and text.index(sentence) < text.index("Side by side")
    assert "Together" not in Outline(drawn(central)).text
    assert "in all of them: ε = ∞, for " in Outline(drawn(central, without_noise)).text


def test_the_best_of_several_runs_counts_with_its_selection_beside_others(tmp_path):
    selection = Selection(Repetitions(0.0, 0.1), ((Step(1.0, 0.1), 1),), 2.0, 1e-4)
    with Ledger.create(
        tmp_path / RunFile.LEDGER, groups=("all",), delta=1e-4, epsilon=2.0, selection=selection
    ) as ledger:
        assert read_ledgers(tmp_path).cost.steps == {}
        ledger.spend(0, 0, [Charge("all", 1.0, 0.1)], 1.0)
    alone = total_epsilon([Cost.one({Step(1.0, 0.1): 1})], 1e-4)
    assert total_epsilon([read_ledgers(tmp_path).cost], 1e-4) > 1.5 * alone


def test_what_is_said_to_a_person_holds_at_every_client_not_only_where_most_was_spent(tmp_path):
    taken = [(Step(1.0, 0.5), 1), (Step(0.01, 2.5), 20)]
    for client, (step, times) in enumerate(taken):
        (path := tmp_path / "nodes" / str(client) / f"client-{client}.sqlite").parent.mkdir(parents=True)
        with Ledger.create(path, groups=("all",), delta=1e-4, epsilon=9.0) as ledger:
            for round in range(times):
                ledger.spend(round, 0, [Charge("all", step.sampling_rate, step.mu)], 1.0)
    spending, meanings = read_ledgers(tmp_path), [Meaning.of_steps({step: times}) for step, times in taken]
    first, second = (one["epsilon"] for one in spending.account["clients"].values())
    assert first < second == spending.account["epsilon"]
    assert spending.meaning().advantage == meanings[0].advantage > meanings[1].advantage
    assert spending.meaning().shift(1e-5) >= meanings[1].shift(1e-5) - 1e-3 > meanings[0].shift(1e-5)


def test_what_strangers_wrote_is_text(central, tmp_path, quick):
    copy = tmp_path / "x" / "<script>alert(1)<"
    shutil.copytree(central, copy)
    config = read_json(copy / "config.json")
    config["experiment"]["title"] = "<img src=x onerror=alert(2)>\x1b[31m\u202eevil"
    (copy / "config.json").write_text(json.dumps(config))
    text = page([read_whole_run(copy)])
    assert text.count("<script>") == 1 and "<img src=x" not in text and "\x1b" not in text and "\u202e" not in text


def test_what_ifs_are_those_of_the_plan():
    plan = {
        "verdict": "feasible",
        "forecast": {
            "thresholds": {"feasible": 0.3},
            "what_ifs": [
                {"records": n, "epsilon": e, "kept": k}
                for n, e, k in ((10, 1.0, 0.1), (10, 3.0, 0.5), (20, 1.0, 0.4), (20, 3.0, 1.2))
            ],
        },
    }
    found = WhatIfs.of_plan(plan)
    assert found.table.headings == ("records", "ε = 1", "ε = 3")
    assert found.table.rows == (("10", "a constant does as well", "50 %"), ("20", "40 %", "100 %"))
    assert WhatIfs.of_plan({"verdict": "no", "forecast": None}) is None


def test_the_command_writes_the_page_into_the_run_s_folder(central, tmp_path, capsys, quick):
    copy = tmp_path / "runs" / "central" / "20260101-000000"
    shutil.copytree(central, copy)
    assert main(["report", "central", "--runs", str(tmp_path / "runs")]) == 0
    assert (
        capsys.readouterr().out.strip() == str(copy / "report.html") and (copy / "report.html").stat().st_size > 10_000
    )
