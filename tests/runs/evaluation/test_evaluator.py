"""Laws of what held-out metrics are measured on: a fixed public part of every stratum, and what summaries say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedsw.data import Records
from fedsw.experiment import ExperimentError, load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.learning.tasks import Classification
from fedsw.learning.tasks.measures import Measuring, measure
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.evaluation.evaluator import Evaluator, subsample
from tests.federations import small


def records(n: int, *, seed: int = 0, rare: int = 3, groups: int = 3) -> Records:
    """Records of which `rare` are in the last group; features from the seed, groups and classes not."""
    fixed, drawn = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    sensitive = torch.randint(groups - 1, (n,), generator=fixed)
    sensitive[torch.randperm(n, generator=fixed)[:rare]] = groups - 1
    target = (torch.rand(n, generator=fixed) < 0.1).long()
    return Records(torch.randn(n, 2, generator=drawn), sensitive, target, torch.arange(n))


def test_up_to_the_threshold_all_records_are_measured_on():
    whole = records(500)
    assert subsample(whole, 500) is whole and len(subsample(whole, 400)) < 410


@pytest.mark.parametrize("most", [1, 10, 100, 300])
def test_every_group_and_class_keeps_its_part_rounded_up_and_none_vanishes(most):
    whole = records(1000)
    part = subsample(whole, most)
    for group in range(3):
        for label in range(2):
            have, kept = (int(((r.sensitive == group) & (r.target == label)).sum()) for r in (whole, part))
            assert kept == -(-have * most // 1000), (group, label)
    assert len(part) <= most + 6


def test_the_choice_is_the_same_every_time_and_does_not_look_at_features():
    one, other = subsample(records(1000), 200), subsample(records(1000, seed=9), 200)
    assert torch.equal(one.ids, other.ids) and not torch.equal(one.features, other.features)
    assert bool((one.ids.diff() > 0).all())
    assert torch.equal(one.ids, subsample(records(1000), 200).ids)


def test_targets_of_a_regression_are_not_looked_at():
    whole = records(1000)
    points = [Records(whole.features, whole.sensitive, torch.randn(1000, 2) * s, whole.ids) for s in (1.0, 5.0)]
    assert torch.equal(subsample(points[0], 90).ids, subsample(points[1], 90).ids)


def test_the_choice_is_uniform_within_a_stratum():
    whole = Records(torch.zeros(4000, 1), torch.zeros(4000).long(), torch.zeros(4000).long(), torch.arange(4000))
    counts = torch.bincount(subsample(whole, 1000).ids // 400, minlength=10)
    assert int(counts.sum()) == 1000 and int(counts.min()) >= 65 and int(counts.max()) <= 135


def evaluator(*settings: str) -> Evaluator:
    return Evaluator(Problem.from_experiment(small("data.test_records=300", *settings)))


def test_the_metrics_of_a_part_are_those_of_all_its_records(tmp_path):
    task = Problem.from_experiment(small("data.test_records=300", "evaluation.records=120"))
    theta = torch.ones(task.parameters, dtype=torch.float64) / 10
    found = Evaluator(task).metrics(theta)
    part = subsample(Evaluator(Problem.from_experiment(small("data.test_records=300")))._records, 120)
    with torch.no_grad():
        expected = task.task.metrics(None, Measuring(task, part, task.prepared(task.build_model(), theta)))
    assert found == expected


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [(("evaluation.records=120",), 120, 124), (("evaluation.mode=full",), 300, 300), ((), 300, 300)],
)
def test_a_summary_says_on_how_many_records_it_was_measured(federation, settings, least, most):
    summary = federation.run(small("data.test_records=300", "training.rounds=1", *settings))
    on = summary["held_out_measured_on"]
    assert least <= on["records"] <= most and on["of"] == 300
    assert on["directions"] == 1
    assert sum(row["count"] for row in summary["held_out_by_group"].values()) == on["records"]


@pytest.mark.parametrize("settings", [("evaluation.records=50",), ("evaluation.directions=7",)])
def test_a_number_that_full_does_not_read_is_refused(settings):
    with pytest.raises(ExperimentError, match="is for mode 'auto', and mode 'full' takes all there are"):
        small("evaluation.mode=full", *settings)


def generation(*settings: str) -> Problem:
    return Problem.from_experiment(load_experiment(find_experiment("digits"), settings))


@pytest.mark.parametrize(
    ("settings", "dimension", "directions"),
    [
        ((), 64, 128),
        ((), 784, 100),
        (("evaluation.directions=30",), 64, 30),
        (("evaluation.mode=full",), 784, 784),
        (("evaluation.mode=full",), 3, 102),
    ],
)
def test_in_many_dimensions_as_many_directions_are_taken_as_asked_and_otherwise_whole_blocks(
    settings, dimension, directions
):
    problem = generation(*settings)
    found = Measuring(problem, records(10), problem.build_model())
    assert found.slices(dimension) == directions == found.taken


def test_tables_are_made_of_all_records():
    from fedsw.desk.compare.methods import build

    assert build("fair-classification", "central").evaluation.mode == "full"


class _Doubling(Classification):
    """Measures the features' sum, and doubles them where they lie."""

    def metrics(self, model, held_out):
        return {"sum": float(held_out.records.features.mul_(2).sum())}

    def arrays(self, model, held_out):
        held_out.records.sensitive.zero_()
        return super().arrays(model, held_out)


def test_a_task_that_changes_held_out_records_measures_the_same_ones_again():
    problem = Problem.from_experiment(small("data.test_records=300"))
    own, model = replace(problem, task=_Doubling()), problem.build_model()
    kept = Evaluator(problem)._records
    before, groups = float(kept.features.sum()), kept.sensitive.clone()
    for _ in range(2):
        assert measure(own, kept, model).report == {"sum": pytest.approx(2 * before, rel=1e-5)}
    assert float(kept.features.sum()) == before and torch.equal(kept.sensitive, groups)
