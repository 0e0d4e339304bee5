"""A new penalty trains itself: what a name does not say raises, and one of a user's own works in a federation."""

from __future__ import annotations

import json

import pytest
import torch

from fedsw._tools.registry import Unknown
from fedsw._tools.settings import ExperimentError
from fedsw.audit.record import audit
from fedsw.data.sources import Shape
from fedsw.desk.planning.run_plan import as_plain, planned
from fedsw.experiment.choices import CodeRefused, modules_of
from fedsw.experiment.penalty_names import PENALTIES, PenaltyKind
from fedsw.federation.node.limits import require_modules, require_proven
from fedsw.learning.objectives.weighted_sum import with_slack
from fedsw.learning.tasks.compared import objective_of
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.sensitivity import STATED
from fedsw.runs.report.facts import promise
from tests.brief import brief  # noqa: F401
from tests.federation.local_runs import parameters_of
from tests.federations import small

MODULE = "tests.federation.penalties"
FAIR, MEANS, ENERGY = (f"objective.penalty={MODULE}:{name}" for name in ("Fair", "Means", "energy"))
NOISE = ("privacy.epsilon=4.0", "training.rounds=2")


def test_an_unknown_penalty_is_refused_and_all_that_there_are_are_named():
    with pytest.raises(ExperimentError, match=r"'statistical-parity', .*'module:name' for a penalty of your own"):
        small("objective.penalty=energy")
    with pytest.raises(ExperimentError, match="'module:name' for a penalty of your own"):
        small("objective.also=[{penalty='distribution-matching', weight=0.1}]")
    with pytest.raises(Unknown, match="a penalty is 'energy'; there are 'statistical-parity'"):
        PENALTIES.get("energy")
    with pytest.raises(Unknown, match="write module:name"):
        PENALTIES.get("my module:energy")


def test_a_penalty_that_is_registered_and_cannot_be_made_stops_the_run_and_trains_no_other(monkeypatch):
    """A line of the registry that nothing computes: once it was trained as statistical parity."""
    monkeypatch.setitem(
        PENALTIES._things, "energy", PenaltyKind("fedsw.learning.objectives.penalties:Energy", "groups")
    )
    with pytest.raises(ExperimentError, match="'fedsw.learning.objectives.penalties' has no 'Energy'"):
        Problem.from_experiment(small("objective.penalty=energy"))


def test_a_penalty_is_one_line_of_the_registry_and_is_what_trains(monkeypatch, federation):
    """Once five files were edited for `penalty = "energy"`, statistical parity was trained, and the audit passed."""
    monkeypatch.setitem(PENALTIES._things, "energy", PenaltyKind(f"{MODULE}:Means", "groups", word="stated"))
    alike = ("seed=3", *NOISE)
    summary = federation.run(small("objective.penalty=energy", *alike))
    federation.run(small(MEANS, *alike))
    federation.run(small(*alike))
    energy, means, parity = (parameters_of(federation.folder / f"run{run}") for run in (1, 2, 3))
    assert torch.equal(energy, means) and not torch.equal(energy, parity)
    assert "stated, of the penalty energy; nothing here proves it" in summary["guarantee"]["statement"]
    assert audit(federation.folder / "run1").passed


@pytest.mark.parametrize(
    ("more", "match"),
    [
        (("nothing",), "a function; name a class derived from fedsw.Penalty"),
        (("gone",), "has no 'gone'"),
        (("Hopeful",), "the bound that Hopeful states for itself does not hold .*times as far"),
        (("Means", "privacy.trust=distributed"), "under trust 'distributed' no party has them"),
        (("Means", "privacy.trust=local-gradient"), "of your own, and trust 'local-gradient' takes none"),
        (("Fair", "objective.task=regression", "data.target=mean"), "classes = 0"),
    ],
)
def test_a_penalty_of_ones_own_that_cannot_hold_is_refused_before_a_record_is_read(more, match):
    name, *settings = more
    with pytest.raises(ExperimentError, match=match):
        Problem.from_experiment(small(f"objective.penalty={MODULE}:{name}", "privacy.epsilon=4.0", *settings))


def test_parts_are_for_the_groups_and_classes_of_the_data_set():
    composite = objective_of(small(FAIR), Shape(4, ("a", "b", "c"), 5, 0))
    assert [len(part.cells) for part in composite.parts] == [3, 15]
    with pytest.raises(ExperimentError, match="compares 2 groups, and the data set has 3"):
        objective_of(small(MEANS), Shape(4, ("a", "b", "c"), 5, 0))


def test_a_penalty_of_parts_trains_what_its_parts_do_bit_for_bit(federation):
    alike = ("objective.alpha=0.5", "seed=3", *NOISE)
    parts = ("objective.alpha=0.25", "objective.also=[{penalty='equality-of-odds', weight=0.25}]")
    federation.run(small(FAIR, *alike))
    federation.run(small(*alike[1:], *parts))
    federation.run(small(*alike))
    one, by_hand, parity = (parameters_of(federation.folder / f"run{run}") for run in (1, 2, 3))
    assert torch.equal(one, by_hand) and not torch.equal(one, parity)


def test_a_penalty_without_weight_moves_nothing_and_is_not_tried():
    problem = Problem.from_experiment(small(f"objective.penalty={MODULE}:Hopeful", "objective.alpha=0.0"))
    alone = Problem.from_experiment(small("objective.alpha=0.0"))
    assert [each.value for each in problem.clipped.sensitivities((20, 20), [1.0])] == [
        each.value for each in alone.clipped.sensitivities((20, 20), [1.0])
    ]


@pytest.mark.parametrize("setting", [MEANS, ENERGY])
def test_a_stated_bound_is_trained_charged_and_named_with_whose_word_it_is(federation, setting):
    summary = federation.run(small(setting, "objective.alpha=0.5", *NOISE))
    folder = federation.folder / "run1"
    guarantee, name = summary["guarantee"], setting.partition("=")[2]
    assert guarantee["word"] == "stated" and STATED in guarantee["bound"]
    assert f"a bound that the user stated, of the penalty {name}; nothing here proves it" in guarantee["statement"]
    assert "each record's sensitive group" in guarantee["public"]
    words = dict(promise(json.loads((folder / "summary.json").read_text())).rows)
    assert "stated by the user" in words["sensitivity bound"]
    with pytest.raises(CodeRefused, match=MODULE):
        audit(folder)
    finding = audit(folder, [MODULE])
    assert finding.passed, finding.details["failed"]
    assert f"that of {name} is stated by the user and unproven" in str(finding.rows)
    made = json.loads((folder / "summary.json").read_text())
    made["guarantee"]["word"] = "proven"
    said = f" It rests on a bound that the user stated, of the penalty {name}; nothing here proves it."
    made["guarantee"]["statement"] = made["guarantee"]["statement"].replace(said, "")
    (folder / "summary.json").write_text(json.dumps(made))
    assert not audit(folder, [MODULE]).passed


def test_a_stated_bound_that_is_charged_for_less_than_it_states_fails_the_audit(federation, monkeypatch):
    federation.run(small(MEANS, *NOISE))
    from tests.federation import penalties

    true = penalties.Means.bound
    monkeypatch.setattr(penalties.Means, "bound", lambda self, sizes, clip: 1.5 * true(self, sizes, clip))
    with_slack.cache_clear()
    assert not audit(federation.folder / "run1", [MODULE]).passed


@pytest.mark.parametrize("trust", ["central", "distributed"])
def test_a_penalty_of_parts_is_proven_under_every_trust_that_sums_and_its_strata_are_public(federation, trust):
    more = ("local.bins=8",) if trust == "distributed" else ()
    summary = federation.run(small(FAIR, f"privacy.trust={trust}", *NOISE, *more))
    guarantee = summary["guarantee"]
    assert guarantee["word"] == "proven" and "user stated" not in guarantee["statement"]
    assert "within its group and label" in guarantee["statement"]
    assert audit(federation.folder / "run1", [MODULE]).passed


def test_a_derivative_that_is_no_number_moves_nothing_and_stops_no_round(federation):
    summary = federation.run(small(f"objective.penalty={MODULE}:Upset", "objective.alpha=1.0", *NOISE))
    assert summary["status"] == "completed" and summary["released_rounds"] == 2
    composite = Problem.from_experiment(small(f"objective.penalty={MODULE}:Upset")).objective
    pulled, _ = composite.cotangents([[torch.zeros(30, 1), torch.ones(4, 1)]], [torch.ones(1, 1)], lambda *_: None)
    assert all(bool(rows.isfinite().all()) for rows in pulled[0]) and not pulled[0][0].any() and pulled[0][1].any()


def test_a_node_imports_what_its_operator_allows_and_takes_no_ones_word_within_a_limit():
    experiment, node = small(MEANS, *NOISE), {"partition-id": 0, "num-partitions": 3}
    own = {"own-data": True, "data-path": "x", "modules": "hospital"}
    assert MODULE in modules_of(experiment)
    with pytest.raises(ExperimentError, match=f"objective.penalty is '{MODULE}:Means'; modules whose code may run"):
        require_modules(experiment, own)
    require_proven(Problem.from_experiment(experiment), node)
    with pytest.raises(ExperimentError, match="stated by its author, and not proven"):
        require_proven(Problem.from_experiment(experiment), {"max-epsilon": 8.0})
    require_proven(Problem.from_experiment(small(FAIR, *NOISE)), {"max-epsilon": 8.0})


@pytest.mark.parametrize(("setting", "word"), [(MEANS, "stated by you, and nothing proves it"), (FAIR, "are proven")])
def test_the_plan_names_the_penalty_and_whose_word_its_bound_is(setting, word):
    experiment = small(setting, *NOISE)
    plan = as_plain(planned(experiment, {"0": 300, "1": 300}, untold="not asked here"))
    assert plan["penalty"] == experiment.objective.penalty and word in plan["words"]["own penalty"]
