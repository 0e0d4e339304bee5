"""A server that lies, with C sites on its side: what it holds is a function of the honest sum, or uniform numbers."""

from __future__ import annotations

import itertools
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from fedsw._tools.randomness import Stream
from fedsw.federation.messages import MASKED_TABLES
from fedsw.federation.node.own_ledger import AlreadyAnswered
from fedsw.federation.trust.distributed import attempt_cost
from fedsw.federation.trust.distributed import site as client
from fedsw.federation.trust.distributed.members import Cohort, Party
from fedsw.privacy.masks import MaskKey, digest_of, summed
from tests.federation.distributed.sites import RUN, Refused, Sites, experiment_of
from tests.noises import require_gaussian

HONEST, COLLUDER = range(3), 3
MANY = ("slicing.directions=40", "local.bins=50", "objective.penalty=equality-of-odds")


def uniform(numbers) -> bool:
    return stats.kstest(numbers / 2.0**64, "uniform").pvalue > 1e-9 and len(np.unique(numbers)) == len(numbers)


def require_the_sum_alone(sites: Sites, cohort: Cohort, sent: list[np.ndarray], exact, **asked: object) -> None:
    """Of what the honest sites sent, a server with the colluder's key gets their sum, and else uniform numbers."""
    request = {
        "run": RUN,
        "experiment": sites.experiment.model_dump_json(exclude={"metrics"}),
        "attempt": 0,
        "cohort": cohort.model_dump_json(),
        **asked,
    }
    key, digest = sites.keys[COLLUDER], digest_of(request)
    left = [sent[site] + key.mask([sites.keys[site].public], digest, len(sent[site])) for site in HONEST]
    honest = sum(rounded for _, rounded, _ in exact)
    assert np.array_equal(sum(left), honest)  # which is all that the simulator gets
    made = [Stream.secure().words(len(honest)) for _ in HONEST[:-1]]
    made.append(honest - sum(made))
    for coefficients in itertools.product((-1, 0, 1, 2), repeat=3):
        weights = [np.uint64(c % 2**64) for c in coefficients]
        real, simulated = (sum(w * each for w, each in zip(weights, of, strict=True)) for of in (left, made))
        if len(set(coefficients)) == 1:
            assert np.array_equal(real, simulated)
        else:
            assert uniform(real) and uniform(simulated)
            assert stats.ks_2samp(real / 2.0**64, simulated / 2.0**64).pvalue > 1e-9


@pytest.mark.parametrize("sum_", ["table", "contribution"])
def test_server_and_colluders_hold_what_can_be_made_of_the_honest_sum_alone(tmp_path, exact, sum_):
    sites = Sites(tmp_path, experiment_of(*MANY))
    cohort = sites.cohort()
    sent = [sites.table(site, cohort) for site in HONEST]
    table = b""
    if sum_ == "contribution":
        exact.clear()
        sent = [sites.contribution(site, cohort) for site in HONEST]
        table = torch.zeros(sites.length(), dtype=sites.task.dtype).numpy().tobytes()
    require_the_sum_alone(
        *(sites, cohort, sent, exact),
        **{"round": 1, "sum": sum_, "table": table, "prepared": b""},
        model=sites.theta.to(sites.task.dtype).numpy().tobytes(),
    )


def test_the_honest_sum_has_the_whole_noise_without_that_of_the_colluders(tmp_path, exact):
    """Two of four clients collude."""
    more = ("training.rounds=40", "privacy.epsilon=200.0", "local.colluding=2", "local.bins=100")
    sites = Sites(tmp_path, experiment_of(*more))
    added = {"table": [], "contribution": []}
    for round_ in range(1, 11):
        cohort = sites.cohort(round_)
        attempt = sites.attempt(cohort, round_)
        for name, ask in (("table", sites.table), ("contribution", sites.contribution)):
            exact.clear()
            for site in (0, 1):
                ask(site, cohort, round_=round_)
            step = attempt.shares(name)[0].step
            noise = summed([rounded for _, rounded, _ in exact], step) - sum(value for value, _, _ in exact)
            added[name].append(noise / attempt.scale(name))
            assert {sigma for _, _, sigma in exact} == {attempt.scale(name)}
    for found in added.values():
        require_gaussian(torch.stack(found), 1.0)


@pytest.mark.parametrize("what", ["records", "model", "table", "nonce", "sizes"])
def test_different_requests_to_two_halves_give_uniform_numbers(tmp_path, what):
    sites = Sites(tmp_path, experiment_of(*MANY))
    cohort = other = sites.cohort()
    if what == "records":
        other = cohort.model_copy(update={"records": cohort.records + 1})
    if what in ("nonce", "sizes"):  # of a site that the second half is not
        changes = {"nonce": "00" * 32} if what == "nonce" else {"sizes": [[each + 5 for each in sites.sizes[0]]]}
        first = cohort.parties[0].model_copy(update=changes)
        other = Cohort(records=cohort.records + 100, parties=[first, *cohort.parties[1:]])
    if what == "table":
        for site in range(4):
            sites.table(site, cohort)
        ones = torch.ones(sites.length(), dtype=torch.float64)
        sent = [sites.contribution(site, cohort, ones if site > 1 else None) for site in range(4)]
    else:
        theta = sites.theta + 1 if what == "model" else sites.theta
        sent = [
            sites.table(site, other if site > 1 else cohort, theta=theta if site > 1 else None) for site in range(4)
        ]
    if len(sent[0]) > 500:
        assert uniform(sum(sent))
    magnitude = np.abs(sum(sent).view(np.int64).astype(float))
    assert np.median(magnitude) > 2.0**58
    assert all(sites.charged(site) for site in range(4))


def test_without_one_honest_site_the_others_sum_is_uniform(tmp_path):
    sites = Sites(tmp_path, experiment_of(*MANY))
    cohort = sites.cohort()
    assert uniform(sum(sites.table(site, cohort) for site in range(3)))


def refused(sites: Sites, ask, match: str, site: int = 0) -> None:
    """A site that answers nothing, and has charged nothing more."""
    before = sites.charged(site)
    with pytest.raises(Refused, match=match):
        ask()
    assert sites.charged(site) == before


def test_an_attempt_is_answered_once(sites):
    cohort = sites.cohort()
    sites.table(0, cohort)
    refused(sites, lambda: sites.table(0, cohort), "is charged in")
    sites.contribution(0, cohort)
    refused(sites, lambda: sites.contribution(0, cohort), "not made ready")
    refused(sites, lambda: sites.table(0, cohort), "not made ready")
    refused(sites, lambda: sites.table(0, sites.cohort()), "is charged in")
    assert sites.charged(0) == [(1, 0)]


def test_a_request_of_another_attempt_or_nonce_is_no_request(sites):
    old = sites.cohort()
    fresh = sites.cohort()
    refused(sites, lambda: sites.table(0, old), "own key and nonce")
    refused(sites, lambda: sites.table(0, fresh, attempt=1), "not made ready")
    sites.table(0, fresh)
    other = sites.cohort(2)
    refused(sites, lambda: sites.contribution(0, fresh), "not made ready")
    refused(sites, lambda: sites.contribution(0, other, round_=2), "holds no batch")


def test_the_second_sum_is_among_the_sites_of_the_first(sites):
    cohort = sites.cohort()
    sites.table(0, cohort)
    other = cohort.model_copy(update={"records": cohort.records + 1})
    refused(sites, lambda: sites.contribution(0, other), "not that of the attempt's first sum")


def test_the_second_sum_leaves_with_the_noise_that_the_first_has_paid_for(sites, monkeypatch):
    """The split between table and contribution is each time worked out from public numbers, and is the first one's."""
    cohort = sites.cohort()
    sites.table(0, cohort)
    monkeypatch.setattr(attempt_cost, "table_share", lambda *given: 0.02)
    refused(sites, lambda: sites.contribution(0, cohort), "other noise than was paid for")
    monkeypatch.undo()
    sites.contribution(0, cohort)


def test_a_request_that_was_answered_leaves_the_sample_as_it_is(sites, monkeypatch):
    """Of a site of several clients one that was not in the first request pays for a second, and is refused then."""
    state, node = {"key": b"of the first sum"}, SimpleNamespace(task=sites.task, batch="of the first sum")
    asked = SimpleNamespace(round=1, attempt=0)

    def answered(*given) -> None:
        raise AlreadyAnswered

    monkeypatch.setattr(client, "charged", lambda *given: None)
    monkeypatch.setattr(client, "note", answered)
    with pytest.raises(AlreadyAnswered):
        client._first_sum(MASKED_TABLES, node, asked, None, state)
    assert state == {"key": b"of the first sum"} and node.batch == "of the first sum"


def test_fewer_clients_than_the_noise_is_for_are_refused(sites):
    cohort = sites.cohort(sites=range(3))
    refused(sites, lambda: sites.table(0, cohort), "3 clients are in the sum, fewer than the 4")


def changed(sites: Sites, place: int, **changes) -> Cohort:
    """A cohort in which the server says something else of one site."""
    parties = sites.cohort().parties
    parties[place] = parties[place].model_copy(update=changes)
    return Cohort(records=10 * sites.records, parties=parties)


LIES = {
    "a ghost": (3, lambda s: {"key": MaskKey.fresh().public.hex()}, "is not in this client's roster"),
    "a key twice": (3, lambda s: {"key": s.keys[2].public.hex()}, "has a key twice"),
    "a client twice": (3, lambda s: {"clients": [2]}, "has a client twice"),
    "many clients": (3, lambda s: {"clients": [3, 4], "sizes": [[9, 9], [9, 9]]}, "said to have 2 clients, and has 1"),
    "no sizes": (3, lambda s: {"sizes": []}, "no sizes of 2 cells"),
    "own sizes": (0, lambda s: {"sizes": [[1000, 1000]]}, "other numbers of records for this site"),
    "own number": (0, lambda s: {"clients": [7]}, "clients for this site that it has not"),
    "own nonce": (0, lambda s: {"nonce": "00" * 32}, "own key and nonce"),
    "other code": (3, lambda s: {"code": "00" * 32}, "site 3: its fedsw has the code 000000000000, and this client"),
    "no code": (3, lambda s: {"code": ""}, "site 3: its fedsw has the code"),
    "own code": (0, lambda s: {"code": ""}, "site 0: its fedsw has the code"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_cohort_that_is_not_the_federations_is_refused_before_anything_is_charged(sites, lie):
    place, changes, match = LIES[lie]
    cohort = changed(sites, place, **changes(sites))
    refused(sites, lambda: sites.table(0, cohort), match)


def test_sites_of_other_code_are_summed_with_where_an_operator_allows_it_and_none_is_misquoted(sites):
    """What a server says of a site's own code is checked there, so that it can say the same to all others alone."""
    for context in sites.contexts:
        context.node_config["code"] = "any"
    cohort = changed(sites, 3, code="00" * 32)
    sites.table(0, cohort)
    refused(sites, lambda: sites.table(3, cohort), "another code for this site than it has")


def test_a_server_with_the_keys_of_c_sites_gains_nothing_by_ghosts(tmp_path):
    """The roster has three sites; the server has the key of one of them, and makes a fourth."""
    sites = Sites(tmp_path, listed=3)
    refused(sites, lambda: sites.table(0, sites.cohort()), "is not in this client's roster")
    cohort = sites.cohort()
    again = cohort.parties[2].model_copy(update={"site": 3, "clients": [3]})
    twice = Cohort(records=cohort.records, parties=[*cohort.parties[:3], again])
    refused(sites, lambda: sites.table(0, twice), "has a key twice")


def test_fewer_records_than_the_sites_hold_are_refused(sites):
    cohort = sites.cohort().model_copy(update={"records": sites.records - 1})
    refused(sites, lambda: sites.table(0, cohort), "more records than it says")


def test_more_colluding_clients_than_the_noise_is_for_are_refused(tmp_path):
    sites = Sites(tmp_path, colluding=2)
    refused(sites, lambda: sites.cohort(), "local.colluding is 1, and this client's operator takes 2")


def test_a_site_without_a_roster_takes_part_in_nothing(sites):
    del sites.contexts[0].node_config["roster"]
    refused(sites, lambda: sites.ready(0), "started without roster")


def test_a_restored_ledger_is_refused(sites):
    sites.table(0, sites.cohort())
    kept = sites.folder / "kept.sqlite"
    shutil.copy(sites.ledger(0), kept)
    sites.table(0, sites.cohort(2), round_=2)
    shutil.copy(kept, sites.ledger(0))
    refused(sites, lambda: sites.table(0, sites.cohort(3), round_=3), "older|restored|remembers|lacks")


def test_a_sites_state_that_was_put_back_masks_nothing_twice(sites):
    """As before either answer: the ledger has the attempt, and the node's own folder what it answered."""
    cohort, state = sites.cohort(), sites.contexts[0].state["fedsw-site"]
    kept = dict(state)
    sites.table(0, cohort)
    after = dict(state)
    state.clear()
    state.update(kept)
    refused(sites, lambda: sites.table(0, cohort), "is charged in")
    state.clear()
    state.update(after)
    sites.contribution(0, cohort)
    for before, why in ((kept, "holds no batch"), (after, "was answered by this node before")):
        state.clear()
        state.update(before)
        refused(sites, lambda: sites.contribution(0, cohort), why)
    assert sites.charged(0) == [(1, 0)]


def test_the_charge_is_on_disk_before_a_number_is_made(sites, monkeypatch):
    def broken(*arguments):
        raise MemoryError("power cut")

    monkeypatch.setattr("fedsw.federation.trust.distributed.site.release_share", broken)
    with pytest.raises((Refused, MemoryError)):
        sites.table(0, sites.cohort())
    assert sites.charged(0) == [(1, 0)]


def test_every_attempt_has_noise_and_masks_of_its_own(sites, exact):
    for attempt in (0, 1):
        cohort = sites.cohort(attempt=attempt)
        sites.table(0, cohort, attempt=attempt)
    (one, first, _), (other, second, _) = exact
    assert not np.array_equal(first - second, (one - other).numpy().astype(np.int64).view(np.uint64))
    assert sites.charged(0) == [(1, 0), (1, 1)]


def test_nobody_is_a_party_by_a_name_alone():
    with pytest.raises(ValueError, match="string|match"):
        Party(site=0, key="st-mary", nonce="00" * 32, clients=[0], sizes=[[1]])
