"""Laws of the bytes that messages take where Flower stores equal objects once, and where it sends them whole."""

from __future__ import annotations

import pytest

from tests.federation.node.runs import RUNS, Watched, watched_run
from tests.federation.node.transport import Transport
from tests.federations import Federation, small

SPARSE = ("data.records=240", "federation.clients=4", "training.batch_fraction=0.02", "training.rounds=9")
"""Batches of 2 records a group for 4 clients: in some rounds a client has none of them, in others all."""
CENTRAL = {
    "noised": ("privacy.noise_multiplier=2",),
    "losses reported": ("privacy.noise_multiplier=2", "unsafe_metrics=true"),
    "without a penalty": ("privacy.noise_multiplier=2", "objective.alpha=0.0"),
    "seeded": ("privacy.noise_multiplier=2", "seed=3"),
    "without privacy": ("privacy.trust=none",),
}


@pytest.mark.parametrize(("name", "chunk"), [*((name, 5 * 2**20) for name in CENTRAL), ("noised", 16)])
def test_a_message_takes_the_same_bytes_whatever_is_in_the_batch(tmp_path, monkeypatch, name, chunk):
    """Stored by hash, in pieces of any size, or sent whole: one number for every client, kind and direction."""
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", chunk)
    found = Transport()
    Federation(tmp_path).run(small(*SPARSE, *CENTRAL[name]), app=Watched(found))
    asked = [count for counts in found.counts.values() for count in counts]
    assert asked.count(0) > 3 and max(asked) > 1  # clients with and without records in the batch
    kinds = {kind for kind, _, _ in found.stored} - {"query.hello"}
    assert kinds == ({"train.sum"} if name == "without a penalty" else {"train.outputs", "train.gradients"})
    assert len(found.stored) == 4 * 2 * (1 + len(kinds))
    assert {key: set(sizes) for key, sizes in found.stored.items() if len(set(sizes)) > 1} == {}
    assert {key: set(sizes) for key, sizes in found.sent.items() if len(set(sizes)) > 1} == {}
    for kind in kinds:
        assert len({size for client in range(4) for size in found.stored[kind, "up", client]}) == 1, "equal clients"


@pytest.mark.parametrize("name", RUNS)
def test_no_object_that_depends_on_a_client_equals_another(tmp_path, name):
    assert watched_run(name, tmp_path).transport.repeated == set()
