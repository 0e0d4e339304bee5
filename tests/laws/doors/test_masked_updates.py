"""Laws of updates under masks: what leaves a client is uniform, charged once, and adds up to one noised sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg

import fedsw
from fedsw.federation.node.roster import KEY_FILE, Roster, RosterSite, read_mask_key, write_mask_key
from fedsw.federation.trust.distributed import updates
from fedsw.flower import SHARE, MaskedUpdates, private_updates, simulate

NORM, CLIENTS, COLLUDING = 0.5, 4, 1


def planned(**other) -> fedsw.SumPlan:
    about = {"norm": NORM, "rounds": 3, "delta": 1e-5, "vectors": CLIENTS, "colluding": COLLUDING}
    noise = {} if "noise_multiplier" in other else {"epsilon": 4.0}
    return fedsw.plan_sum(**{**about, **noise, "who": "each client's update", **other})


def client_app(plan, step: Callable[[int], Any]) -> ClientApp:
    """Clients of one plan, or each of the one that it is given by its number."""

    def mod(message: Message, context: Context, call) -> Message:
        own = plan(context.node_config["partition-id"]) if callable(plan) else plan
        return private_updates(own)(message, context, call)

    app = ClientApp(mods=[mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w = message.content["arrays"]["w"].numpy()
        moved = ArrayRecord({"w": Array(w + step(int(context.node_config["partition-id"])))})
        metrics = MetricRecord({"num-examples": 41, "loss": 0.25})
        context.state = RecordDict()  # an app may do so
        return Message(RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    return app


def strategic(plan, step, folder, *, size=6, rounds=1, strategy=FedAvg, nodes=CLIENTS, node_config=None, **apps):
    """What a strategy ends at, from zeros, with every client moving by its step."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        wrapped = MaskedUpdates(strategy(fraction_evaluate=0.0), plan)
        result = wrapped.start(grid, ArrayRecord({"w": Array(np.zeros(size))}), num_rounds=rounds)
        context.state["arrays"] = result.arrays
        for round_, metrics in result.train_metrics_clientapp.items():
            context.state[f"metrics {round_}"] = metrics

    config = {"state-dir": str(folder)} if node_config is None else node_config
    return simulate(app, client_app(plan, step), nodes=nodes, node_config=config)


def asked(plan, folder, talk: Callable[[Callable[..., list[Message]]], None], *, node_config=None, nodes=CLIENTS):
    """Talk to nodes by hand: `talk` gets a function that sends content to nodes, by number."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        ids = sorted(grid.get_node_ids())

        def send(content: RecordDict | Mapping[int, RecordDict], to=range(nodes)) -> list[Message]:
            own = content if not isinstance(content, RecordDict) else dict.fromkeys(to, content)
            return list(grid.send_and_receive([Message(own[part], ids[part], "train") for part in to]))

        talk(send)

    config = {"state-dir": str(folder)} if node_config is None else node_config
    simulate(app, client_app(plan, lambda part: 0.0), nodes=nodes, node_config=config)


def training(parties, size=6, value=0.0) -> RecordDict:
    content = RecordDict({"arrays": ArrayRecord({"w": Array(np.full(size, value))})})
    content[updates.COHORT] = updates.cohort_of(parties)
    return content


def parties_of(replies: list[Message]):
    return [updates.party_in(reply.content) for reply in replies]


def shares(replies: list[Message]) -> np.ndarray:
    return np.stack([reply.content["arrays"][SHARE].numpy() for reply in replies])


def charged(folder, part: int) -> int:
    path = folder / f"updates-{part}.sqlite"
    if not path.exists():
        return 0
    with fedsw.Ledger.open(path, read_only=True) as ledger:
        return len(ledger.entries())


def test_a_strategy_gets_the_mean_of_all_clipped_updates_and_nothing_else_of_a_reply(tmp_path):
    plan = planned(noise_multiplier=1e-5)
    ended = strategic(plan, lambda part: 0.01 * (part + 1), tmp_path / "a")
    np.testing.assert_allclose(ended.state["arrays"]["w"].numpy(), 0.025, atol=1e-3)
    assert dict(ended.state["metrics 1"]) == {}
    ended = strategic(plan, lambda part: 1e6 * (-1) ** (part > 0), tmp_path / "b")
    assert np.linalg.norm(ended.state["arrays"]["w"].numpy()) == pytest.approx(NORM / 2, rel=1e-2)
    ended = strategic(plan, lambda part: 0.01, tmp_path / "c", strategy=FedAdam, rounds=2)
    assert (ended.state["arrays"]["w"].numpy() > 0.05).all()


def test_the_noise_of_a_sum_is_whole_without_that_of_the_colluding_clients(tmp_path):
    plan = planned()
    ended = strategic(plan, lambda part: 0.0, tmp_path, size=4000)
    spread = CLIENTS * ended.state["arrays"]["w"].numpy().std()
    assert spread == pytest.approx(plan.sigma * math.sqrt(CLIENTS / (CLIENTS - COLLUDING)), rel=0.05)


def test_a_server_with_the_share_of_a_colluding_client_still_sees_the_whole_noise(tmp_path, monkeypatch):
    """It takes away what client 0 added, noise and all: what is left is that of H clients, and no less."""
    plan, release_share, known = planned(), updates.release_share, []

    def told(bounded, paid, name, share, mask, stream):
        numbers = release_share(bounded, paid, name, share, mask, stream)
        known.append((numbers - mask).view(np.int64) * share.step)
        return numbers

    monkeypatch.setattr(updates, "release_share", told)
    ended = strategic(plan, lambda part: 0.0, tmp_path, size=4000)
    left = CLIENTS * ended.state["arrays"]["w"].numpy() - known[0]
    assert left.std() == pytest.approx(plan.sigma, rel=0.05)
    assert 2 * NORM / left.std() <= 1.05 / plan.multiplier


def test_replacing_all_that_a_client_has_moves_the_sum_by_twice_the_norm_at_most(tmp_path):
    """The same seed: noise and all other clients are the same."""
    plan = planned(seed=1)

    def total(step: float) -> np.ndarray:
        ended = strategic(plan, lambda part: step if part == 2 else 0.1, tmp_path / str(step))
        return CLIENTS * ended.state["arrays"]["w"].numpy()

    ends = [total(step) for step in (1e6, -1e6, math.nan)]
    assert 1.99 * NORM < np.linalg.norm(ends[0] - ends[1]) <= 2 * NORM * 1.001
    assert np.linalg.norm(ends[0] - ends[2]) <= NORM * 1.001
    assert plan.sigma >= plan.multiplier * 2 * NORM


def test_every_share_is_uniform_and_so_is_any_sum_without_one_client(tmp_path):
    def talk(send) -> None:
        parties = parties_of(send(updates.question()))
        parts = shares(send(training(parties, size=20_000)))
        for seen in (*parts, parts[:3].sum(axis=0), parts[1:].sum(axis=0)):
            high = np.bincount((seen >> np.uint64(60)).astype(int), minlength=16) / 20_000
            assert np.abs(high - 1 / 16).max() < 0.01
        assert np.abs(parts.sum(axis=0).view(np.int64)).max() < 2**62

    asked(planned(), tmp_path, talk)


def test_nodes_that_are_asked_other_things_have_masks_that_do_not_cancel(tmp_path):
    def talk(send) -> None:
        parties = parties_of(send(updates.question()))
        other = {part: training(parties, size=5_000, value=float(part == 0)) for part in range(CLIENTS)}
        total = shares(send(other)).sum(axis=0).view(np.int64)
        assert np.abs(total).astype(float).mean() > 2**61

    asked(planned(), tmp_path, talk)


def test_clients_of_unlike_plans_have_masks_that_do_not_cancel(tmp_path):
    """Else noise of plans with less of it, or with a seed that others know, would be part of the sum's."""
    other = planned(epsilon=3.9)
    assert updates._share(other, CLIENTS).step == updates._share(planned(), CLIENTS).step

    def talk(send) -> None:
        parties = parties_of(send(updates.question()))
        total = shares(send(training(parties, size=5_000))).sum(axis=0).view(np.int64)
        assert np.abs(total).astype(float).mean() > 2**61

    asked(lambda part: other if part == 0 else planned(), tmp_path, talk)


def test_a_ledger_that_was_taken_away_while_a_run_goes_on_is_missed(tmp_path):
    def talk(send) -> None:
        content = training(parties_of(send(updates.question())))
        assert not any(reply.has_error() for reply in send(content))
        for file in tmp_path.glob("updates-*"):
            file.unlink()
        assert all("LedgerReplaced" in reply.error.reason for reply in send(updates.question()))

    asked(planned(), tmp_path, talk)


def test_the_charge_is_on_disk_before_a_share_is_made(tmp_path, monkeypatch):
    made = []

    def seen(*arguments):
        made.append([charged(tmp_path, part) for part in range(CLIENTS)])
        raise OSError("no share")

    monkeypatch.setattr(updates, "release_share", seen)
    strategic(planned(), lambda part: 0.1, tmp_path)
    assert made == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_an_attempt_is_answered_once_also_where_the_state_of_the_node_was_put_back(tmp_path, monkeypatch):
    plan = planned()

    def talk(send) -> None:
        content = training(parties_of(send(updates.question())))
        assert not any(reply.has_error() for reply in send(content))
        assert all("gave no nonce" in reply.error.reason for reply in send(content))

    asked(plan, tmp_path / "a", talk)
    kept: dict[int, Any] = {}
    given = updates.asked

    def put_back(plan, content, context):
        part = context.node_config["partition-id"]
        context.state["fedsw-nonce"] = kept.setdefault(part, context.state.get("fedsw-nonce"))
        return given(plan, content, context)

    monkeypatch.setattr(updates, "asked", put_back)

    def again(send) -> None:
        content = training(parties_of(send(updates.question())))
        send(content)
        assert all("AlreadySpent" in reply.error.reason for reply in send(content))

    asked(plan, tmp_path / "b", again)


def test_a_nonce_is_used_up_by_the_first_cohort_that_has_it_whatever_that_is(tmp_path):
    def talk(send) -> None:
        parties = parties_of(send(updates.question()))
        assert all("fewer than the 4" in reply.error.reason for reply in send(training(parties[:3]), range(3)))
        replies = send(training(parties), range(3))
        assert all(reply.has_error() and "gave no nonce" in reply.error.reason for reply in replies)

    asked(planned(), tmp_path, talk)
    assert not any(charged(tmp_path, part) for part in range(CLIENTS))


def test_a_training_message_without_a_cohort_gets_no_update(tmp_path):
    def talk(send) -> None:
        content = RecordDict({"arrays": ArrayRecord({"w": Array(np.zeros(6))}), "config": ConfigRecord({})})
        assert all("fedsw.flower.MaskedUpdates" in reply.error.reason for reply in send(content))

    asked(planned(), tmp_path, talk)
    assert not any(charged(tmp_path, part) for part in range(CLIENTS))


def real(folder, *, listed=CLIENTS, colluding=COLLUDING) -> Callable[[int], dict[str, Any]]:
    """Configurations of nodes with keys of their own, and a roster of the first ones."""
    roster = Roster()
    for site in range(CLIENTS):
        key = read_mask_key(write_mask_key(folder / f"site{site}"))
        if site < listed:
            roster = roster.with_member(RosterSite(name=f"site {site}", key=key.public.hex()))
    (folder / "roster.toml").write_text(roster.text())
    paths = {"roster": str(folder / "roster.toml"), "colluding": colluding, "state-dir": str(folder)}
    return lambda site: {**paths, "mask-key": str(folder / f"site{site}" / KEY_FILE)}


def test_nodes_with_rosters_of_their_own_make_the_same_sum(tmp_path):
    plan = planned(noise_multiplier=1e-5)
    ended = strategic(plan, lambda part: 0.01 * (part + 1), tmp_path, node_config=real(tmp_path))
    np.testing.assert_allclose(ended.state["arrays"]["w"].numpy(), 0.025, atol=1e-3)


@pytest.mark.parametrize(
    ("about", "members", "why"),
    [
        ({"listed": 3}, slice(None), "is not in this client's roster"),
        ({}, slice(0, 3), "fewer than the 4 that its noise is for"),
        ({}, [0, 1, 2, 3, 3], "has a key twice"),
    ],
)
def test_a_cohort_that_the_noise_is_not_for_is_refused_before_anything_is_charged(about, members, why, tmp_path):
    def talk(send) -> None:
        parties = parties_of(send(updates.question()))
        chosen = parties[members] if isinstance(members, slice) else [parties[i] for i in members]
        assert all(why in reply.error.reason for reply in send(training(chosen), range(3)))

    asked(planned(), tmp_path, talk, node_config=real(tmp_path, **about))
    assert not any(charged(tmp_path, part) for part in range(CLIENTS))


def test_a_node_of_several_clients_which_would_have_the_noise_of_one_is_refused(tmp_path):
    def talk(send) -> None:
        mine, other = parties_of(send(updates.question()))[:2]
        several = other.model_copy(update={"clients": [7, 8, 9], "sizes": [[1]] * 3})
        (reply,) = send(training([mine, several]), [0])
        assert "has 3 clients; a node's update is one's" in reply.error.reason

    asked(planned(), tmp_path, talk)
    assert not charged(tmp_path, 0)


def test_noise_that_is_short_of_what_an_operator_takes_into_account_is_refused(tmp_path, caplog):
    strategic(planned(), lambda part: 0.1, tmp_path, node_config=real(tmp_path, colluding=2))
    assert "this client's operator takes 2 colluding clients" in caplog.text
    assert not any(charged(tmp_path, part) for part in range(CLIENTS))


def test_a_round_without_one_share_changes_nothing_and_is_charged_where_shares_left(tmp_path, caplog):
    def step(part: int) -> float:
        if part == 1:
            raise ValueError("patient Smith")
        return 0.1

    ended = strategic(planned(), step, tmp_path)
    assert "arrays" not in ended.state or not len(ended.state["arrays"])
    assert "without the shares of all 4 clients there is no sum" in caplog.text
    assert [charged(tmp_path, part) for part in range(CLIENTS)] == [1, 0, 1, 1]


def test_a_client_whose_rounds_are_spent_is_not_ready_and_costs_the_others_nothing(tmp_path, caplog):
    strategic(planned(), lambda part: 0.1, tmp_path, rounds=5)
    assert [charged(tmp_path, part) for part in range(CLIENTS)] == [3] * CLIENTS
    assert "all 3 rounds are charged" in caplog.text and "0 clients are ready" in caplog.text
    with fedsw.Ledger.open(tmp_path / "updates-0.sqlite", read_only=True) as ledger:
        assert ledger.epsilon() == pytest.approx(4.0, rel=1e-3)


def test_a_plan_says_whom_masks_protect_against_and_needs_noise_and_an_honest_client():
    said = planned().guarantee
    assert "each client's update as a whole, for its replacement" in said and "any 1 of the clients" in said
    assert "computational" in said and "at least 4" in said and "the noise of 3 of them" in said
    with pytest.raises(ValueError, match="one client is honest at least"):
        planned(colluding=CLIENTS)
    with pytest.raises(ValueError, match="adds no noise"):
        planned(epsilon=math.inf)
    with pytest.raises(ValueError, match="without masks"):
        MaskedUpdates(FedAvg(), planned(colluding=None))


def test_a_strategy_that_sends_different_content_is_refused_before_anything_is_charged(tmp_path):
    class Uneven(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            messages = list(super().configure_train(server_round, arrays, config, grid))
            mine = RecordDict({"arrays": arrays, "config": ConfigRecord({"own": 1})})
            return [Message(mine, messages[0].metadata.dst_node_id, "train"), *messages[1:]]

    with pytest.raises(ValueError, match="different content to two nodes"):
        strategic(planned(), lambda part: 0.1, tmp_path, strategy=Uneven)
