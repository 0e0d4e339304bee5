"""Laws of what a stranger's folder prints: none of its texts moves a cursor, colours a screen or is read as markup."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedsw._tools.text import harmless, json_text
from fedsw.cli.app import main
from fedsw.cli.options import report_fault
from fedsw.runs.report.console import Screen

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202e[bold]x[/nothing]"
OBEYED = "\x1b\x07\x9b\r\u202e"
TEXTS = ("title", "status", "statement", "warnings")


def spoiled(value: Any, key: str = "") -> Any:
    """A stored value whose free texts end in commands."""
    if isinstance(value, dict):
        return {name: spoiled(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [spoiled(each, key) for each in value]
    return value + EVIL if isinstance(value, str) and key in TEXTS else value


@pytest.fixture
def folder(classifier: Path, tmp_path: Path) -> Path:
    """The folder of a run whose texts were written by a stranger."""
    found = tmp_path / "run"
    shutil.copytree(classifier, found)
    for name in ("config.json", "summary.json"):
        path = found / name
        path.write_text(json.dumps(spoiled(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
    return found


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "verb", ["show", "show progress", "show ledger", "show card", "resume", "export", "predict", "evaluate"]
)
def test_no_verb_lets_a_text_of_a_folder_command_the_terminal(folder, place, capfd, verb, as_json):
    more = {"predict": [str(place / "held-out.csv"), "-o", str(folder / "out.csv")]}.get(verb, [])
    main([verb.split()[0], str(folder), *verb.split()[1:], *more, *(["--json"] if as_json else [])])
    out, err = capfd.readouterr()
    assert (out + err).strip()
    assert not set(OBEYED) & set(out + err)


def test_what_is_shown_of_a_folder_is_there_all_the_same(folder, capfd):
    assert main(["show", str(folder)]) == 0
    assert "]0;owned" in capfd.readouterr().out
    assert main(["show", str(folder), "--json"]) == 0
    assert EVIL in json.loads(capfd.readouterr().out)["status"]


def test_a_card_holds_no_commands_either(folder):
    assert main(["show", str(folder), "card"]) == 0
    text = (folder / "card.md").read_text(encoding="utf-8")
    assert "owned" in text and not set(OBEYED) & set(text)


def test_pages_and_cards_make_the_folder_that_they_are_to_be_in(folder, tmp_path):
    assert main(["show", str(folder), "card", "-o", str(tmp_path / "cards" / "card.md")]) == 0
    assert main(["report", str(folder), "-o", str(tmp_path / "pages" / "page.html")]) == 0
    assert (tmp_path / "cards" / "card.md").is_file() and (tmp_path / "pages" / "page.html").is_file()


def test_an_error_about_a_stored_run_is_harmless(folder, capfd):
    named = folder.rename(folder.with_name("run\x1b[31m\x07"))
    (named / "config.json").write_text("{", encoding="utf-8")
    for verb, *what in (["show"], ["show", "progress"], ["show", "card"], ["resume"]):
        assert main([verb, str(named), *what]) != 0
        out, err = capfd.readouterr()
        assert "31m" in err and not set(OBEYED) & set(out + err)
    assert report_fault(ValueError(EVIL), debug=False) == 2
    assert "owned" in (err := capfd.readouterr().err) and not set(OBEYED) & set(err)


def test_brackets_in_a_text_are_no_markup():
    from rich.table import Table
    from rich.text import Text

    view = Table.grid()
    view.add_row(EVIL, Text("fine" + EVIL, style="red"))
    screen = Screen()
    with screen.capture() as caught:
        screen.print(view)
    assert "[bold]x[/nothing]" in caught.get().replace("\n", "") and not set(OBEYED) & set(caught.get())


def test_harmless_texts_stay_what_they_are_and_json_says_the_same_value():
    for text in ("ε ≤ 1.5 → ok\n\tnext line", "Müller & Söhne", "日本語", "a\u200db"):
        assert harmless(text) == text and json.loads(json_text(text)) == text
    assert json.loads(json_text({"a": EVIL}))["a"] == EVIL and not set(OBEYED) & set(json_text({"a": EVIL}))
    assert len(harmless("x" * 5000)) == 5000
