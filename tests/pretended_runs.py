"""A stand-in for training: it leaves the files of a plausible run without doing the work."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsw._tools.text import json_text
from fedsw.experiment import Experiment, parse_experiment


@dataclass(frozen=True)
class FakeResult:
    directory: Path
    experiment: Experiment
    summary: dict[str, Any]
    history: list[dict[str, Any]]


@dataclass
class FakeRuns:
    """Records what was asked for; `fail_in` raises in that round, `dimension` shapes the outputs."""

    fail_in: int | None = None
    fault: BaseException = field(default_factory=lambda: RuntimeError("client 2 raised ZeroDivisionError"))
    before_fault: Callable[[Path], object] = lambda directory: None
    dimension: int = 1
    calls: list[tuple[Experiment, dict[str, Any]]] = field(default_factory=list)

    def run(
        self,
        experiment: Experiment,
        *,
        engine: str = "inprocess",
        runs: Path = Path("runs"),
        observer: Any = None,
        moments_alone: bool = False,
    ) -> FakeResult:
        self.calls.append((experiment, {"engine": engine, "runs": runs}))
        folder = runs / experiment.name
        directory = folder / f"20250101-{120000 + len(list(folder.glob('*')))}"
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(
            json.dumps({"engine": engine, "experiment": experiment.model_dump(mode="json")})
        )
        return self._train(experiment, directory, observer, engine)

    def resume(
        self,
        directory: Path,
        *,
        observer: Any = None,
        allow_modules: Any = (),
        charge_lost: bool = False,
        go_on: bool = False,
    ) -> FakeResult:
        experiment = parse_experiment(json.loads((directory / "config.json").read_text())["experiment"])
        self.calls.append((experiment, {"resumed": directory}))
        return self._train(experiment, directory, observer, "inprocess")

    def _train(self, experiment: Experiment, directory: Path, observer: Any, engine: str) -> FakeResult:
        rounds, target = experiment.training.rounds, experiment.privacy.epsilon or float("inf")
        noisy = experiment.privacy.guarantee.unprotected is None
        plan = {"name": experiment.name, "title": experiment.title, "rounds": rounds, "clients": 4, "epsilon": target}
        plan["directory"] = str(directory)
        observer.started(plan)
        metrics = directory / "metrics.jsonl"
        history = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        with metrics.open("a") as lines:
            for number in range(len(history) + 1, rounds + 1):
                with (directory / "attempts.log").open("a") as attempts:
                    attempts.write(f"{number} 0\n")
                if number == self.fail_in:
                    self.before_fault(directory)
                    raise self.fault
                history.append(round_record(number, rounds, target, noisy, experiment.evaluate_every))
                lines.write(json_text(history[-1], indent=None) + "\n")
                observer.round_done(history[-1])
        save_outputs(directory / "outputs.npz", self.dimension)
        summary = summary_of(experiment, target, engine)
        (directory / "summary.json").write_text(json_text(summary))
        observer.finished(summary)
        return FakeResult(directory, experiment, summary, history)


def round_record(number: int, rounds: int, epsilon: float, noisy: bool, every: int) -> dict[str, Any]:
    record: dict[str, Any] = {
        "round": number,
        "attempt": 1,
        "epsilon": epsilon * (number / rounds) ** 0.5,
        "sigma": 0.02 if noisy else 0.0,
        "snr": 1.5 + np.sin(number / 3) if noisy else None,
        "gradient_norm": 0.1,
        "clients": 4,
    }
    if number % every == 0 or number == rounds:
        progress = number / rounds
        record["held_out"] = {
            "disparate_impact": 0.3 + 0.3 * progress,
            "loss": 0.7 - 0.2 * progress,
            "accuracy": 0.6 + 0.2 * progress,
            "equalized_odds_difference": 0.4 - 0.2 * progress,
        }
    return record


def summary_of(experiment: Experiment, epsilon: float, engine: str) -> dict[str, Any]:
    noisy = experiment.privacy.guarantee.unprotected is None
    return {
        "name": experiment.name,
        "title": experiment.title,
        "status": "completed",
        "engine": engine,
        "clients": 4,
        "rounds": experiment.training.rounds,
        "released_rounds": experiment.training.rounds,
        "epsilon": epsilon,
        "epsilon_spent": epsilon,
        "delta": 3.3e-6,
        "nominal": experiment.seed is not None,
        "epsilon_of_reader": "inf" if experiment.unsafe_metrics else epsilon,
        "guarantee": {
            "relation": "replace-one",
            "protects": "one record of one client",
            "against": "whoever sees the models and the published record",
            "public": ["the group of every record", "group sizes"],
            "bound": "slice",
            "accountant": "pld",
            "mechanism": "gaussian",
            "sampling": "global",
            "noise_multiplier": 9.25 if noisy else 0.0,
            "sensitivities": {"A=0": 0.01, "A=1": 0.012},
            "statement": "Replacing one record changes the law of what is published by at most (ε, δ).",
        },
        "held_out": {"accuracy": 0.794, "disparate_impact": 0.62, "loss": 0.48},
        "seconds": 7.9,
        "bytes_up": 12_300_000,
        "bytes_down": 10_100_000,
        "seed": experiment.seed,
        "versions": {"fedsw": "0.1.0"},
        "hardware": {"cores": 2},
        "date": "2025-01-01T12:00:00Z",
    }


def save_outputs(path: Path, dimension: int, records: int = 600) -> None:
    generator = np.random.default_rng(0)
    sensitive = generator.integers(0, 2, records)
    target = generator.integers(0, 2, records)
    shift = 0.1 * sensitive[:, None] + 0.2 * target[:, None]
    outputs = np.clip(generator.normal(0.35, 0.15, (records, dimension)) + shift, 0, 1)
    np.savez(path, outputs=outputs.astype(np.float32), sensitive=sensitive, target=target)


@pytest.fixture
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRuns]:
    fake = FakeRuns()
    module = types.ModuleType("fedsw.federation.engines.driver")
    module.run, module.resume = fake.run, fake.resume  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fedsw.federation.engines.driver", module)
    yield fake


@pytest.fixture
def finished_run(tmp_path: Path, fake_runs: FakeRuns) -> Callable[..., Path]:
    """Makes the directory of a finished run; settings and the outputs' dimension can be given."""

    def make(*settings: str, dimension: int = 1) -> Path:
        fake_runs.dimension = dimension
        raw = {"name": "toy", "title": "A toy", "training": {"rounds": 60}, "evaluate_every": 5}
        return fake_runs.run(parse_experiment(raw, settings), runs=tmp_path / "runs", observer=Watcher()).directory

    return make


class Watcher:
    """An observer that keeps what it received."""

    def __init__(self) -> None:
        self.plans: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []
        self.summaries: list[dict[str, Any]] = []

    def started(self, plan: dict[str, Any]) -> None:
        self.plans.append(plan)

    def round_done(self, record: dict[str, Any]) -> None:
        self.records.append(record)

    def finished(self, summary: dict[str, Any]) -> None:
        self.summaries.append(summary)
