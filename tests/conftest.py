"""What holds for every test."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import settings

from fedsw.federation.node.simulated import simulating
from tests.stages import FEW, set_aside

settings.register_profile("fedsw", deadline=None)  # how long an example takes says nothing but how busy the machine is
settings.load_profile("fedsw")

_THREADS = torch.get_num_threads()
_IN_MEMORY, _ROOM = Path("/dev/shm"), 8 * 2**30
if _IN_MEMORY.is_dir() and min(shutil.disk_usage(_IN_MEMORY).free, psutil.virtual_memory().available) > _ROOM:
    # Ledgers wait for the disk thousands of times; what a test asks of them is what they wrote, and in which order.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_IN_MEMORY))


@pytest.fixture(autouse=True, scope="session")
def accounts_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests run counts in no account of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDSW_ACCOUNTS", str(tmp_path_factory.mktemp("accounts")))
        yield


@pytest.fixture(autouse=True)
def nodes_of_tests_are_simulated() -> Iterator[None]:
    """A node whose configuration says its number alone is one of a simulation, as an engine would say."""
    with simulating():
        yield


@pytest.fixture(autouse=True)
def one_cluster_at_a_time(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that starts Ray waits for those of other workers: clusters of one machine take each other's ports."""
    if request.node.get_closest_marker("ray") is None:
        yield
        return
    import fcntl  # none of Windows

    with Path(tempfile.gettempdir(), "fedsw-tests-of-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(autouse=True)
def same_draws_wherever_a_test_runs() -> None:
    """Tests that draw their inputs from torch's own generator get the same ones, whatever ran before them.

    `torch.manual_seed` writes down its whole stack for a GPU that may come: two milliseconds a test. Threads that one
    test asked for would wait busily for one another in all that come after it.
    """
    torch.default_generator.manual_seed(0)
    torch.set_num_threads(_THREADS)


@pytest.fixture
def federation(tmp_path: Path) -> Any:
    """Runs of a small federation in this process, in a folder of the test's own."""
    from tests.federations import Federation  # Flower comes with it: tests without a federation do without

    return Federation(tmp_path)


@pytest.fixture
def run(federation: Any) -> Any:
    """A run under local trust: takes an experiment, gives its summary and its folder."""
    from tests.federation.local_runs import Runs

    return Runs(federation)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder and accounts of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(tmp_path / "accounts"))


@pytest.fixture
def open_to_all() -> Iterator[None]:
    """A user whose new files are everybody's, unless a program says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


LONG = (
    "papers/test_quick",
    "federation/engines/test_deployed",
    "laws/simulations/test_neighbours_registries",
    "laws/simulations/test_chaos_deployed",
    "packaging/test_newest_flower",
    "packaging/test_recipes",
    "federation/engines/test_deployed_hosts",
    "packaging/test_wheel",
    "laws/simulations/test_stock_bytes",
    "laws/simulations/test_every_statement",
    "laws/simulations/test_neighbours",
    "site/test_site",
    "laws/simulations/test_stock_apps",
    "laws/runs/test_audited_folders",
    "federation/test_engines_agree",
    "mathematics/clipping/test_opacus_list",
    "laws/attacks/test_federation_attack",
    "laws/doors/test_ot",
    "site/test_documented_commands_run",
    "benchmarks/test_performance",
    "laws/tables/test_every_verb",
    "federation/engines/test_inprocess_ray",
    "audit/test_canary_once",
    "laws/runs/test_added_kept",
    "runs/evaluation/test_quality_by_column",
    "packaging/test_many_machines",
    "federation/distributed/test_masked_rounds",
    "laws/attacks/test_hostile_member",
    "runs/single/test_begun",
    "laws/doors/test_flower_apps",
    "laws/tables/test_path",
    "desk/planning/test_forecast",
    "laws/simulations/test_ended_runs",
    "runs/report/test_run_documents_browser",
    "desk/planning/test_private_search_selected",
    "cli/test_app_signals",
    "federation/deploy/test_executor",
    "runs/test_recovery",
    "privacy/accounting/test_composition",
    "federation/server/test_owed",
    "learning/tasks/test_tally",
    "federation/trust/test_context_local",
    "mathematics/clipping/test_rules",
    "runs/single/test_objective",
    "federation/test_sums_once_scores",
    "federation/test_sketch_runs",
    "experiment/test_penalty_names",
    "audit/test_canary",
    "federation/test_federation",
    "laws/devices/test_transfers",
    "desk/baselines/test_baselines",
    "federation/test_replies",
    "laws/tables/test_stored_code",
    "audit/record/test_record",
    "privacy/accounting/test_profiles_triangle",
    "mathematics/clipping/test_columns_cut",
    "_tools/test_subnormal",
    "laws/fuzz/test_settings",
)
"""Files that take longest, which begin first: else one of them keeps one core busy when the others have ended.

Those that wait for processes alternate with those that compute. Ray comes late: it gives itself thirty seconds to
start, which it exceeds beside the dozens of processes of deployments.
"""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker a core; in the slow stage two more: it waits for processes a quarter of its time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 2 * (config.option.markexpr == "slow")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The workers of the slow stage import no file without a slow test: half of them, some six seconds a worker."""
    if config.option.markexpr != "slow" or collection_path.suffix != ".py":
        return None
    name = collection_path.relative_to(Path(__file__).parent).with_suffix("").as_posix()
    return None if name in FEW or "slow" in collection_path.read_text(encoding="utf-8") else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, the others in their order; what the slow stage runs is marked before a stage is chosen."""
    set_aside(items)
    places = {name: place for place, name in enumerate(LONG)}

    def place(item: pytest.Item) -> int:
        path = item.path.with_suffix("").as_posix()
        return next((places[name] for name in places if path.endswith(f"tests/{name}")), len(places))

    items.sort(key=place)


def pytest_sessionstart() -> None:
    """What the tests import stays until the end; to look for garbage in it, again and again, takes minutes."""
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on garbage is looked for among what tests make."""
    gc.freeze()
    gc.enable()
