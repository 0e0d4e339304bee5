"""Runs in which nobody is trusted: what is charged where, what a lost site costs, and that masks change no bit."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch

import fedsw
from fedsw._tools.settings import ExperimentError, FederationError
from fedsw.audit.record import audit
from fedsw.experiment.trust import trust_model
from fedsw.federation import messages
from fedsw.federation.engines import driver
from fedsw.federation.node.roster import Keyring
from fedsw.federation.trust.distributed import site
from fedsw.privacy.accounting import Ledger
from fedsw.privacy.masks import MaskKey
from tests.federation.distributed.sites import experiment_of
from tests.federation.local_runs import attempts_in, kind_of, parameters_of
from tests.federations import Saboteur, numbers, small

TRUST = ("privacy.trust=distributed", "privacy.epsilon=2.0")


def test_every_ledger_has_every_attempt_and_replays_to_what_the_run_says(federation):
    summary = federation.run(small(*TRUST))
    directory = federation.folder / "run1"
    assert summary["status"] == "completed" and summary["released_rounds"] == 4
    assert not (directory / "ledger.sqlite").exists()
    for client in range(3):
        assert attempts_in(directory, client) == [(1, 0), (2, 0), (3, 0), (4, 0)]
        with Ledger.open(directory / "clients" / f"client-{client}.sqlite") as ledger:
            assert ledger.replay() == pytest.approx(summary["epsilon_spent"], rel=1e-9)
    assert 1.99 < summary["epsilon_spent"] <= summary["epsilon"] == 2.0


@pytest.mark.parametrize("overrides", [(), ("local.bins=auto",), ("objective.alpha=0.0",), ("federation.sites=1",)])
def test_masks_change_no_bit_of_a_run(federation, monkeypatch, overrides):
    experiment = small(*TRUST, "seed=3", "training.rounds=2", *overrides)
    federation.run(experiment)
    monkeypatch.setattr(MaskKey, "mask", lambda self, others, asked, length: np.zeros(length, dtype=np.uint64))
    federation.run(experiment)
    assert torch.equal(parameters_of(federation.folder / "run1"), parameters_of(federation.folder / "run2"))


@pytest.mark.parametrize("overrides", [(), ("objective.alpha=0.0",)])
def test_everything_that_leaves_a_site_is_uniform(federation, overrides):
    replies = []

    def keep(message, reply):
        replies.append((kind_of(message), reply.content))
        return reply

    federation.run(small(*TRUST, "slicing.directions=5", *overrides), app=Saboteur(after=keep))
    kinds = [kind for kind, _ in replies]
    sums = 1 if overrides else 2
    assert len(kinds) == 3 + 3 * 4 * (1 + sums)
    assert set(kinds) <= {
        messages.HELLO.kind,
        messages.READY.kind,
        messages.MASKED_TABLES.kind,
        messages.MASKED_SUM.kind,
    }
    sent = [content for kind, content in replies if kind in (messages.MASKED_TABLES.kind, messages.MASKED_SUM.kind)]
    for content in sent:
        assert set(content) == {"arrays"} and set(content["arrays"]) == {"masked", "epsilon"}
    words = np.concatenate([numbers(content["arrays"]["masked"]) for content in sent])
    assert len(words) > 150 and (np.abs(words.astype(float)) < 2.0**52).mean() < 0.05


def test_with_little_noise_and_many_bins_a_round_is_the_trusted_servers(federation):
    same = ("training.rounds=1", "training.batch_fraction=1.0", "data.correlation=0.6", "objective.alpha=0.5")
    little = ("privacy.trust=distributed", "privacy.epsilon=inf", "privacy.noise_multiplier=0.002", "local.bins=4096")
    federation.run(small("privacy.trust=none", *same))
    federation.run(small(*little, *same))
    federation.run(small("privacy.trust=none", *same, "training.learning_rate=1e-9"))
    trusted, masked, start = (parameters_of(federation.folder / f"run{run}") for run in (1, 2, 3))
    assert float((masked - trusted).norm()) < 0.03 * float((trusted - start).norm())


class Loses:
    """Loses client 1 in an exchange of every round's first attempt."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, message, context):
        asked = kind_of(message) == self.kind and context.node_config["partition-id"] == 1
        if asked and message.content["config"]["attempt"] == 0:
            raise RuntimeError("power cut")


ENOUGH = (*TRUST, "federation.min_clients=2", "training.rounds=3")


@pytest.mark.parametrize("kind", [messages.MASKED_TABLES.kind, messages.MASKED_SUM.kind])
def test_an_attempt_that_fails_is_charged_by_all_that_answered_and_the_budget_is_for_it(federation, kind):
    summary = federation.run(small(*ENOUGH, "local.failing=1.0"), app=Saboteur(Loses(kind)))
    assert summary["status"] == "completed" and summary["released_rounds"] == 3
    directory = federation.folder / "run1"
    for client in (0, 2):
        assert attempts_in(directory, client) == [(1, 0), (1, 1), (2, 0), (3, 0)], "the site sits out rounds 2 and 3"
    said = summary["epsilon_spent_by_client"]
    assert said["0"] == said["2"] == summary["epsilon_spent"] < 1.9
    if kind == messages.MASKED_SUM.kind:  # it had answered the first sum, and is not in the attempt that came to an end
        assert attempts_in(directory, 1) == [(1, 0)]
    for client in (0, 2) if kind == messages.MASKED_TABLES.kind else (0, 1, 2):
        with Ledger.open(directory / "clients" / f"client-{client}.sqlite") as ledger:
            assert ledger.replay() == pytest.approx(said[str(client)], rel=1e-9)


def test_a_site_that_is_not_there_costs_nothing(federation):
    summary = federation.run(small(*ENOUGH), app=Saboteur(Loses(messages.READY.kind)))
    assert summary["status"] == "completed" and 1.99 < summary["epsilon_spent"] <= 2.0
    assert attempts_in(federation.folder / "run1", 0) == [(1, 1), (2, 1), (3, 1)]


def test_more_failures_than_the_budget_is_for_end_the_run_within_it(federation):
    summary = federation.run(small(*ENOUGH, "training.rounds=4"), app=Saboteur(Loses(messages.MASKED_SUM.kind)))
    assert "local.failing" in summary["status"] and summary["released_rounds"] == 3
    assert summary["epsilon_spent"] <= 2.0


@pytest.mark.parametrize("kind", [messages.MASKED_TABLES.kind, messages.MASKED_SUM.kind])
def test_a_site_that_costs_others_sits_out_longer_each_time(federation, caplog, kind):
    """One that failed in every round, and came back in between, doubled what everybody was charged."""
    chosen = small(*ENOUGH, "training.rounds=16", "local.failing=1.0", "evaluate_every=16", "slicing.directions=4")
    with caplog.at_level(logging.WARNING, "fedsw.server"):
        summary = federation.run(chosen, app=Saboteur(Loses(kind)))
    assert summary["status"] == "completed"
    attempts = attempts_in(federation.folder / "run1", 0)
    assert [round_ for round_, attempt in attempts if attempt] == [1, 4, 9], "it sat out 2, 4 and 8 rounds"
    assert "Client 1 sits out to round 3: an attempt that others were charged for failed on its account" in caplog.text
    assert "Client 1 sits out to round 17: 3 attempts that others were charged for" in caplog.text


def test_a_site_sits_out_for_good_when_it_took_its_share_of_what_the_plan_lets_fail(federation, caplog):
    chosen = small(*ENOUGH, "training.rounds=9", "local.failing=0.3", "evaluate_every=9", "slicing.directions=4")
    with caplog.at_level(logging.WARNING, "fedsw.server"):
        summary = federation.run(chosen, app=Saboteur(Loses(messages.MASKED_TABLES.kind)))
    attempts = attempts_in(federation.folder / "run1", 0)
    assert summary["status"] == "completed" and [name for name in attempts if name[1]] == [(1, 1), (4, 1)]
    assert "Client 1 sits out for good: 2 attempts" in caplog.text, "3 of 12 may fail, one of them on its account"


def test_a_run_that_would_end_without_it_asks_a_site_that_sits_out(federation):
    """Two sites of three fail once each: with both away no sum could be made."""
    lost: set[int] = set()

    def fails_once(message, context):
        client, round_ = context.node_config["partition-id"], message.content["config"].get("round")
        if kind_of(message) == messages.MASKED_SUM.kind and client == round_ and client not in lost:
            lost.add(client)
            raise RuntimeError("power cut")

    summary = federation.run(small(*ENOUGH, "local.failing=1.0"), app=Saboteur(fails_once))
    assert summary["status"] == "completed" and lost == {1, 2}
    assert attempts_in(federation.folder / "run1", 0) == [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]


@pytest.mark.parametrize(("sites", "words"), [("1", "one site, and so no masks"), ("3", "masked sums between sites")])
def test_whether_there_are_masks_at_all_is_said(sites, words):
    """One process that simulates all clients as one site has nobody to hide from; any more sites have masks."""
    assert words in trust_model("distributed").against(small(*TRUST, f"federation.sites={sites}"))


@pytest.mark.parametrize(
    ("masks", "words", "added"),
    [("simulated", "one site, and so no masks", False), ("real", "masked sums between sites", True)],
)
def test_masks_in_one_process_are_left_out_or_real_as_asked_and_said(federation, monkeypatch, masks, words, added):
    """`federation.masks`; the guarantee repeats which."""
    others, mask = [], MaskKey.mask

    def counted(self, keys, asked, length):
        others.append(len(keys := list(keys)))
        return mask(self, keys, asked, length)

    monkeypatch.setattr(MaskKey, "mask", counted)
    result = fedsw.run(small(*TRUST, f"federation.masks={masks}"), runs=federation.folder)
    assert words in result.summary["guarantee"]["against"] and others
    assert {each > 0 for each in others} == {added}


@pytest.mark.parametrize(
    ("trust", "settings", "words"),
    [
        (TRUST, ["federation.masks=simulated", "federation.sites=2"], "2 sites always have masks"),
        (TRUST, ["federation.masks=real", "federation.sites=1"], "nobody to hide its sum from"),
        ((), ["federation.masks=real"], "has no masked sums"),
    ],
)
def test_masks_that_cannot_be_are_refused_at_load(trust, settings, words):
    with pytest.raises(ExperimentError, match=words):
        small(*trust, *settings)


@pytest.mark.parametrize("engine", ["deployed", "ray"])
def test_masks_are_left_out_in_one_process_alone(engine):
    with pytest.raises(ExperimentError, match="several processes, which always have masks"):
        driver._with_sites(small(*TRUST, "federation.masks=simulated"), engine)


def test_who_is_protected_from_whom_is_said(federation):
    guarantee = federation.run(experiment_of())["guarantee"]
    assert "1 of the clients" in guarantee["against"] and "X25519" in guarantee["against"]
    assert "noise of all honest clients together" in guarantee["protects"]


@pytest.mark.parametrize(
    ("override", "match"),
    [
        ("local.colluding=4", "nobody would be honest"),
        ("privacy.epsilon=inf", "would show exact sums"),
        ("local.table_share=0.5", "table_share is 0.5"),
        ("federation.drop_out=0.1", "drop_out"),
    ],
)
def test_what_it_cannot_do_is_refused_when_the_experiment_is_read(override, match):
    with pytest.raises(ValueError, match=match):
        experiment_of(override)


@pytest.mark.parametrize("overrides", [(), ("local.failing=1.0", "federation.min_clients=2")])
def test_the_audit_recomputes_a_run_from_what_is_written(federation, overrides):
    experiment = small(*TRUST, *overrides)
    app = Saboteur(Loses(messages.MASKED_SUM.kind)) if "local.failing=1.0" in overrides else None
    federation.run(experiment, app=app)
    folder = federation.folder / "run1"
    assert audit(folder).passed
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    less = [json.dumps({**(line := json.loads(text)), "sigma": line["sigma"] / 2}) for text in lines]
    (folder / "metrics.jsonl").write_text("\n".join(less) + "\n")
    assert not audit(folder).passed


def test_a_run_goes_on_where_it_was_stopped(federation):
    """It stops for want of a site, and is resumed with all of them: every attempt has a number of its own."""
    experiment, folder = small(*TRUST, "local.failing=1.0"), federation.folder / "run"
    with pytest.raises(FederationError, match="2 of 3 clients"):
        federation.run(experiment, app=Saboteur(Loses(messages.MASKED_SUM.kind)), directory=folder)
    summary = federation.run(experiment, directory=folder, resume=True)
    assert summary["status"] == "completed" and summary["epsilon_spent"] <= 2.0
    assert attempts_in(folder, 0) == [(1, 0), (1, 1), (2, 0), (3, 0), (4, 0)]


def rosters(monkeypatch, *, without: dict[int, int], keys: dict[int, MaskKey]) -> None:
    """Give clients keys of their own, and let a client's roster be without another client."""
    genuine = site.keyring_of

    class Lacks:
        def __init__(self, roster, absent: int | None) -> None:
            self.roster, self.absent = roster, absent

        def refusal(self, other: int, key: str, clients: int) -> str | None:
            if other == self.absent:
                return f"the key {key[:16]} is not in this client's roster"
            own = keys.get(other)
            return None if own is not None and own.public.hex() == key else self.roster.refusal(other, key, clients)

    def given(config, run, client):
        ring = genuine(config, run, client)
        return Keyring(Lacks(ring.roster, without.get(client)), keys.get(client, ring.key), ring.colluding)

    monkeypatch.setattr(site, "keyring_of", given)


def test_a_site_that_no_roster_has_is_named_and_the_others_go_on(federation, monkeypatch, caplog):
    """It ended the run for all of them, and nobody said which site it was."""
    rosters(monkeypatch, without={0: 2, 1: 2}, keys={2: MaskKey.fresh()})
    with caplog.at_level(logging.WARNING, "fedsw.server"):
        summary = federation.run(small(*ENOUGH))
    assert summary["status"] == "completed" and summary["released_rounds"] == 3
    assert "Client 2 sits out for good: the rosters of client 0, client 1 have not its key for masks" in caplog.text
    assert attempts_in(federation.folder / "run1", 0) == [(1, 1), (2, 0), (3, 0)], "refusals cost nothing"


def test_a_site_that_alone_does_not_know_another_is_the_one_that_sits_out(federation, monkeypatch, caplog):
    """Else one site could turn out all others, an attempt of everybody's for each."""
    rosters(monkeypatch, without={0: 2}, keys={})
    with caplog.at_level(logging.WARNING, "fedsw.server"):
        summary = federation.run(small(*ENOUGH, "local.failing=0.5"))
    assert summary["status"] == "completed" and summary["released_rounds"] == 3
    assert "Client 0 sits out for good: its roster has not the site of client 2, which others' have" in caplog.text


def test_with_too_few_left_the_run_ends_and_says_whose_key_it_is(federation, monkeypatch):
    rosters(monkeypatch, without={0: 2, 1: 2}, keys={2: MaskKey.fresh()})
    with pytest.raises(
        FederationError, match="Client 2: sits out for good: the rosters of client 0, client 1 have not"
    ):
        federation.run(small(*TRUST, "training.rounds=2"))
