"""The examples of docs/data.md, and of docs/python.md on records, run as they are printed."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from fedsw.experiment import Experiment, parse_experiment
from fedsw.federation.engines.driver import run

DOCS = Path(__file__).resolve().parents[2] / "docs"
PYTHON = (DOCS / "python.md").read_text(encoding="utf-8").partition("\n## Records\n")[2]
TEXT = (DOCS / "data.md").read_text(encoding="utf-8") + PYTHON


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, flags=re.DOTALL)


def example(language: str, having: str) -> str:
    (found,) = [block for block in blocks(language) if having in block]
    return found


def declared(having: str) -> Experiment:
    return parse_experiment({"name": "own", **tomllib.loads(example("toml", having))})


def test_every_declaration_is_one():
    table = tomllib.loads(example("toml", "edges = [30, 50]"))["data"]  # where a block shows other sections alone
    for block in blocks("toml"):
        parse_experiment({"name": "own", "data": table, **tomllib.loads(block)})
    assert declared("edges = [30, 50]").data.columns.groups == ("age<30", "30<=age<50", "age>=50")
    assert len(declared("targets = [{").data.columns.targets) == 1


def test_the_examples_in_python_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("python"):
        exec(compile(block, "docs/python.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "torch.Size([400, 5]) {'age<30': " in printed and "[(300, 5), (300, 5), (300, 5)] (300, 1)" in printed
    assert "(2, 1.12e-05)-differential privacy" in printed and names["result"].summary["status"] == "completed"
    assert names["result"].experiment.data.objects[0].kind == "pandas.DataFrame"


def test_the_module_of_the_example_gives_the_records_of_its_experiment(tmp_path, monkeypatch):
    (tmp_path / "hospital_records.py").write_text(example("python", "hospital_records.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.delitem(sys.modules, "hospital_records", raising=False)
    result = run(declared("hospital_records:patients"), runs=tmp_path / "runs")
    assert result.summary["status"] == "completed" and result.summary["guarantee"]["trust"] == "central"
    assert result.experiment.data.source == "hospital_records:patients"
