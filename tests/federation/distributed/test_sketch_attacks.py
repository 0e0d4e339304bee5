"""A server that lies about a sketch, with C sites on its side: what it holds is a function of the honest sum.

Noise is secret; bounds hold with probability 1 - 1e-7 or more, so that no law fails by chance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.audit.bounds import shown_epsilon
from fedsw.federation.node.replies import WITHHELD, join
from fedsw.federation.trust.distributed import once
from fedsw.federation.trust.distributed.members import Cohort, least
from fedsw.federation.trust.sketch import sketch_once as sides
from fedsw.federation.trust.sketch.sketch_once import PART
from fedsw.learning.sketches.from_settings import classifier_of
from fedsw.learning.sketches.learnt import flat_bytes
from fedsw.learning.tasks.measures import law_of_problem, sketch_of_records
from fedsw.privacy.masks import MaskKey, summed
from fedsw.privacy.release import Bounded, Paid, release_share
from fedsw.privacy.sensitivity import Sensitivity
from tests.federation.distributed.sites import RUN, Refused, Sites, masked
from tests.federation.distributed.test_site_attacks import HONEST, refused, require_the_sum_alone, uniform
from tests.laws.attacks.canaries import shown_mu
from tests.noises import require_gaussian

TWO = ("sketch.stages=[{share=0.3}]", "sketch.hidden=5", "training.rounds=3")


def sites_of(tmp_path, *overrides: str, **more) -> Sites:
    return Sites(tmp_path, masked("federation.clients=4", *overrides), **more)


def node_of(sites: Sites, site: int = 0):
    config = {"partition-id": site, "num-partitions": sites.count}
    return join(sites.experiment.model_dump_json(exclude={"metrics"}), RUN, sites.run_id, config)


def test_replacing_a_record_moves_a_sites_sum_by_at_most_what_is_charged(tmp_path, exact):
    sites = sites_of(tmp_path, "local.failing=10", *TWO)
    weights = torch.randn(classifier_size(sites), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    draw = np.random.default_rng(0)
    node, attempt = node_of(sites), itertools.count()
    kept, labels = node.records.features.clone(), node.records.target.clone()
    for stage, bound in ((1, 2.002), (2, math.sqrt(2) * 1.001 * 1.006)):
        furthest = 0.0
        for _ in range(5):
            both = []
            for other in (False, True):
                if other:
                    place = int(draw.integers(len(kept)))
                    node.records.features[place] = torch.from_numpy(draw.normal(0, 50, kept.shape[1])).to(kept)
                    node.records.target[place] = int(draw.integers(5))
                number = next(attempt)
                sites.sketch(0, sites.cohort(stage, number), weights, stage, number)
                both.append(exact[-1][0])
            node.records.features[:], node.records.target[:] = kept, labels
            furthest = max(furthest, float((both[0] - both[1]).norm()))
        found = sites.sketch_sum(sites.cohort(stage, next(attempt)), weights, stage)
        assert 0.2 < furthest <= found.parts[0].sensitivity <= bound
        (charge,) = found.charges
        assert charge.sensitivity / found.sigma == pytest.approx(found.parts[0].sensitivity / found.parts[0].scale)


def classifier_size(sites: Sites) -> int:
    return sum(each.numel() for each in classifier_of(sites.experiment, sites.task.shape).parameters())


@pytest.mark.parametrize("stage", [1, 2])
def test_server_and_colluders_hold_what_can_be_made_of_the_honest_sum_alone(tmp_path, exact, stage):
    sites = sites_of(tmp_path, "sketch.pairs=60", *TWO)
    weights = torch.linspace(-1, 1, classifier_size(sites), dtype=torch.float64)
    cohort = sites.cohort(stage)
    sent = [sites.sketch(site, cohort, weights, stage) for site in HONEST]
    require_the_sum_alone(
        sites, cohort, sent, exact, round=stage, sum=PART, classifier=flat_bytes(weights) if stage > 1 else b""
    )


def test_the_honest_sum_has_the_whole_noise_without_that_of_the_colluders(tmp_path, exact):
    """Two of four clients collude; a stage's second attempt has noise of its own."""
    sites = sites_of(tmp_path, "sketch.pairs=60", "local.colluding=2", "local.failing=9")
    added = []
    for attempt in range(6):
        cohort = sites.cohort(attempt=attempt)
        found = sites.sketch_sum(cohort)
        exact.clear()
        for site in (0, 1):
            sites.sketch(site, cohort, attempt=attempt)
        step = found.shares(PART)[0].step
        added.append(summed([rounded for _, rounded, _ in exact], step) - sum(value for value, _, _ in exact))
        assert {sigma for _, _, sigma in exact} == {found.sigma}
    require_gaussian(torch.stack(added), found.sigma)


@pytest.mark.parametrize("what", ["classifier", "records", "attempt"])
def test_different_requests_to_two_halves_give_uniform_numbers(tmp_path, what):
    sites = sites_of(tmp_path, "sketch.pairs=60", *TWO)
    weights = torch.zeros(classifier_size(sites), dtype=torch.float64)
    cohort = sites.cohort(2)
    other = cohort.model_copy(update={"records": cohort.records + 1}) if what == "records" else cohort
    sent = [sites.sketch(site, cohort, weights, 2) for site in (0, 1)]
    if what == "attempt":
        other = Cohort(records=cohort.records, parties=[*cohort.parties[:2], *sites.cohort(2, 1, (2, 3)).parties])
    elsewhere = weights + 1e-12 if what == "classifier" else weights
    sent += [sites.sketch(site, other, elsewhere, 2, int(what == "attempt")) for site in (2, 3)]
    assert uniform(sum(sent)) and all(sites.charged(site) for site in range(4))


def test_a_stage_is_answered_once_an_attempt_and_no_more_often_than_its_ledger_allows(tmp_path):
    sites = sites_of(tmp_path)
    cohort = sites.cohort()
    sites.sketch(0, cohort)
    refused(sites, lambda: sites.sketch(0, cohort), "not made ready")
    refused(sites, lambda: sites.sketch(0, sites.cohort()), "is charged in")
    refused(sites, lambda: sites.sketch(0, sites.cohort(attempt=1), attempt=1), "the budget is 5")
    assert sites.charged(0) == [(1, 0)]


def test_what_is_asked_of_rounds_is_not_answered_in_a_run_on_a_sketch_nor_the_other_way(tmp_path, sites):
    own = sites_of(tmp_path / "sketch")
    refused(own, lambda: own.table(0, own.cohort()), "tasks of another kind")
    refused(own, lambda: own.contribution(0, own.cohort()), "tasks of another kind")
    refused(own, lambda: own.sketch(0, own.cohort(2), stage=2), "stage 2 of a sketch with 1")
    refused(sites, lambda: sites.sketch(0, sites.cohort()), "tasks of another kind")


def test_fewer_clients_than_the_noise_is_for_and_strangers_are_refused(tmp_path):
    sites = sites_of(tmp_path)
    refused(sites, lambda: sites.sketch(0, sites.cohort(sites=range(3))), "3 clients are in the sum")
    strange = sites.cohort()
    strange.parties[3] = strange.parties[3].model_copy(update={"key": MaskKey.fresh().public.hex()})
    refused(sites, lambda: sites.sketch(0, strange), "is not in this client's roster")


def test_the_charge_is_on_disk_before_a_record_is_looked_at(tmp_path, monkeypatch, caplog):
    sites = sites_of(tmp_path)
    monkeypatch.setattr(sides, "sketch_of_records", lambda *given, **named: 1 / 0)
    with pytest.raises(Refused, match=WITHHELD):
        sites.sketch(0, sites.cohort())
    assert "ZeroDivisionError" in caplog.text  # in the site's own log, and there alone
    assert sites.charged(0) == [(1, 0)]


def test_a_site_that_lost_its_state_answers_no_attempt_again(tmp_path):
    sites = sites_of(tmp_path, "local.failing=3")
    cohort = sites.cohort()
    before = sites.contexts[0].state["fedsw-site"].copy()
    sites.sketch(0, cohort)
    sites.contexts[0].state["fedsw-site"].update(before)
    refused(sites, lambda: sites.sketch(0, cohort), "is charged in")


TRIALS = 100_000


def shown(tmp_path, colluding: int) -> float:
    """What a server with C sites can show of two neighbours whose sketches are as far apart as can be."""
    alike = ("sketch.bandwidths=[1.0]", "sketch.pairs=2", "sketch.labels=false", "privacy.epsilon=5.0")
    sites = sites_of(tmp_path, *alike, f"local.colluding={colluding}", colluding=colluding)
    turns = law_of_problem(sites.task).drawn(torch.float64).parts[0].turns
    move = torch.linalg.lstsq(turns.T, torch.full((2, 1), 0.5, dtype=torch.float64)).solution[:, 0]
    found, honest = sites.sketch_sum(sites.cohort()), range(4 - colluding)
    shares, sums, records = [found.shares(PART)[site] for site in honest], [], node_of(sites).records
    for record in (move / 2, -move / 2):
        records.features[0] = record.to(records.features)
        sums.append([sketch_of_records(sites.task, node_of(sites, each).records).reshape(-1) for each in honest])
    apart = (sum(sums[0]) - sum(sums[1])) / found.sigma
    assert 0.99 * found.parts[0].sensitivity < float(apart.norm()) * found.sigma <= found.parts[0].sensitivity
    scores = [(released(found, own, shares) / found.sigma @ apart).numpy() for own in sums]
    middle = float((sum(sums[0]) + sum(sums[1])) @ apart) / 2 / found.sigma
    return shown_epsilon(shown_mu(*scores, 1 - 1e-7, middle), 1.0, 1, 1e-5)


def released(found, sums: Sequence[Tensor], shares) -> Tensor:
    """What is held, (TRIALS, numbers): the honest sites' parts by the door, without their masks, which cancel."""
    parts = []
    for value, share in zip(sums, shares, strict=True):
        paid = found.parts[0]
        bound = Sensitivity(paid.sensitivity, "as it was paid for", relation=paid.relation)
        bounded = Bounded(value.repeat(TRIALS), bound)
        mask = np.zeros(TRIALS * len(value), dtype=np.uint64)
        parts.append(release_share(bounded, [Paid(1, 0, 0.0, {PART: paid})], PART, share, mask, Stream.secure()))
    return summed(parts, shares[0].step).reshape(TRIALS, -1)


@pytest.mark.parametrize("colluding", [1, 2])
def test_canaries_show_nine_tenths_of_epsilon_and_never_more(tmp_path, colluding):
    assert 0.9 * 5.0 <= shown(tmp_path, colluding) <= 5.0


def test_shares_of_all_clients_and_not_of_the_honest_are_caught_by_the_canaries(tmp_path, monkeypatch):
    monkeypatch.setattr(once, "honest", least)
    assert shown(tmp_path, 2) > 5.0
