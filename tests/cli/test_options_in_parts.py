"""A package in parts is the package: what is missed is found, and `__init__` runs once, when it is needed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsw.cli.options import in_parts

INIT = """
from parcel import light
from parcel import heavy
WEIGHT = heavy.WEIGHT
runs = globals().get("runs", 0) + 1
"""


@pytest.fixture(autouse=True)
def _parcel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "parcel"
    folder.mkdir()
    (folder / "__init__.py").write_text(INIT)
    (folder / "heavy.py").write_text("WEIGHT = 9\n")
    (folder / "light.py").write_text("from parcel import feather\n")
    (folder / "feather.py").write_text("WEIGHT = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "parcel"]:
        del sys.modules[name]


def test_a_part_comes_without_the_rest() -> None:
    in_parts("parcel")
    light = importlib.import_module("parcel.light")
    assert light.feather.WEIGHT == 1
    assert "parcel.heavy" not in sys.modules


def test_a_name_that_is_no_module_comes_from_init_which_runs_once() -> None:
    in_parts("parcel")
    light, parcel = importlib.import_module("parcel.light"), importlib.import_module("parcel")
    assert parcel.WEIGHT == 9 and parcel.runs == 1 and parcel.light is light
    with pytest.raises(AttributeError, match="parcel"):
        _ = parcel.nonsense
    assert parcel.runs == 1


def test_an_unknown_name_is_an_attribute_error_though_init_had_not_run() -> None:
    in_parts("parcel")
    assert not hasattr(importlib.import_module("parcel"), "nonsense")


def test_everything_can_be_taken() -> None:
    in_parts("parcel")
    code = "from parcel import WEIGHT, feather, heavy"
    exec(code, found := {})  # type: ignore[var-annotated]
    assert found["WEIGHT"] == found["heavy"].WEIGHT == 9


def test_a_package_that_is_there_stays_and_one_that_is_not_installed_is_left_alone() -> None:
    parcel = importlib.import_module("parcel")
    in_parts("parcel")
    assert sys.modules["parcel"] is parcel and parcel.runs == 1
    in_parts("no_such_parcel")
    assert "no_such_parcel" not in sys.modules
