"""Laws of the private check for persons at several clients: it counts whom both have, and without the key no more."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from fedsw.cli.app import main
from fedsw.desk.own_data.persons import digests, in_common

SCHEMA = """
unit = "patient"
features = [{name = "age", low = 0, high = 120}]
sensitive = {name = "sex", values = ["female", "male"]}
target = {name = "income", values = ["low", "high"]}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("schema.toml").write_text(SCHEMA)
    Path("shared.key").write_text("0123456789abcdef" * 4 + "\n")
    Path("other.key").write_bytes(bytes(range(33, 73)))
    table("a", ["p1", "p2", "p2", "p3"])
    table("b", ["p9", " p3", "p2"])
    table("c", ["q1"])
    return tmp_path


def table(name: str, patients: list[str]) -> None:
    rows = [f"{patient},{30 + place},female,low" for place, patient in enumerate(patients)]
    Path(f"{name}.csv").write_text("\n".join(["patient,age,sex,income", *rows, ""]))


def digest(name: str, *more: str, key: str = "shared.key") -> int:
    return main(["persons", "digest", f"{name}.csv", "--schema", "schema.toml", "--key-file", key, "-o", f"{name}.txt"])


def test_two_hospitals_learn_how_many_persons_both_have_whatever_rows_they_have(folder, capsys):
    assert [digest(name) for name in "abc"] == [0, 0, 0]
    assert "hashes of 3 persons" in capsys.readouterr().out
    assert main(["persons", "compare", "a.txt", "b.txt", "c.txt", "--json"]) == 2
    pairs = json.loads(capsys.readouterr().out)["pairs"]
    assert [(pair["files"], pair["persons"], pair["common"]) for pair in pairs] == [
        (["a.txt", "b.txt"], [3, 3], 2),
        (["a.txt", "c.txt"], [3, 1], 0),
        (["b.txt", "c.txt"], [3, 1], 0),
    ]
    assert main(["persons", "compare", "a.txt", "c.txt"]) == 0
    assert capsys.readouterr().out == "a.txt and c.txt: 0 persons in common, of 3 and 1\n"


def test_hashes_tell_nothing_of_rows_and_nothing_under_another_key(folder):
    shared, schema = Path("shared.key"), Path("schema.toml")
    before = digests(Path("a.csv"), schema, shared)
    table("a", ["p3"] * 5 + ["p1", "p2"])
    assert digests(Path("a.csv"), schema, shared) == before
    lines = before.decode().splitlines()
    other = digests(Path("a.csv"), schema, Path("other.key")).decode().splitlines()
    assert len(lines) == 4 and not set(lines) & set(other) and lines[1:] == sorted(lines[1:])


def test_the_file_is_for_its_owner_and_never_replaced(folder):
    assert digest("a") == 0 and digest("a") == 1
    assert stat.S_IMODE(Path("a.txt").stat().st_mode) == 0o600


def test_what_cannot_be_compared_is_refused_with_what_to_do(folder, capsys):
    def refused(*words: str) -> str:
        assert main(["persons", *words]) == 2
        return capsys.readouterr().err

    assert digest("a") == 0 and digest("b", key="other.key") == 0
    capsys.readouterr()
    assert "made under different keys" in refused("compare", "a.txt", "b.txt")
    assert "name two or more" in refused("compare", "a.txt")
    assert "is no file of `fedsw persons digest`" in refused("compare", "a.txt", "a.csv")
    Path("a.txt").write_text(Path("a.txt").read_text() + "p1\n")
    assert "a.txt: line 5 is no hash" in refused("compare", "a.txt", "b.txt")
    asked = ("digest", "c.csv", "--schema", "schema.toml", "-o", "c.txt", "--key-file")
    Path("short.key").write_text("hospital")
    assert "has 8 bytes, and at least 32" in refused(*asked, "short.key")
    assert "none.key" in refused(*asked, "none.key")
    Path("schema.toml").write_text(SCHEMA.replace('unit = "patient"', ""))
    assert "declares no unit" in refused(*asked, "shared.key")
    assert not Path("c.txt").exists()


def test_files_of_everybody_are_compared_pair_by_pair(folder):
    for name in "abc":
        digest(name)
    found = in_common([Path(f"{name}.txt") for name in "abc"])
    assert [each.common for each in found] == [2, 0, 0]
