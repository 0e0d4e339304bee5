"""Laws of waiting: a site that stands still for a while ends no run, and one that never comes back ends it in time."""

from __future__ import annotations

import time

import pytest

from fedsw._tools.settings import FederationError
from fedsw.federation import messages
from fedsw.federation.engines.inprocess import InProcessGrid
from tests.federation.local_runs import kind_of
from tests.federations import Saboteur, small

AWAY = 1001
"""Flower's number of the second client's node in these runs."""


class Stall:
    """Client 1 stands still from its first answer of a kind on, for some seconds: the network calls it absent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, seconds: float) -> None:
        self.kind, self.seconds, self.until = kind, seconds, 0.0
        nodes, answer = InProcessGrid.get_node_ids, InProcessGrid._answer

        def online(grid):
            return [node for node in nodes(grid) if node != AWAY or time.monotonic() >= self.until]

        def answered(grid, message):
            if message.metadata.dst_node_id == AWAY and kind_of(message) == self.kind and not self.until:
                self.until = time.monotonic() + self.seconds
            if message.metadata.dst_node_id == AWAY and time.monotonic() < self.until:
                return messages_of_absent(message)
            return answer(grid, message)

        monkeypatch.setattr(InProcessGrid, "get_node_ids", online)
        monkeypatch.setattr(InProcessGrid, "_answer", answered)


def messages_of_absent(message):
    """What Flower's network answers in the name of a node whose lease is over."""
    from flwr.app import Error, Message

    return Message(Error(5, "Node Unavailable"), reply_to=message)


@pytest.mark.parametrize("kind", [messages.OUTPUTS.kind, messages.GRADIENTS.kind])
def test_a_stall_shorter_than_the_timeout_ends_no_run_in_either_exchange(federation, monkeypatch, kind):
    Stall(monkeypatch, kind, 1.5)
    summary = federation.run(small("federation.timeout=20.0"))
    assert summary["status"] == "completed" and summary["released_rounds"] == 4


@pytest.mark.parametrize("kind", [messages.MASKED_TABLES.kind, messages.MASKED_SUM.kind])
def test_nor_does_it_where_masks_need_every_site(federation, monkeypatch, kind):
    Stall(monkeypatch, kind, 1.0)
    summary = federation.run(small("privacy.trust=distributed", "privacy.epsilon=4.0", "local.failing=0.5"))
    assert summary["status"] == "completed" and summary["released_rounds"] == 4


def test_who_never_comes_back_ends_the_run_when_the_timeout_is_over(federation, monkeypatch):
    Stall(monkeypatch, messages.OUTPUTS.kind, 1e9)
    began = time.monotonic()
    with pytest.raises(FederationError, match="2 of 3 clients are left, fewer than the 3"):
        federation.run(small("federation.timeout=2.0"))
    assert 2.0 < time.monotonic() - began < 15


def test_who_answers_with_an_error_is_not_waited_for(federation):
    def hook(message, context):
        if kind_of(message) == messages.OUTPUTS.kind and context.node_config["partition-id"] == 1:
            raise RuntimeError("no")

    began = time.monotonic()
    with pytest.raises(FederationError, match="2 of 3 clients are left"):
        federation.run(small("federation.timeout=30.0"), app=Saboteur(hook))
    assert time.monotonic() - began < 15
