"""Pages for users of other libraries run as they are written, and so does each row of the table of what these have."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.model_selection import cross_val_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedsw
import fedsw.ot
from fedsw.flower import MaskedUpdates, simulate
from fedsw.sklearn import PrivateClassifier

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("from-scikit-learn", "from-fairlearn", "from-opacus")
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| `(.+)` \| (\d+) \|$", re.MULTILINE)
ROWS = ROW.findall(
    (ROOT / "docs" / "python.md").read_text(encoding="utf-8").partition("## What other libraries have")[2]
)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(tmp_path / "accounts"))
    warnings.simplefilter("ignore")


def code(page: str) -> str:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    return str(example)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_written(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(code(f"docs/{page}.md"), page, "exec"), {})
    assert "differential privacy" in capsys.readouterr().out


def people() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    inputs = draw.normal(size=(120, 2))
    return {"X": inputs, "y": (inputs[:, 0] > 0).astype(int), "sex": draw.choice(["f", "m"], 120)}


def loop() -> dict[str, Any]:
    """A training loop of PyTorch, and what Opacus would be given."""
    net = nn.Linear(4, 2)
    loader = DataLoader(TensorDataset(torch.randn(80, 4), torch.arange(80) % 2), batch_size=20)
    opacus = {"max_grad_norm": 1.0, "target_epsilon": 4.0, "target_delta": 1e-5, "epochs": 1}
    return {"net": net, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1), "loader": loader, "opacus": opacus}


def flower_apps() -> dict[str, Any]:
    """Both apps of Flower, which do nothing, and a plan for updates under masks."""
    client, server = ClientApp(), ServerApp()
    server.main()(lambda grid, context: None)
    plan = fedsw.plan_sum(norm=1.0, rounds=3, epsilon=8.0, delta=1e-4, vectors=4, colluding=1)
    of_flower = {"simulate": simulate, "MaskedUpdates": MaskedUpdates, "FedAvg": FedAvg}
    return {"client": client, "server": server, "plan": plan, **of_flower}


def test_there_is_a_row_for_each_habit() -> None:
    libraries = {row[1] for row in ROWS}
    assert {"scikit-learn", "fairlearn", "Opacus", "Flower", "POT", "notebooks"} <= libraries and len(ROWS) >= 11


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_is_what_it_says_in_as_many_lines(row: tuple[str, str, str, str]) -> None:
    _, _, line, lines = row
    names = {"fedsw": fedsw, "PrivateClassifier": PrivateClassifier, "cross_val_score": cross_val_score, **people()}
    names |= loop() | flower_apps()
    if "fedsw.account" in line:
        PrivateClassifier(account="people", bounds=(-3, 3)).fit(names["X"], names["y"])
    assert int(lines) == 1 and eval(line, names) is not None


def test_the_readme_shows_the_estimator_in_six_lines() -> None:
    (example,) = [
        text
        for text in re.findall(
            r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL
        )
        if "PrivateClassifier" in text
    ]
    assert len(example.splitlines()) <= 6
    names = people()
    names |= {"X": (names["X"] + 4) / 8, "X_test": (names["X"] + 4) / 8, "y_test": names["y"]}
    exec(compile(example, "README.md", "exec"), names)
    assert "differential privacy" in names["model"].guarantee_
