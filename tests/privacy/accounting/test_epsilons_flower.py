"""What docs/upstream/flower-replace-one.md prints of Flower's accountant is what the installed one says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dp_accounting.pld import privacy_loss_distribution
from flwr.serverapp import GaussianPrivacyEvent, NeighboringRelation, PrivacyConfig, RdpAccountant, SamplingMethod

from fedsw.privacy.accounting import Step, epsilon_by

NOTE = Path(__file__).parents[3] / "docs" / "upstream" / "flower-replace-one.md"
_ROWS = re.findall(r"^\| ([\d.]+) \| (\d) \| (\d+) \| 1e-5 \|(.*)\|$", NOTE.read_text(encoding="utf-8"), re.MULTILINE)
CASES = [(float(q), float(z), int(rounds), [float(each) for each in said.split("|")]) for q, z, rounds, said in _ROWS]
DELTA, CLIENTS = 1e-5, 10_000


def flowers(rate: float, multiplier: float, rounds: int) -> float:
    relation, sampling = NeighboringRelation.REPLACE_ONE, SamplingMethod.WITHOUT_REPLACEMENT
    accountant = RdpAccountant(PrivacyConfig(DELTA, CLIENTS, relation, sampling))
    accountant.compose(GaussianPrivacyEvent(multiplier, round(rate * CLIENTS), CLIENTS), rounds)
    return accountant.get_epsilon(DELTA)


@pytest.mark.parametrize(("rate", "multiplier", "rounds", "said"), CASES)
def test_the_note_for_flower_says_what_is_computed(rate, multiplier, rounds, said):
    printed, least, mended, proven = said
    assert flowers(rate, multiplier, rounds) == pytest.approx(printed, abs=0.01)
    assert flowers(rate, multiplier / 2, rounds) == pytest.approx(mended, abs=0.01)
    assert epsilon_by("pld", [(Step(rate, 2 / multiplier), rounds)], DELTA) == pytest.approx(proven, abs=0.01)
    assert len(CASES) == 3 and printed < least <= proven <= mended


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "multiplier", "rounds", "said"), CASES)
def test_neighbours_that_flower_may_meet_have_at_least_the_epsilon_of_the_note(rate, multiplier, rounds, said):
    """A clipped update for its opposite; losses are rounded down on a grid that is coarser than the note's."""
    pair = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier / 2,
        sampling_prob=rate,
        pessimistic_estimate=False,
        value_discretization_interval=1e-4,
        use_connect_dots=False,
    )
    attained = pair.self_compose(rounds).get_epsilon_for_delta(DELTA)
    assert said[0] < attained <= said[1] + 0.01 and attained == pytest.approx(said[1], abs=0.06)
