"""Laws of `fedsw choose`: every answer leads to a run that fedsw accepts, and the page is what the command says."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from fedsw.cli.app import main
from fedsw.desk.own_data.choice import _FELT, MEASURED, QUESTIONS, Answers, choose, page, strength_of
from fedsw.experiment import load_experiment
from fedsw.experiment.trust import trust_models
from tests.desk.own_data.test_init import folder

ROOT = Path(__file__).resolve().parents[3]
POSSIBLE = {name: list(answers) for name, (_, answers) in QUESTIONS.items() if answers}


@pytest.mark.parametrize("answers", list(itertools.product(*POSSIBLE.values())), ids="-".join)
def test_what_is_said_to_be_typed_is_accepted_and_is_of_the_trust_model_that_is_said(answers, tmp_path, monkeypatch):
    given = dict(zip(POSSIBLE, answers, strict=True))
    found = choose(Answers(**given))
    assert found.trust in trust_models()
    whom = {"server": ("central", "sketch"), "masked": ("distributed",), "nobody": ("local-gradient", "sketch-local")}
    assert found.trust in whom[given["sums"]]
    assert ("stratified" in found.settings.values()) == (found.trust == "central" and given["counts"] == "watched")
    monkeypatch.chdir(tmp_path)
    draft, _, *rest = (command.split() for command in found.commands)
    draft[draft.index("DATA")] = str(folder(tmp_path))
    for option, column in (("--group", "sex"), ("--target", "income"), ("--unit", "id")):
        if option in draft:
            draft[draft.index(option) + 1] = column
    assert ("--unit" in draft) == (given["rows"] == "several")
    assert main([*draft[1:], "--from-public"]) == 0
    changes = [word for word in rest[-1] if "=" in word and not word.startswith("--")]
    experiment = load_experiment(tmp_path / "own.toml", changes)
    asked = rest[-1][rest[-1].index("--trust") + 1] if given["product"] == "table" else experiment.privacy.trust
    assert asked == found.trust


def test_more_clients_who_trust_nobody_need_more_records_and_a_server_needs_not():
    alone = [strength_of(Answers(sums="server", clients=clients)) for clients in (2, 50)]
    apart = [strength_of(Answers(sums="nobody", clients=clients)) for clients in (2, 50)]
    assert alone[0] == alone[1] and apart[0] == pytest.approx(5 * apart[1])
    together = [strength_of(Answers(sums="masked", clients=clients)) for clients in (2, 50)]
    assert apart[0] == pytest.approx(together[0]) and together[1] == pytest.approx(alone[1] * math.sqrt(49 / 50))
    few = choose(Answers(sums="nobody", records=60, clients=10))
    assert few.strength < _FELT and few.enough_data.startswith("not enough")


def test_what_nobody_answered_is_the_cautious_answer_and_is_named(capsys):
    assert main(["choose", "--sums", "server", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    numbers = {"records": 1000, "clients": 4, "columns": 10, "epsilon": 1.0}
    assert found["assumed"] == {"counts": "watched", "rows": "several", "product": "model", **numbers}
    assert found["settings"]["privacy.sampling"] == "stratified" and found["when_not_to_use_fedsw"]
    assert main(["choose", "--records", "500", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["trust"] == "local-gradient" and found["assumed"]["sums"] == "nobody"
    assert found["settings"]["data.unit"] == "COLUMN" and "records" not in found["assumed"]


def test_commands_are_printed_in_one_line_each_and_one_client_is_no_clients(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["choose", "--clients", "1", "--columns", "1", "--rows", "several"]) == 0
    shown = capsys.readouterr().out
    found = choose(Answers(clients=1, columns=1, rows="several"))
    assert all(f"    {command}\n" in shown for command in found.commands) and max(map(len, found.commands)) > 60
    assert "records at 1 client, 1 column, epsilon 1:" in shown
    assert "--sums nobody, --counts watched, --product model, --records 1000, --epsilon 1.0" in shown


def test_one_client_cannot_be_hidden_in_a_sum(capsys):
    assert main(["choose", "--sums", "masked", "--clients", "1"]) == 2
    assert "there is 1" in capsys.readouterr().err


def test_the_decision_page_is_the_commands_text():
    assert (ROOT / "docs" / "choose.md").read_text(encoding="utf-8") == page()


def test_the_measured_numbers_of_the_page_are_the_committed_results():
    text = (ROOT / "docs" / "own-data-results.md").read_text(encoding="utf-8")
    cells = [line.strip("| ").split(" | ") for line in text.split("<!-- accuracy -->")[1].splitlines()]
    lost = {(row[0], row[2]): (row[1], row[7].split()[0]) for row in cells if len(row) == 9}
    for name, records, *points in MEASURED:
        assert [lost[name, epsilon] for epsilon in ("0.5", "1", "4")] == [(records, each) for each in points]
