"""The whole examples of docs/tasks.md run as they are printed, and its table of held-out records is the code's."""

from __future__ import annotations

import re
from pathlib import Path

from fedsw.learning.tasks.task import HeldOut

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "tasks.md").read_text(encoding="utf-8")


def test_the_examples_that_import_fedsw_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    whole = TEXT.split("## What a task's metrics are given")[1]
    for block in re.findall(r"```python\n(.*?)```", whole, flags=re.DOTALL):
        exec(compile(block, "docs/tasks.md", "exec"), names)
    told, strata = capsys.readouterr().out.splitlines()[-2:]
    between, selected = map(float, told.split())
    assert between >= 0 and 0 <= selected <= 1 and len(names["objective"].strata) == 3 == len(eval(strata))


def test_every_name_of_held_out_is_in_the_table():
    table = TEXT.split("| `held_out.` | is |")[1].split("```python")[0]
    named = set(
        re.findall(r"`(\w+)(?:\(\w*\))?`", "\n".join(line.split("|")[1] for line in table.splitlines() if "|" in line))
    )
    assert named >= {name for name in vars(HeldOut) if not name.startswith("_")}
