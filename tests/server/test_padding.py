"""Laws of the sizes of messages under global sampling."""

from __future__ import annotations

import pytest
from scipy.stats import hypergeom

from server.plan import most_drawn


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
