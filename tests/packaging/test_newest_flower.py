"""Every engine runs on the newest Flower that fedsw allows, and not only on the one in constraints.txt."""

from __future__ import annotations

import importlib.metadata
import re
import sysconfig
import tomllib
from pathlib import Path

import pytest

from fedsw.federation import flower
from tests.packaging.environments import ROOT, built_wheel, empty_environment, outside, pip, run, sources

TESTS = [
    "tests/federation/engines/test_inprocess.py",
    "tests/federation/test_flower.py",
    "tests/laws/doors/test_flower_apps.py",
    "tests/laws/doors/test_private_updates.py",
    "tests/laws/doors/test_masked_updates.py",
    "tests/site/test_flower_example.py::test_one_round_of_the_example_runs",
    "tests/federation/deploy/test_executor.py::test_a_client_that_raises_dies_or_hangs_is_answered_for_and_its_state_stays",
    "tests/federation/deploy/test_executor.py::test_runs_of_one_bundle_share_a_process_but_neither_state_nor_settings",
    "tests/federation/engines/test_deployed.py::test_real_processes_end_with_the_same_model_and_the_same_epsilon",
]


def allowed() -> str:
    """The range of Flower's versions in pyproject.toml, as in ">=1.41,<1.43"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (named,) = [name for name in project["optional-dependencies"]["app"] if name.startswith("flwr")]
    return named.partition("]")[2]


def test_the_warm_processes_know_every_flower_that_may_be_installed():
    """A Flower that pip may choose and they refuse would leave `fedsw deploy local` without clients."""
    found = re.fullmatch(r">=1\.(\d+),<1\.(\d+)", allowed())
    assert found is not None
    versions = tuple(f"1.{minor}" for minor in range(int(found[1]), int(found[2])))
    assert versions == flower.TESTED


@pytest.mark.slow
def test_every_engine_runs_on_the_newest_flower_that_is_allowed(tmp_path: Path):
    """In an environment over this one: Flower's own requirements stay those of constraints.txt.

    Ray is left out: what its engine asks of Flower is asked here by the engine in one process, and by a deployment.
    """
    python = empty_environment(tmp_path / "newest", over=Path(sysconfig.get_path("purelib")))
    pip(python, "install", "--no-deps", "--ignore-installed", f"flwr{allowed()}")
    version = run([str(python), "-c", "import flwr; print(flwr.__version__)"], tmp_path, outside()).strip()
    if version == importlib.metadata.version("flwr"):
        pytest.skip(f"the newest Flower that is allowed is {version}, which all tests run on")
    wheel = built_wheel(sources(tmp_path / "source"), tmp_path / "wheel")
    pip(python, "install", "--no-deps", "--ignore-installed", str(wheel))
    left_out = (
        "--deselect=tests/laws/doors/test_flower_apps.py::test_a_stock_app_ends_at_the_bits_of_flower_s_own_simulation"
    )
    command = [str(python), "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", left_out, *TESTS]
    run(command, ROOT, outside(), limit=1500)
