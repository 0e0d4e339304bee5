"""Laws of what a node agrees to: the server's word is not enough."""

from __future__ import annotations

import contextvars
import sys

import pytest

from fedsw._tools.settings import FederationError
from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.federation.client import app as client_app
from fedsw.federation.engines.inprocess import InProcessGrid, node_configs
from fedsw.federation.node.limits import allowed_modules, require_delta, require_limits
from fedsw.federation.node.replies import join
from fedsw.federation.node.roster import keyring_of
from fedsw.federation.node.simulated import ONE_PERSON, is_simulated, of_one_person
from fedsw.federation.server.federation import Job, federate
from tests.federations import small

LOCAL = ("privacy.trust=local-gradient", "privacy.epsilon=2.0", "privacy.delta=1e-4")


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("privacy.trust=central", "privacy.epsilon=inf"), "no noise would be added"),
        (("privacy.trust=none", "privacy.epsilon=inf"), "no noise would be added"),
        (("privacy.epsilon=3.5",), "epsilon is 3.5"),
        (("seed=1",), "seed is 1"),
        (("privacy.trust=central", "unsafe_metrics=true"), "unsafe_metrics"),
        (("privacy.noise_multiplier=1.0",), "noise_multiplier"),
        (("privacy.accountant=gdp-clt-uniform",), "not a guarantee"),
    ],
)
def test_a_node_with_a_limit_refuses_what_would_not_protect_its_records(overrides, reason):
    require_limits(small(*LOCAL), {"max-epsilon": 3.0})
    with pytest.raises(ExperimentError, match=reason):
        require_limits(small(*LOCAL, *overrides), {"max-epsilon": 3.0})


def test_a_node_with_a_limit_refuses_metrics_that_may_be_of_private_records():
    label = {"values": [0, 1]}
    columns = {"features": [{"name": "x"}], "sensitive": {"name": "a", **label}, "target": {"name": "y", **label}}
    data = {"source": "files", "columns": columns, "held_out": "held-out.csv"}
    node = {"max-epsilon": 3.0, "schema": "schema.toml"}
    require_limits(parse_experiment({"data": data, "name": "own"}, LOCAL), node)
    with pytest.raises(ExperimentError, match="held_out_overlap 'allow'.*up to a guaranteed epsilon of 3 only"):
        require_limits(parse_experiment({"data": {**data, "held_out_overlap": "allow"}, "name": "own"}, LOCAL), node)


def test_a_node_with_a_limit_refuses_a_delta_that_protects_nobody():
    require_delta(small(*LOCAL), {"max-epsilon": 3.0}, records=100)
    require_delta(small(*LOCAL, "privacy.delta=0.9"), {}, records=100)
    with pytest.raises(ExperimentError, match=r"delta 0\.9 is not below 1/n of this node's 100 records"):
        require_delta(small(*LOCAL, "privacy.delta=0.9"), {"max-epsilon": 3.0}, records=100)


def test_a_node_takes_part_in_the_trust_models_it_names_only():
    require_limits(small(*LOCAL), {"trust": "local-slices, local-gradient"})
    with pytest.raises(ExperimentError, match="'central'; this node takes part in local-gradient only"):
        require_limits(small(), {"trust": "local-gradient"})


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"trust": "locl-gradient"}, "names 'locl-gradient'; known are none, central, distributed, local-gradient"),
        ({"trust": ""}, "names ''"),
        ({"max-epsilon": -1.0}, "max-epsilon is -1; it must be positive and finite"),
    ],
)
def test_limits_that_say_nothing_are_refused(limit, reason):
    with pytest.raises(ExperimentError, match=reason):
        require_limits(small(*LOCAL), limit)


def test_without_limits_a_node_takes_part_as_asked():
    require_limits(small("privacy.trust=none"), {})


def test_what_a_node_refuses_ends_the_run_at_the_greeting(tmp_path):
    """Nothing but the greeting was answered, and no ledger exists."""
    configs = [{"partition-id": i, "num-partitions": 3, "max-epsilon": 3.0} for i in range(3)]
    grid = InProcessGrid(client_app, configs)
    try:
        with pytest.raises(FederationError, match="no noise would be added"):
            federate(grid, Job(small("privacy.epsilon=inf"), tmp_path / "run"))
    finally:
        grid.close()
    assert not (tmp_path / "run" / "ledger.sqlite").exists()


@pytest.mark.parametrize(
    "node", [{"modules": ""}, {"modules": "other, another"}, {"own-data": 1, "trust": "any"}, {"modules": "own_"}]
)
@pytest.mark.parametrize("setting", ["objective.task=own_modules_test:Task", "model.kind=own_modules_test:build"])
def test_a_node_imports_no_module_that_its_operator_did_not_allow(tmp_path, monkeypatch, node, setting):
    (tmp_path / "own_modules_test.py").write_text("raise SystemExit('the server runs code here')")
    monkeypatch.syspath_prepend(tmp_path)
    text = small(setting).model_dump_json()
    config = {"partition-id": 0, "num-partitions": 2, **node}
    with pytest.raises(ExperimentError, match=r"'own_modules_test:\w+'; modules whose code may run on this node: "):
        join(text, "run", 10**9, config)
    assert "own_modules_test" not in sys.modules


def test_a_node_runs_the_modules_that_it_allows_and_a_simulation_runs_any():
    setting = "objective.task=tests.learning.tasks.own:Copy"
    for index, node in enumerate(({"modules": "x, tests.learning.tasks.own"}, {})):
        config = {"partition-id": 0, "num-partitions": 2, **node}
        assert join(small(setting).model_dump_json(), "run", 10**9 + index, config).task.dimension == 2
    with pytest.raises(ExperimentError, match="modules whose code may run on this node: tests"):
        join(small(setting).model_dump_json(), "run", 10**9 + 9, {**config, "modules": "tests"})
    assert allowed_modules({"modules": " a , b.c,"}) == {"a", "b.c"}
    assert allowed_modules({"own-data": 1}) == frozenset() and allowed_modules({}) is None


def test_a_deployed_node_allows_the_modules_that_its_operator_named_and_no_other():
    deployed = {"partition-id": 0, "own-data": 1}
    assert allowed_modules({**deployed, "modules": "hospital, hospital.models"}) == {"hospital", "hospital.models"}
    assert allowed_modules({**deployed, "modules": ""}) == allowed_modules(deployed) == frozenset()
    assert allowed_modules({"partition-id": 0, "modules": ""}) == frozenset()
    for own in ("data-dir", "data-path", "schema", "trust", "max-epsilon"):
        assert allowed_modules({"partition-id": 0, own: "x"}) == frozenset(), "somebody's own node, started by hand"


def test_a_simulation_allows_the_modules_of_who_wrote_the_experiment(tmp_path, monkeypatch):
    for config in node_configs(2, tmp_path):
        assert allowed_modules(config) is None
    monkeypatch.setenv(ONE_PERSON, "1")
    assert allowed_modules({"partition-id": 0, "modules": "*", "data-dir": "x"}) is None, "`fedsw deploy local`"


def test_no_configuration_of_a_node_says_that_it_is_simulated(tmp_path):
    """In a process that no engine simulates in, as that of a SuperNode which somebody started by hand."""

    def looked_at() -> None:
        for config in (*node_configs(2, tmp_path), {"partition-id": 0, "num-partitions": 2}):
            assert not is_simulated(config) and not of_one_person(config)
            assert allowed_modules(config) == frozenset()
            with pytest.raises(ExperimentError, match="masked sums need the keys of all sites"):
                keyring_of(config, "run", 0)
        written = {"partition-id": 0, "num-partitions": 2, "modules": "*"}
        assert not of_one_person(written)
        with pytest.raises(ExperimentError, match="no module"):
            allowed_modules(written)

    contextvars.Context().run(looked_at)


@pytest.mark.parametrize("names", ["hospital models", "hospital..models", "hospital:Model", "../hospital", "3b", "a,*"])
def test_what_is_no_module_is_refused_with_the_name(names):
    with pytest.raises(ExperimentError, match=r"this node's modules name '.*which is no module"):
        allowed_modules({"modules": names})
