"""A run's folder: its files are named in one place, and read and written by one pair of hands."""

import ast
import math
from pathlib import Path

import pytest

import fedsw
from fedsw.runs import files
from fedsw.runs.files import found_json, jsonable, read_json, read_lines, write_json
from tests.federations import Federation, small

SOURCE = Path(fedsw.__file__).parent
NAMES = {value for name, value in vars(files).items() if name.isupper() and isinstance(value, str) and "." in value}
APART = ("runs/files.py", "audit/record/")  # the owner, and the reader that is its own on purpose


def _literals(path):
    text = path.read_text(encoding="utf-8")
    nodes = ast.walk(ast.parse(text)) if any(name in text for name in NAMES) else ()
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_only_their_owner_spells_the_names_of_a_run_s_files():
    assert {"config.json", "summary.json", "metrics.jsonl", "ledger.sqlite", "plan.json"} <= NAMES and len(NAMES) == 20
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


def test_every_file_of_a_run_may_leave_or_is_kept_back(tmp_path):
    """A new file is in one of two lists, so that a copy of a run holds what was released and nothing else."""
    others = {"RUN_NAME", "CLIENT_LEDGERS", "RELEASABLE", "KEPT_BACK"}
    constants = {name: value for name, value in vars(files).items() if isinstance(value, str) and name.isupper()}
    named = {value for name, value in constants.items() if name[0].isalpha() and name not in others}
    assert sorted([*files.RELEASABLE, *files.KEPT_BACK]) == sorted(named)
    Federation(tmp_path).run(small("federation.clients=2", "privacy.moments=0.2"))
    left = {path.name for path in (tmp_path / "run1").iterdir()}
    of_others = {"clients", f"{files.LEDGER}.lock"}
    assert {name for name in left if not name.startswith("checkpoint")} <= named | of_others
