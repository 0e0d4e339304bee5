"""Formulas that are written again from theory agree with what a run charges; of several penalties, too."""

from __future__ import annotations

import itertools
import math

import pytest

from fedsw.data.sources import Shape
from fedsw.experiment import parse_experiment
from fedsw.experiment.task_kinds import MODELS
from fedsw.learning.objectives import Clip
from fedsw.learning.objectives.distances import Matching
from fedsw.learning.objectives.histograms import contribution_sensitivity
from fedsw.learning.tasks.compared import compared_by, objective_of
from fedsw.privacy.sensitivity import SLACK
from tests.audit.record import formulas

PARITY = {"penalty": "statistical-parity", "weight": 0.15}
ODDS = {"penalty": "equality-of-odds", "weight": 0.2, "radius": 0.3, "jacobian": 2.0}
PRIOR = {"penalty": "prior-matching", "weight": 0.25, "outputs": "codes", "dimension": 2, "prior_radius": 0.7}
ALSO = [chosen for count in (1, 2, 3) for chosen in itertools.combinations((PARITY, ODDS, PRIOR), count)]
SHAPE = Shape(4, ("0", "1", "2"), 2, 0)


def both(also, penalty, bound):
    """Delta of every stratum by the audit and by the product, for strata of different sizes."""
    weights = {"objective": {"penalty": penalty, "alpha": 0.3, "also": list(also)}, "privacy": {"bound": bound}}
    clip = {"output": 0.8, "jacobian": 0.6, "loss": 1.7}
    chosen = parse_experiment({"name": "formula", **weights, "clip": clip})
    objective = objective_of(chosen, SHAPE)
    norms = Clip(clip["output"], clip["jacobian"], clip["loss"])
    widths = [each.width for each in compared_by(objective, 3, norms)]
    spreads = [math.ceil(5 / d) / 5 for d in widths]
    sizes = [11 + 7 * index for index in range(len(objective.cells))]
    charged = objective.sensitivities(sizes, norms, dimensions=widths, spreads=spreads, bound=bound)
    batch = dict(zip(objective.cells, sizes, strict=True))
    ours = formulas.of_sum(chosen.model_dump(mode="json"), batch, spreads=spreads)
    return ours, dict(zip(objective.cells, (SLACK * each.value for each in charged), strict=True))


@pytest.mark.parametrize("bound", ["auto", "paper", "slice", "vector"])
@pytest.mark.parametrize("penalty", ["statistical-parity", "equality-of-odds"])
@pytest.mark.parametrize("also", ALSO, ids=lambda chosen: "+".join(each["penalty"] for each in chosen))
def test_the_sensitivity_of_several_penalties_is_that_of_the_formula_written_again(also, penalty, bound):
    ours, charged = both(also, penalty, bound)
    assert ours == {name: pytest.approx(value, rel=1e-9) for name, value in charged.items()}


@pytest.mark.parametrize(("model", "fixed"), [("adaptor", False), ("transported-adaptor", True)])
def test_the_sensitivity_of_public_records_matched_is_that_of_the_formula_written_again(model, fixed):
    raw = {
        "name": "matched",
        "data": {"source": "usps", "public": "mnist"},
        "model": {"kind": model, "latent": 4},
        "objective": {"task": "adaptation", "penalty": "distribution-matching", "alpha": 0.3},
        "clip": {"output": 0.8, "jacobian": 0.6},
    }
    ours = formulas.of_matched(parse_experiment(raw).model_dump(mode="json"), 12, 0.25, still=fixed)
    matching = Matching("domain", 0.3, 0.8, fixed=fixed)
    (charged,) = matching.sensitivities([12], Clip(0.8, 0.6, 1.0), d=16, spread=0.25, bound="auto")
    assert MODELS.get(model).fixed == fixed
    assert ours == pytest.approx(SLACK * charged.value, rel=1e-9)


@pytest.mark.parametrize("penalty", ["statistical-parity", "equality-of-odds"])
def test_the_sensitivity_of_a_contribution_given_noised_tables_is_that_of_the_formula_written_again(penalty):
    raw = {"name": "tables", "objective": {"penalty": penalty, "alpha": 0.3}, "clip": {"output": 0.8, "loss": 1.7}}
    chosen = parse_experiment(raw)
    objective, norms = objective_of(chosen, SHAPE), Clip(0.8, chosen.clip.jacobian, 1.7)
    sizes = [11 + 7 * index for index in range(len(objective.cells))]
    ours = formulas.of_sum(
        chosen.model_dump(mode="json"),
        dict(zip(objective.cells, sizes, strict=True)),
        spreads=[0.4],
        bound="noised tables",
    )
    moved = [
        contribution_sensitivity(objective.lone, sizes, norms, cell=cell, spread=0.4).value
        for cell in range(len(sizes))
    ]
    assert list(ours.values()) == pytest.approx([SLACK * each for each in moved], rel=1e-9)
