"""Laws of a user's own feature maps: bounded whatever they give, row by row, and run where they are allowed alone."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.experiment.choices import modules_of
from fedsw.federation.node.limits import require_modules
from fedsw.learning.sketches import GaussianKernel
from fedsw.learning.sketches.from_settings import feature_map
from fedsw.learning.sketches.maps import OwnMap
from fedsw.learning.sketches.sketch_law import Law
from fedsw.learning.tasks.problem import Problem
from tests.federation.sketch_runs import SKETCH

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "own_map", raising=False)
    import own_map

    return own_map


class Given(nn.Module):
    """A module that is a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, rows):
        return self.function(rows)


@dataclass(frozen=True)
class Map:
    """A map that is a function, and says how wide it is."""

    function: object
    wide: int = 3

    def width(self, features):
        return self.wide

    def built(self, features, stream):
        return Given(self.function)


def test_the_example_runs_and_prints_what_left(example, capsys):
    assert example.main() < 2.0
    assert "80 numbers left once, at epsilon 4" in capsys.readouterr().out


def test_a_records_vector_is_bounded_whatever_the_map_gives():
    def wild(rows):
        return torch.stack([rows[:, 0] * 1e30, rows[:, 1].log(), rows[:, 2] / 0], dim=1) * (rows.sum(1) > 2)[:, None]

    law = Law(3, (GaussianKernel((0.5, 1.0), 12, map=OwnMap("wild", "{}", Map(wild))),), classes=2)
    for row in ([1.0, 2.0, 3.0], [1e30, -1.0, 0.0], [math.nan, 1.0, 2.0], [0.1, 0.1, 0.1]):
        sums = law.drawn(torch.float64).sums(
            torch.tensor([row], dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
        )
        assert sums.isfinite().all() and float(sums[:, :-1].norm()) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("function", "wide", "words"),
    [
        (lambda rows: rows - rows.mean(0), 3, "mixes rows"),
        (lambda rows: rows[:, :2], 3, r"gives \(3, 2\) of 3 rows"),
        (lambda rows: rows.cumsum(0), 3, "mixes rows"),
    ],
)
def test_a_map_that_mixes_rows_or_says_another_width_is_refused_on_made_up_rows(function, wide, words):
    law = Law(3, (GaussianKernel((1.0,), 4, map=OwnMap("own", "{}", Map(function, wide))),))
    with pytest.raises(ValueError, match=words):
        law.drawn()


def test_a_name_that_gives_no_map_or_arguments_that_do_not_fit_are_refused_before_anything_is_spent(example):
    def chosen(**sketch):
        return Problem.from_experiment(parse_experiment({**SKETCH, "sketch": {**SKETCH["sketch"], **sketch}}))

    with pytest.raises(ExperimentError, match="gives a float; a map has"):
        chosen(map="math:pi")
    with pytest.raises(ExperimentError, match="cannot be made with {'many': 2}"):
        chosen(map="own_map:Thresholds", map_arguments={"many": 2})
    with pytest.raises(ExperimentError, match="map_arguments are for a map of your own"):
        chosen(map_arguments={"each": 2})
    with pytest.raises(ExperimentError, match="'module:name' for a map of your own"):
        chosen(map="cosines")
    with pytest.raises(ExperimentError, match="decay is for map 'cosine'"):
        chosen(map="own_map:Thresholds", decay=1.0)


def test_a_map_of_the_servers_choice_is_code_that_a_node_and_a_reader_of_its_folder_allow_first(example):
    experiment = parse_experiment({**example.SETTINGS, "sketch": {"also": [{"map": "own_map:Thresholds"}]}})
    assert modules_of(experiment) == ("own_map",)
    with pytest.raises(ExperimentError, match=r"sketch\.also\[0\]\.map is 'own_map:Thresholds'; modules whose code"):
        require_modules(experiment, {"own-data": "yes", "modules": "other"})
    require_modules(experiment, {"own-data": "yes", "modules": "own_map"})


def test_two_makings_of_one_map_are_one_and_of_another_argument_are_not(example):
    def spec(each):
        part = {"map": "own_map:Thresholds", "map_arguments": {"each": each}}
        return parse_experiment({**example.SETTINGS, "sketch": part}).sketch

    assert feature_map(spec(2)) == feature_map(spec(2)) != feature_map(spec(3))
