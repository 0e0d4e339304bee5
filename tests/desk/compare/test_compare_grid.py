"""Laws of what a comparison compares: the grid, methods and tasks, and who is refused."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import pytest

from fedsw._tools.settings import read_setting
from fedsw.desk.compare.comparison_grid import make_grid
from fedsw.desk.compare.methods import Comparable, able, build, tasks
from fedsw.experiment import ExperimentError
from tests.desk.compare.comparing import FAIR, TINY, UNPROTECTED


def test_the_grid_is_methods_by_budgets_by_seeds_and_none_runs_once_a_seed() -> None:
    grid = make_grid("fair-classification", epsilons=[10, 1, 3, 1], seeds=3)
    assert grid.methods == FAIR
    assert grid.epsilons == (1, 3, 10)
    assert len(grid.cells) == 2 * 3 + 4 * 3 * 3 == len({cell.id for cell in grid.cells})
    for method in FAIR:
        found = sorted((cell.epsilon, cell.seed) for cell in grid.cells if cell.method == method)
        budgets = [math.inf] if method in UNPROTECTED else [1, 3, 10]
        assert found == [(epsilon, seed) for epsilon in budgets for seed in range(3)]


def test_a_cell_is_what_its_method_epsilon_and_seed_say() -> None:
    for cell in make_grid("fair-classification", epsilons=[1, 3], seeds=2, rounds=7, settings=TINY).cells:
        privacy = cell.experiment.privacy
        own = {"reference": "none", "none": "none", "local-gradient": "local-gradient", "distributed": "distributed"}
        trust = own.get(cell.method, "central")
        assert (privacy.trust, privacy.epsilon) == (trust, cell.epsilon)
        assert (privacy.bound == "paper") == (cell.method == "central-paper")
        assert (cell.experiment.training.rounds, cell.experiment.data.records) == (7, 200)


def test_a_seed_moves_the_public_seeds_and_leaves_sampling_and_noise_secret() -> None:
    settings = ["data.seed=40", "slicing.seed=9"]
    for cell in make_grid("ring", methods=["dp-swd"], epsilons=[1], seeds=3, settings=settings).cells:
        one = cell.experiment
        assert (one.data.seed, one.partition.seed, one.model.seed, one.slicing.seed) == (
            40 + cell.seed,
            cell.seed,
            cell.seed,
            9 + cell.seed,
        )
        assert one.seed is None
    nominal = make_grid("ring", methods=["dp-swd"], epsilons=[1], seeds=3, nominal=True).cells
    assert [cell.experiment.seed for cell in nominal] == [0, 1, 2]


@pytest.mark.parametrize(
    ("method", "setting", "key"),
    [
        ("central-paper", "privacy.bound=slice", "privacy.bound"),
        ("dp-swd-1", "local.order=2", "local.order"),
        ("flow", "training={rounds=3}", "training.optimizer"),
        ("entropic", "local.mechanism=laplace", "local.mechanism"),
    ],
)
def test_a_setting_that_makes_a_compared_method_is_refused(method: str, setting: str, key: str) -> None:
    with pytest.raises(ExperimentError, match=f"{key} is part of what the method '{method}' is"):
        make_grid("ring", methods=["none", method], epsilons=[1], seeds=1, settings=[setting])


@pytest.mark.parametrize("setting", ["privacy.trust=none", 'privacy={trust="none"}', "privacy.epsilon=3", "name=x"])
def test_what_the_grid_decides_cannot_be_set(setting: str) -> None:
    with pytest.raises(ExperimentError, match="cannot be the same in every cell"):
        make_grid("ring", methods=["none"], epsilons=[1], seeds=1, settings=[setting])


def test_methods_differ_in_nothing_but_their_own_and_their_tuned_settings() -> None:
    cells = {c.method: c.experiment for c in make_grid("fair-classification", epsilons=[1], seeds=1).cells}
    for one in cells.values():
        for section in ("data", "partition", "model", "objective", "clip", "slicing", "training", "federation"):
            assert getattr(one, section) == getattr(cells["central"], section)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"epsilons": [0.0]}, "epsilon is 0; it must be above 0"),
        ({"epsilons": [-1.0]}, "epsilon is -1; it must be above 0"),
        ({"epsilons": [math.inf]}, "the method 'none' has no privacy"),
        ({"epsilons": [math.nan]}, "epsilon is nan"),
        ({"epsilons": []}, "no epsilon"),
        ({"methods": []}, "no method"),
        ({"methods": ["centrall"]}, "nearest: 'central'"),
        ({"seeds": 0}, "seeds is 0"),
        ({"settings": ["privacy.epsilon=3"]}, "--epsilon chooses it"),
        ({"settings": ["privacy.trust=none"]}, "--methods chooses it"),
        ({"settings": ["seed=3"]}, "--nominal"),
        ({"settings": ["training.round=3"]}, "nearest known: 'training.rounds'"),
    ],
)
def test_a_grid_that_cannot_be_compared_is_refused_with_the_remedy(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ExperimentError) as refused:
        make_grid("fair-classification", **arguments)
    assert reason in str(refused.value)


def test_every_task_can_run_what_it_compares() -> None:
    assert {"fair-classification", "adult", "ring", "gaussians", "swae-digits", "swae-mnist"} <= set(tasks())
    for name, task in tasks().items():
        assert set(task.methods) <= set(able(name)) and {"distributed", "sketch-distributed"} & set(task.methods)
        for method in able(name):
            build(name, method, [] if method in UNPROTECTED else ["privacy.epsilon=1.0"])


@pytest.mark.parametrize(
    ("task", "method", "why", "instead"),
    [
        ("fair-classification", "flow", "privacy.trust 'local-slices' cannot run 'classification'", FAIR),
        ("fair-classification", "entropic", "it releases records once, for a generator to learn from", FAIR),
        ("fair-classification", "central-both", "objective.protected", FAIR),
        ("ring", "local-gradient", "rank the outputs of private groups", ("central-both", "dp-swd", "entropic")),
        ("swae-digits", "dp-swd", "cannot run 'autoencoder'", ("none", "central", "central-paper")),
    ],
)
def test_a_method_that_a_task_cannot_run_is_refused_with_why_and_which_can(
    task: str, method: str, why: str, instead: tuple[str, ...]
) -> None:
    with pytest.raises(ExperimentError) as refused:
        build(task, method)
    text = str(refused.value)
    assert f"{method!r} cannot run the task {task!r}" in text
    assert why in text
    listed = text.rpartition("Methods that can: ")[2].split(", ")
    assert set(instead) <= set(listed)
    assert method not in listed
    for able_one in listed:
        build(task, able_one)


def test_a_task_runs_a_method_with_its_tuning_and_the_command_line_wins() -> None:
    tuned = [(name, method, found) for name, task in tasks().items() for method, found in task.tuned.items()]
    assert tuned
    for name, method, settings in tuned:
        assert method in able(name)
        for keys, value in map(read_setting, settings):
            found = reduce(getattr, keys, build(name, method))
            assert (list(found) if isinstance(found, tuple) else found) == value
    assert build("ring", "flow", ["training.rounds=7"]).training.rounds == 7


def test_a_methods_file_that_names_what_is_not_there_is_refused() -> None:
    method = {"none": {"what": "nothing", "set": ["privacy.trust=none"]}}
    task = {"metric": "sw2", "better": "lower", "methods": ["none"]}
    assert Comparable.model_validate({"method": method, "task": {"ring": task}})
    for wrong in ({"methods": ["nobody"]}, {"tuned": {"nobody": []}}, {"set": ["training.rounds"]}, {"sett": []}):
        with pytest.raises(ValueError, match="nobody|cannot be read|Extra inputs"):
            Comparable.model_validate({"method": method, "task": {"ring": {**task, **wrong}}})
