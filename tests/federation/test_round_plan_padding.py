"""Laws of the sizes of messages under global sampling."""

from __future__ import annotations

import pytest
from scipy.stats import hypergeom

from fedsw.federation import messages
from fedsw.federation.trust.round_plan import most_drawn
from tests.federations import Saboteur, counts_of, small


@pytest.mark.parametrize(
    ("batch", "held", "size"),
    [(3000, 3000, 30_000), (300, 10, 3000), (1, 1, 10), (500, 900, 1000), (100, 0, 1000), (50, 1000, 1000)],
)
def test_a_count_exceeds_what_messages_have_room_for_next_to_never(batch, held, size):
    room = most_drawn(batch, held, size)
    assert room <= min(batch, held)
    everywhere = 1000 * 10 * 10**4 * float(hypergeom.sf(room, size, held, batch))  # clients, cells, rounds
    assert everywhere <= 1e-19, "covered by the 1e-12 of delta that is set aside for floating point"


def test_room_costs_little_where_counts_hardly_vary():
    assert most_drawn(3000, 3000, 30_000) < 1.7 * 300


def test_messages_have_one_size_whatever_their_secret_counts(federation):
    """Rows of either array that goes to or comes from a client, over rounds in which its counts differ."""
    rows: dict[int, set[int]] = {}
    counts: dict[int, set[tuple[int, ...]]] = {}

    def look(message, context):
        client, kind = context.node_config["partition-id"], message.metadata.message_type
        if kind == messages.OUTPUTS.kind:
            counts.setdefault(client, set()).add(tuple(counts_of(message)))
            rows.setdefault(client, set()).add(int(message.content["config"]["rows"]))
        if kind == messages.GRADIENTS.kind:
            rows[client].add(message.content["arrays"]["cotangents"].shape[0])

    def count(message, reply):
        if message.metadata.message_type == messages.OUTPUTS.kind:
            found = reply.content["arrays"]["outputs"].shape[0]
            assert found == int(message.content["config"]["rows"])
        return reply

    federation.run(small("training.rounds=6", "federation.clients=3"), app=Saboteur(look, count))
    assert all(len(sizes) == 1 for sizes in rows.values()), "a message's size follows a count"
    assert all(len(drawn) > 1 for drawn in counts.values())
    assert all(min(rows[client]) > max(map(sum, drawn)) for client, drawn in counts.items())
