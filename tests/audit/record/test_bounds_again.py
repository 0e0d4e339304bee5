"""The formulas of an audit, written again from theory, agree with what a run charges; of several penalties, too."""

from __future__ import annotations

import itertools
import math

import pytest

from fedsw.audit.record import _bounds_again as sensitivity
from fedsw.experiment import parse_experiment
from fedsw.experiment.sources import Shape
from fedsw.experiment.task_kinds import MODELS
from fedsw.learning.objectives import Clip
from fedsw.learning.objectives.matching import Matching
from fedsw.learning.tasks.compared import compared_by, objective_of
from fedsw.privacy.sensitivity import SLACK

PARITY = {"penalty": "statistical-parity", "weight": 0.15}
ODDS = {"penalty": "equality-of-odds", "weight": 0.2, "radius": 0.3, "jacobian": 2.0}
PRIOR = {"penalty": "prior-matching", "weight": 0.25, "outputs": "codes", "dimension": 2, "prior_radius": 0.7}
ALSO = [chosen for count in (1, 2, 3) for chosen in itertools.combinations((PARITY, ODDS, PRIOR), count)]
SHAPE = Shape(4, ("0", "1", "2"), 2, 0)


def both(also, penalty, bound, scale=1.0):
    """Delta of every stratum by the audit and by the product, for strata of different sizes."""
    weights = {"objective": {"penalty": penalty, "alpha": 0.3, "also": list(also)}, "privacy": {"bound": bound}}
    clip = {"output": 0.8 * scale, "jacobian": 0.6, "loss": 1.7}
    chosen = parse_experiment({"name": "formula", **weights, "clip": clip})
    objective = objective_of(chosen, SHAPE)
    norms = Clip(clip["output"], clip["jacobian"], clip["loss"])
    widths = [each.width for each in compared_by(objective, 3, norms)]
    spreads = [math.ceil(5 / d) / 5 for d in widths]
    sizes = [11 + 7 * index for index in range(len(objective.cells))]
    charged = objective.sensitivities(sizes, norms, dimensions=widths, spreads=spreads, bound=bound)
    batch = dict(zip(objective.cells, sizes, strict=True))
    ours = sensitivity.of_sum(chosen.model_dump(mode="json"), batch, spreads=spreads)
    return ours, dict(zip(objective.cells, (SLACK * each.value for each in charged), strict=True))


@pytest.mark.parametrize("bound", ["auto", "paper", "slice", "vector"])
@pytest.mark.parametrize("penalty", ["statistical-parity", "equality-of-odds"])
@pytest.mark.parametrize("also", ALSO, ids=lambda chosen: "+".join(each["penalty"] for each in chosen))
def test_the_sensitivity_of_several_penalties_is_that_of_the_formula_written_again(also, penalty, bound):
    ours, charged = both(also, penalty, bound)
    assert ours == {name: pytest.approx(value, rel=1e-9) for name, value in charged.items()}


def test_every_penalty_adds_its_part():
    alone, _ = both([PRIOR], "equality-of-odds", "auto")
    more, _ = both([PRIOR, ODDS], "equality-of-odds", "auto")
    assert list(alone) == list(more)
    task = {name: SLACK * ODDS["weight"] * 2 * 1.7 / sum(11 + 7 * i for i in range(6)) for name in alone}
    for index, name in enumerate(alone):
        n = 11 + 7 * index
        side = (ODDS["radius"], ODDS["jacobian"])
        part = 0.2 * SLACK * sensitivity.distance(n, side, side, spread=math.ceil(5 / 3) / 5, bound="auto") * 2 / 2
        assert more[name] == pytest.approx(alone[name] - task[name] + part, rel=1e-9)


@pytest.mark.parametrize(("model", "fixed"), [("adaptor", False), ("transported-adaptor", True)])
def test_the_sensitivity_of_public_records_matched_is_that_of_the_formula_written_again(model, fixed):
    raw = {
        "name": "matched",
        "data": {"source": "usps", "public": "mnist"},
        "model": {"kind": model, "latent": 4},
        "objective": {"task": "adaptation", "penalty": "distribution-matching", "alpha": 0.3},
        "clip": {"output": 0.8, "jacobian": 0.6},
    }
    ours = sensitivity.of_sum(parse_experiment(raw).model_dump(mode="json"), {"all": 12}, spreads=[0.25])
    matching = Matching("domain", 0.3, 0.8, fixed=fixed)
    (charged,) = matching.sensitivities([12], Clip(0.8, 0.6, 1.0), d=16, spread=0.25, bound="auto")
    assert ours == {"all": pytest.approx(SLACK * charged.value, rel=1e-9)}


def test_the_kinds_that_leave_private_records_as_they_are_are_those_of_the_registry():
    assert {name for name, kind in MODELS.items() if kind.fixed} == sensitivity.STILL
