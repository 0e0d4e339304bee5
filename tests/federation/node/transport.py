"""What messages take where Flower stores equal objects once, and where it sends them whole.

Objects are looked at as Flower's HTTP grid and SuperNode make them: a message becomes a tree of objects named by their
hashes, the store says which of them it misses, and those are sent.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from flwr.common.serde import recorddict_to_proto
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore

from tests.federations import counts_of

PUBLIC = ("model", "prepared")
"""What a server says to all clients alike, beside what `_shared` knows."""
RUN = 1


class Transport:
    """A federation's messages on their way through an object store; `stored` has the bytes each took, `sent` the whole.

    Keys are (kind, direction, client); an entry for every message.
    """

    def __init__(self) -> None:
        self.stored: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        self.sent: dict[tuple[str, str, int], list[int]] = defaultdict(list)
        self.repeated: set[str] = set()
        self.counts: dict[int, list[int]] = defaultdict(list)
        self._store, self._seen = InMemoryObjectStore(), set[str]()
        self._asked: dict[str, int] = {}

    def request(self, message: Any, context: Any) -> None:
        client = int(context.node_config["partition-id"])
        self._asked[message.metadata.message_id] = client
        if "counts" in message.content.get("arrays", {}):
            self.counts[client].append(sum(counts_of(message)))
        self._pass(message.metadata.message_type, "down", client, message.content)

    def reply(self, message: Any, reply: Any, context: Any) -> None:
        self._pass(message.metadata.message_type, "up", self._asked[message.metadata.message_id], reply.content)

    def _pass(self, kind: str, way: str, client: int, content: Any) -> None:
        objects = get_all_nested_objects(content)
        for name, record in content.items():
            public = way == "down" and (
                kind in ("query.roll", "query.hello", "query.sizes", "query.ready") or name in PUBLIC or _shared(record)
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
