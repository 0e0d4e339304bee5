"""Laws of thresholds from noised counts: rules hold on the counts, noise is told, few records share a threshold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedsw.learning.tasks.score_counts import BINS
from fedsw.runs.evaluation.group_thresholds import RULES, Scores, band_of, cuts_of, keep, kept, scores_of_outputs
from fedsw.runs.view import HeldOutOutputs


def law(counts: tuple[int, ...] = (4000, 6000), seed: int = 0) -> HeldOutOutputs:
    """Probabilities of class 1, higher in later groups, and classes that follow them."""
    draws = np.random.default_rng(seed)
    sensitive = np.repeat(np.arange(len(counts)), counts)
    scores = np.clip(draws.beta(2, 3, len(sensitive)) * (0.8 + 0.2 * sensitive), 0, 1)
    target = (draws.uniform(size=len(scores)) < scores).astype(np.int64)
    return HeldOutOutputs(scores[:, None], sensitive, target)


def counted(outputs: HeldOutOutputs, sigma: float = 0.0, seed: int = 0) -> Scores:
    """Their counts with noise."""
    exact = scores_of_outputs(outputs, groups=int(outputs.sensitive.max()) + 1, positive=1)
    noise = sigma * np.random.default_rng(seed).standard_normal(exact.values.shape)
    return Scores(exact.values + noise, sigma, exact.records, 1, 0, 1.0)


def selected(cuts, outputs: HeldOutOutputs, where=None) -> np.ndarray:
    """The share of every group, or of its records `where`, above its threshold."""
    above = outputs.values[:, 0] > np.array(cuts.by_group)[outputs.sensitive]
    kept_rows = np.ones(len(above), dtype=bool) if where is None else where
    groups = range(len(cuts.by_group))
    return np.array([above[kept_rows & (outputs.sensitive == group)].mean() for group in groups])


@pytest.mark.parametrize("sigma", [0.0, 5.0])
def test_parity_selects_all_groups_alike_within_the_stated_bands(sigma):
    outputs = law()
    cuts = cuts_of(counted(outputs, sigma), "parity")
    found = selected(cuts, outputs)
    bands = np.array(cuts.bands) + 0.01  # and what lies inside a bin
    assert np.ptp(cuts.selected) < 1e-6 and np.all(np.abs(found - cuts.selected) <= bands)
    assert found.min() > 0.1 and cuts.accuracy > 0.6 and not cuts.few


def test_opportunity_selects_those_of_the_positive_class_alike():
    outputs = law()
    cuts = cuts_of(counted(outputs), "opportunity")
    found = selected(cuts, outputs, outputs.target == 1)
    assert np.ptp(found) < 0.02 and 0.2 < found.min() < 1


def test_odds_narrow_the_larger_gap_of_both_classes_at_little_cost():
    outputs = law()
    scores = counted(outputs)

    def gap(cuts):
        return max(np.ptp(selected(cuts, outputs, outputs.target == label)) for label in (0, 1))

    odds, one = cuts_of(scores, "odds"), cuts_of(scores, "best")
    assert gap(odds) < 0.5 * gap(one) and odds.accuracy > one.accuracy - 0.02


def test_thresholds_by_a_rule_are_right_as_often_as_any_that_a_loop_over_rates_finds():
    outputs = law((1500, 1500))
    cuts = cuts_of(counted(outputs), "parity")
    above = outputs.values[:, 0] > np.array(cuts.by_group)[outputs.sensitive]
    reached = (above == (outputs.target == 1)).mean()
    best = 0.0
    for rate in np.linspace(0, 1, 101):
        picked = np.zeros(len(above), dtype=bool)
        for group in (0, 1):
            own = outputs.values[outputs.sensitive == group, 0]
            picked[outputs.sensitive == group] = own > np.quantile(own, 1 - rate)
        best = max(best, (picked == (outputs.target == 1)).mean())
    assert reached >= best - 0.01 and cuts.accuracy == pytest.approx(reached, abs=0.01)


@pytest.mark.parametrize("rule", RULES)
def test_the_same_counts_give_the_same_thresholds_and_all_are_probabilities(rule):
    for sigma in (0.0, 30.0, 3000.0):
        scores = counted(law((300, 500)), sigma)
        cuts = cuts_of(scores, rule)
        assert cuts == cuts_of(scores, rule)
        numbers = [*cuts.by_group, *cuts.selected, *cuts.bands]
        assert all(0 <= value <= 1 for value in numbers) and math.isfinite(cuts.accuracy)


@pytest.mark.parametrize("rule", ["parity", "opportunity", "odds"])
def test_a_group_of_few_records_gets_the_threshold_of_all_and_noise_alone_gives_one_half(rule):
    outputs = law((4000, 15))
    cuts = cuts_of(counted(outputs, 2.0), rule)
    assert cuts.few == (1,)
    buried = cuts_of(counted(outputs, 1e5), rule)
    assert buried.few == (0, 1) and buried.by_group == (0.5, 0.5)
    nobody = Scores(np.zeros((2, 2 * BINS)), 0.0, np.zeros(2, dtype=np.int64), 1, 0, 0.0)
    assert cuts_of(nobody, rule).by_group == (0.5, 0.5)


def test_noise_leaves_a_share_inside_its_band_as_often_as_said():
    outputs, inside = law((2000, 2000)), []
    exact = counted(outputs)
    for seed in range(200):
        cuts = cuts_of(counted(outputs, 4.0, seed), "parity")
        above = [np.interp(cut, np.linspace(0, 1, BINS + 1), _shares(exact, g)) for g, cut in enumerate(cuts.by_group)]
        inside += [abs(a - s) <= b for a, s, b in zip(above, cuts.selected, cuts.bands, strict=True)]
    assert np.mean(inside) > 0.95 and band_of(4.0, 2000) == cuts.bands[0]


def _shares(scores: Scores, group: int) -> np.ndarray:
    counts = scores.values[group].reshape(BINS, 2).sum(axis=1)
    return np.append(np.cumsum(counts[::-1])[::-1], 0.0) / counts.sum()


def test_a_rule_that_is_unknown_raises():
    with pytest.raises(ValueError, match="rule 'fair' is unknown: choose 'best', 'parity', 'opportunity', 'odds'"):
        cuts_of(counted(law((50, 50))), "fair")


def test_what_is_kept_is_read_again_and_a_damaged_file_is_named(tmp_path):
    assert kept(tmp_path) is None
    scores = counted(law((50, 60)), 1.5)
    keep(tmp_path, scores)
    found = kept(tmp_path)
    assert np.array_equal(found.values, scores.values) and (found.sigma, found.spent) == (1.5, 1.0)
    (tmp_path / "scores.json").write_text('{"values": [[1.0]], "sigma": 1, "records": [1, 2]}')
    with pytest.raises(ValueError, match="scores.json is damaged"):
        kept(tmp_path)
