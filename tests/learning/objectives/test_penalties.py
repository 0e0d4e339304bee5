"""Laws of a user's own penalties: parts keep their proofs, stated bounds their name, and a search finds false ones."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import fedsw
from fedsw.learning.objectives.penalties import expanded
from fedsw.privacy.sensitivity import STATED

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
CLIP = fedsw.Clip(output=0.5, jacobian=0.25, loss=1.0)
SIZES = (6, 5)


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, "own_penalty", raising=False)
    import own_penalty

    return own_penalty


def bounds(*penalties, sizes=(20, 30, 40, 50)):
    objective = fedsw.Objective("classification", penalties)
    return objective.planned_sensitivities(sizes, CLIP)


def test_the_example_runs_and_prints_whose_bound_is_whose(example, capsys):
    assert 0.9 < example.main() <= 1
    said = capsys.readouterr().out
    assert "Fair: 4 strata; its bound is by loss clip + penalty + slice" in said
    assert f"Means: 2 strata; its bound is by loss clip + {STATED}" in said


def test_a_penalty_of_parts_is_the_parts_themselves_bound_and_gradient(example):
    by_hand = [fedsw.Parity(0.3), fedsw.EqualizedOdds(0.3)]
    assert bounds(example.Fair(0.6)) == bounds(*by_hand)
    assert STATED not in bounds(example.Fair(0.6))[0].bound
    assert expanded([example.Fair(0.6)]) == tuple(by_hand)

    @dataclass(frozen=True)
    class Nested(fedsw.Penalty):
        def parts(self):
            return [example.Fair(0.5), fedsw.Parity(0.5)]

    assert [part.weight for part in expanded([Nested(0.8)])] == [0.2, 0.2, 0.4]


def test_parts_above_the_whole_and_what_has_neither_parts_nor_a_bound_are_refused():
    @dataclass(frozen=True)
    class Greedy(fedsw.Penalty):
        def parts(self):
            return [fedsw.Parity(0.7), fedsw.EqualizedOdds(0.7)]

    @dataclass(frozen=True)
    class Empty(fedsw.Penalty):
        pass

    with pytest.raises(ValueError, match="parts of Greedy have the weights 1.4 together"):
        fedsw.Objective("classification", [Greedy(0.5)])
    with pytest.raises(TypeError, match="Empty is no penalty yet"):
        bounds(Empty(0.5), sizes=SIZES)


@pytest.mark.parametrize(
    ("base", "changed"),
    [
        (fedsw.Penalty, {"between": lambda self: fedsw.Parity(0.9).between()}),
        (fedsw.Parity, {"between": lambda self: fedsw.Parity(0.1).between()}),
        (fedsw.Parity, {"pull": lambda self, outputs, directions: outputs}),
        (fedsw.EqualizedOdds, {"bound": lambda self, sizes, clip: 1e-9}),
        (fedsw.ToSample, {"sample_of": lambda self, uniform: 1e6 * uniform(self.radius)}),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else value.__name__,
)
def test_a_class_that_changes_what_a_proof_rests_on_is_refused(base, changed):
    """The task loss of the first two would be trained with another weight than its sensitivity is counted with."""
    penalty = type("Mine", (base,), changed)(0.5)
    with pytest.raises(TypeError, match=f"Mine changes {', '.join(changed)} of {base.__name__}"):
        bounds(penalty)
    with pytest.raises(TypeError, match="Mine changes"):
        fedsw.require_bound(penalty, SIZES, CLIP)


def test_a_class_that_leaves_out_the_checks_of_its_base_is_checked_all_the_same():
    silent = {"__post_init__": lambda self: None}
    with pytest.raises(ValueError, match="is 2 from the centre, beyond its radius 1"):
        bounds(type("Far", (fedsw.ToSample,), silent)(0.5, sample=torch.tensor([[2.0]])), sizes=(9,))
    with pytest.raises(ValueError, match="a penalty's weight is -0.5"):
        bounds(type("Negative", (fedsw.Penalty,), silent)(-0.5), sizes=SIZES)


def test_a_derived_penalty_with_a_bound_is_the_stated_one_of_its_functions(example):
    own = example.Means(0.5)
    stated = fedsw.Stated(0.5, pull=own.pull, bound=own.bound)
    assert bounds(own, sizes=SIZES) == bounds(stated, sizes=SIZES)
    assert STATED in bounds(own, sizes=SIZES)[0].bound


@pytest.mark.slow
def test_the_search_attains_what_a_proof_says_and_never_more():
    """One slice attains the bound of parity; no neighbours go beyond it, in one dimension or in several."""
    assert fedsw.require_bound(fedsw.Parity(1.0), (3, 3), CLIP, tries=1000) == pytest.approx(1, rel=1e-9)
    assert 0 < fedsw.require_bound(fedsw.Parity(0.5), SIZES, CLIP, dimension=3, tries=300) <= 1
    assert 0 < fedsw.require_bound(fedsw.EqualizedOdds(0.5), (3, 3, 3, 3), CLIP, tries=300) <= 1


@pytest.mark.parametrize("short", [0.5, 0.85])
def test_the_search_finds_a_bound_that_is_too_small(example, short):
    own = example.Means(1.0)
    false = fedsw.Stated(1.0, pull=own.pull, bound=lambda sizes, clip: short * own.bound(sizes, clip))
    fedsw.require_bound(own, (8, 8), CLIP)
    with pytest.raises(ValueError, match="Stated: one record of group . moves the gradient by"):
        fedsw.require_bound(false, (8, 8), CLIP)


def test_a_derivative_that_is_no_number_is_a_counterexample_and_a_proven_sample_is_not_searched():
    nan = fedsw.Stated(1.0, pull=lambda outputs, theta: [each * torch.nan for each in outputs], bound=lambda s, c: 1.0)
    with pytest.raises(ValueError, match="moves the gradient by nan"):
        fedsw.require_bound(nan, SIZES, CLIP)
    with pytest.raises(TypeError, match="proven"):
        fedsw.require_bound(fedsw.ToSample(1.0), SIZES, CLIP)


def test_a_penaltys_own_clip_is_the_one_that_its_bound_is_challenged_with(example):
    wide = replace(example.Means(1.0), clip=fedsw.Clip(output=5.0, jacobian=2.0, loss=1.0))
    assert fedsw.require_bound(wide, (8, 8), CLIP, tries=300) == pytest.approx(
        fedsw.require_bound(example.Means(1.0), (8, 8), CLIP, tries=300), rel=1e-9
    )
