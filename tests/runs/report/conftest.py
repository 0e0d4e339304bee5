"""Small finished, stopped and unsafe runs, made once, to show on pages."""

from __future__ import annotations

from pathlib import Path

import pytest

import fedsw
from tests.pretended_runs import fake_runs, finished_run  # noqa: F401

SMALL = {
    "training": {"rounds": 3, "batch_fraction": 0.2},
    "federation": {"clients": 2},
    "privacy": {"epsilon": 1.0, "delta": 1e-4},
}


def run(place: Path, name: str, **sections: object) -> Path:
    settings = {"name": name, "data": {"records": 200, "test_records": 120}, **SMALL, **sections}
    return Path(fedsw.run(settings, runs=place).directory)


@pytest.fixture(scope="session")
def central(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("central"), "central")


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("local"), "local", privacy={**SMALL["privacy"], "trust": "local-gradient"})


@pytest.fixture(scope="session")
def unsafe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("unsafe"), "unsafe", unsafe_metrics=True)


@pytest.fixture(scope="session")
def without_noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("none"), "none", privacy={"trust": "none"})


@pytest.fixture(scope="session")
def distributed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(
        tmp_path_factory.mktemp("distributed"), "distributed", privacy={**SMALL["privacy"], "trust": "distributed"}
    )
