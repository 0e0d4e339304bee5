"""A run's folder: its files are named in one place, and read and written by one pair of hands."""

import ast
import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest

import fedsw
from fedsw.audit.record import read_folder
from fedsw.cli.app import main
from fedsw.runs import run_files as files
from fedsw.runs.directory import RunDirectory
from fedsw.runs.run_files import found_json, jsonable, read_json, read_lines, write_json
from fedsw.runs.status import read_status
from fedsw.runs.view import read_run
from tests.federations import Federation, small


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    Federation(folder := tmp_path_factory.mktemp("made")).run(small("training.rounds=1"))
    return folder / "run1"


@pytest.fixture
def finished(made, tmp_path):
    """A copy of a finished run's folder."""
    return Path(shutil.copytree(made, tmp_path / "run"))


SOURCE = Path(fedsw.__file__).parent
NAMES = {value for name, value in vars(files.RunFile).items() if name.isupper() and "." in value}
APART = (
    "_tools/files.py",
    "runs/run_files.py",
    "audit/record/",
)  # the owner, and the reader that is its own on purpose


def _literals(path):
    text = path.read_text(encoding="utf-8")
    nodes = ast.walk(ast.parse(text)) if any(name in text for name in NAMES) else ()
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_only_their_owner_spells_the_names_of_a_run_s_files():
    assert {"config.json", "summary.json", "metrics.jsonl", "ledger.sqlite", "plan.json"} <= NAMES and len(NAMES) == 25
    elsewhere = {
        (str(path.relative_to(SOURCE)), name)
        for path in SOURCE.rglob("*.py")
        if not str(path.relative_to(SOURCE)).startswith(APART)
        for name in NAMES & _literals(path)
    }
    assert elsewhere == set()


def test_what_was_written_is_read_back_with_infinities_as_words(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, jsonable({"ε": math.inf, "low": -math.inf, "none": math.nan, "deep": [{"x": (1, 2.5, None)}]}))
    assert read_json(path) == {"ε": "inf", "low": "-inf", "none": "nan", "deep": [{"x": [1, 2.5, None]}]}
    assert read_json(tmp_path / "b.json") is None and found_json(tmp_path / "b.json") == {}


@pytest.mark.parametrize("content", [b"{]", b"\xff\xfe", b"[1]", b"3", b""])
def test_a_damaged_file_is_named_and_never_half_read(tmp_path, content):
    path = tmp_path / "summary.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"summary\.json is damaged"):
        read_json(path)
    assert found_json(path) == {}


def test_every_whole_line_is_read_and_only_the_last_may_be_cut_short(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_lines(path) == []
    whole = b'{"round": 1}\n{"round": 2}\n'
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        assert read_lines(path) == [{"round": 1}, {"round": 2}][: (length >= 12) + (length >= 25)]
    path.write_bytes(b'{"round"\n{"round": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1"):
        read_lines(path)


@pytest.mark.parametrize(
    "name", [files.RunFile.CONFIG, files.RunFile.SUMMARY, files.RunFile.METRICS, files.RunFile.OUTPUTS, "ledger.sqlite"]
)
def test_a_pipe_in_a_folder_that_somebody_sent_is_refused_and_waited_for_by_nobody(finished, name):
    (finished / name).unlink(missing_ok=True)
    os.mkfifo(finished / name)
    for read in (read_run, read_status, lambda folder: RunDirectory(folder).read_config()):
        with pytest.raises(ValueError, match=f"{name} is no file but a pipe"):
            read(finished)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rounds", [4], "'rounds' is a list, and a whole number belongs there"),
        ("epsilon", {}, "'epsilon' is a dict, and a number belongs there"),
        ("epsilon_spent", "much", "'epsilon_spent' is a str, and a number belongs there"),
        ("held_out", 0.5, "'held_out' is a float, and an object belongs there"),
        ("held_out", {"accuracy": ["x"]}, "'accuracy' is a list, and a number of 'held_out' belongs there"),
        ("warnings", "none", "'warnings' is a str, and a list belongs there"),
        ("status", 3, "'status' is a int, and a text belongs there"),
    ],
)
def test_a_summary_with_another_type_somewhere_is_named_with_its_key(finished, key, value, said, capsys):
    path = finished / files.RunFile.SUMMARY
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ValueError, match=re.escape(f"{path} is damaged: {said}")):
        read_run(finished)
    assert main(["show", str(finished)]) == 2 and said in capsys.readouterr().err


def test_every_file_of_a_run_may_leave_or_is_kept_back(tmp_path):
    """A new file is in one of two lists, so that a copy of a run holds what was released and nothing else."""
    constants = vars(files.RunFile).items()
    named = {value for name, value in constants if name.isupper() and isinstance(value, str)}
    assert sorted([*files.RELEASABLE, *files.KEPT_BACK]) == sorted(named)
    Federation(tmp_path).run(small("federation.clients=2", "privacy.moments=0.2"))
    left = {path.name for path in (tmp_path / "run1").iterdir()}
    of_others = {"clients", f"{files.RunFile.LEDGER}.lock"}
    assert {name for name in left if not name.startswith("checkpoint")} <= named | of_others


@pytest.mark.parametrize("read", [read_run, lambda folder: RunDirectory(folder).read_config(), read_folder])
def test_a_folder_of_the_last_two_formats_is_read_and_a_newer_one_is_refused(finished, read):
    config = finished / files.RunFile.CONFIG
    content = json.loads(config.read_text())
    assert content.pop("format") == 1
    config.write_text(json.dumps(content))
    read(finished)  # from before formats were written
    for other in (2, "1", None, True):
        config.write_text(json.dumps(content | {"format": other}))
        with pytest.raises(ValueError, match="and this version of fedsw reads 0 to 1"):
            read(finished)
