"""The canary attack on masked sums: nearly all of epsilon is shown, never more, and a broken build is caught.

Noise is secret; bounds hold with probability 1 - 1e-10, so that no law fails by chance.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedsw._tools.randomness import Stream
from fedsw.audit import canary
from fedsw.audit import canary_masked as masked
from fedsw.federation.trust.distributed import attempt_cost as budget
from fedsw.federation.trust.distributed import members as cohort
from fedsw.federation.trust.distributed import site
from fedsw.privacy.masks import Share
from tests.brief import brief  # noqa: F401
from tests.federations import small

ALL = (
    "privacy.trust=distributed", "privacy.epsilon=8.0", "federation.clients=4", "local.bins=8",
    "training.batch_fraction=1.0", "training.rounds=1",
)  # fmt: skip


def audited(*overrides: str, trials: int = 100_000):
    return canary.audit(small(*ALL, *overrides), trials=trials, confidence=1 - 1e-10, draws=1500, singly=20)


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("training.rounds=3", "local.colluding=2", "seed=5"),
        ("local.bins=auto",),
        ("objective.alpha=0.0",),
        ("objective.penalty=none",),
        ("objective.alpha=1.0", "clip.output=0.5", "clip.centre=0.5"),
    ],
    ids=[
        "both sums",
        "rounds, half of the sites collude",
        "bins are chosen",
        "contribution alone",
        "no penalty",
        "penalty alone",
    ],
)
def test_a_server_with_c_sites_that_writes_the_table_sees_nearly_all_of_epsilon_and_never_more(overrides):
    found = audited(*overrides)
    assert found.passed and 0.9 * found.claimed <= found.shown <= found.claimed
    assert 0.998 <= found.details["instance_share"] <= 1.0


def test_a_sum_of_as_few_clients_as_may_be_shows_no_more():
    found = audited("federation.min_clients=3")
    assert found.passed and 0.85 * found.claimed <= found.shown <= found.claimed


@pytest.mark.slow
def test_with_sampling_most_of_the_brackets_lower_end_is_shown():
    found = audited("training.batch_fraction=0.5", "training.rounds=16", trials=400_000)
    assert found.passed and 0.7 * found.details["bracket_lower"] <= found.shown <= found.claimed


def _noise_of_all_and_not_of_the_honest(monkeypatch):
    monkeypatch.setattr(budget, "honest", cohort.least)


def _a_tenth_less_of_every_share(monkeypatch):
    genuine = Share.scale
    monkeypatch.setattr(Share, "scale", lambda share, sigma: 0.9 * genuine(share, sigma))


def _one_stream_for_all_rounds(monkeypatch):
    monkeypatch.setattr(site.Node, "own_stream", lambda node, round_, attempt, what: Stream.seeded(7, what))


@pytest.mark.parametrize(
    ("breaks", "overrides", "words"),
    [
        (_noise_of_all_and_not_of_the_honest, ("local.colluding=2",), "one release shows"),
        (_a_tenth_less_of_every_share, (), "one release shows"),
        (_one_stream_for_all_rounds, ("training.rounds=3",), "noise of an earlier one"),
    ],
    ids=["shares of all clients", "a tenth less", "a stream reused"],
)
def test_a_broken_build_fails_the_audit(monkeypatch, breaks, overrides, words):
    breaks(monkeypatch)
    found = audited(*overrides)
    assert not found.passed and words in found.verdict


def test_what_is_overheard_is_what_leaves_without_its_mask(tmp_path, monkeypatch):
    """The sum of the numbers that the sites send is the sum of what the attack takes for them."""
    sent, genuine = [], masked.release_share

    def keep(*given):
        sent.append(genuine(*given))
        return sent[-1]

    monkeypatch.setattr(masked, "release_share", keep)
    experiment = small(*ALL, "local.colluding=0")
    with masked.MaskedTrial(experiment, None, tmp_path / "one", canary=False) as trial:
        views = trial.overheard(1)
    for view, numbers in zip(views, (sent[:4], sent[4:]), strict=True):
        assert np.array_equal(sum(numbers), sum(each.numbers for each in view))
        assert not any(np.array_equal(one, each.numbers) for one, each in zip(numbers, view, strict=True))
