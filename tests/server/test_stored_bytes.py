"""Laws of the bytes that messages take where Flower stores equal objects once, and where it sends them whole.

Objects are looked at as Flower's HTTP grid and SuperNode make them: a message becomes a tree of objects named by their
hashes, the store says which of them it misses, and those are sent.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from flwr.common.serde import recorddict_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

from fedsw.experiment import Experiment, parse_experiment
from tests.clients.test_messages import RUNS
from tests.federations import Federation, Saboteur, counts_of, small

SPARSE = ("data.records=240", "federation.clients=4", "training.batch_fraction=0.02", "training.rounds=9")
"""Batches of 2 records a group for 4 clients: in some rounds a client has none of them, in others all."""
PUBLIC = ("model", "prepared")
"""What a server says to all clients alike, beside what `_shared` knows."""
RUN = 1


class Transport:
    """A federation's messages on their way through an object store; `stored` has the bytes each took, `sent` the whole.

    Keys are (kind, direction, client); an entry for every message.
    """

    def __init__(self, folder, experiment: Experiment) -> None:
        self.stored: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        self.sent: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        self.repeated: set[str] = set()
        self.counts: dict[int, list[int]] = defaultdict(list)
        self._store, self._seen = InMemoryObjectStore(), set[str]()
        self._asked: dict[str, int] = {}
        Federation(folder).run(experiment, app=Saboteur(self._request, self._reply))

    def _request(self, message: Any, context: Any) -> None:
        client = int(context.node_config["partition-id"])
        self._asked[message.metadata.message_id] = client
        if "counts" in message.content.get("arrays", {}):
            self.counts[client].append(sum(counts_of(message)))
        self._pass(message.metadata.message_type, "down", client, message.content)

    def _reply(self, message: Any, reply: Any) -> Any:
        self._pass(message.metadata.message_type, "up", self._asked[message.metadata.message_id], reply.content)
        return reply

    def _pass(self, kind: str, way: str, client: int, content: Any) -> None:
        objects = get_all_nested_objects(content)
        for name, record in content.items():
            public = way == "down" and (
                kind in ("query.hello", "query.sizes", "query.ready") or name in PUBLIC or _shared(record)
            )
            if not public and any(each in self._seen for each in get_all_nested_objects(record)):
                self.repeated.add(f"{kind} {way}: {name}")
        self._seen |= objects.keys()
        missing = self._store.preregister(RUN, get_object_tree(content))
        for each in missing:
            self._store.put(each, objects[each].deflate())
        own = sum(len(objects[each].deflate()) for each in missing)
        shared = {each for name in PUBLIC if name in content for each in get_all_nested_objects(content[name])}
        public = sum(len(objects[each].deflate()) for each in missing if each in shared)
        self.stored[kind, way, client].append(own - public)
        self.sent[kind, way, client].append(len(recorddict_to_proto(content).SerializeToString()))


def _shared(record: Any) -> bool:
    """Of the local trust models: settings that follow from public numbers alone, the broadcast tables, the cohort."""
    return "records" in record or "tables" in record or "cohort" in record


CENTRAL = {
    "noised": ("privacy.noise_multiplier=2",),
    "losses reported": ("privacy.noise_multiplier=2", "unsafe_metrics=true"),
    "without a penalty": ("privacy.noise_multiplier=2", "objective.alpha=0.0"),
    "seeded": ("privacy.noise_multiplier=2", "seed=3"),
    "without privacy": ("privacy.trust=none",),
}


@pytest.mark.parametrize("name", CENTRAL)
@pytest.mark.parametrize("chunk", [16, 5 * 2**20])
def test_a_message_takes_the_same_bytes_whatever_is_in_the_batch(tmp_path, monkeypatch, name, chunk):
    """Stored by hash, in pieces of any size, or sent whole: one number for every client, kind and direction."""
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", chunk)
    found = Transport(tmp_path, small(*SPARSE, *CENTRAL[name]))
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
    raw, overrides = RUNS[name]
    experiment = parse_experiment(raw, ("training.rounds=3", "data.records=240", "federation.clients=3", *overrides))
    assert Transport(tmp_path, experiment).repeated == set()
