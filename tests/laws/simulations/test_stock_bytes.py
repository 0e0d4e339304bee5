"""The law of equal bytes where Flower's own SuperLink stores and sends the messages of real clients (`--stock`).

Bytes of the numbers that Flower gives its nodes, which are public and of several lengths, are left out.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsw.federation import messages
from fedsw.federation.engines.deployed import local_federation
from fedsw.federation.engines.driver import prepare_served, run, run_served
from fedsw.runs.observer import NoObserver
from tests.federation.local_runs import parameters_of
from tests.federations import small

pytestmark = pytest.mark.slow
LOOKING = """
import json, os, sys

if any(word.endswith("superlink.py") for word in getattr(sys, "orig_argv", ())):
    from flwr.proto.message_pb2 import Message
    from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_type_from_object_content
    from flwr.supercore.object_store import in_memory_object_store, sql_object_store
    import flwr.app

    def say(**line):
        with open(os.environ["FEDSW_TEST_STORED"], "a") as file:
            file.write(json.dumps(line) + "\\n")

    def ids(tree):
        return [tree.object_id, *(each for child in tree.children for each in ids(child))]

    def watch(store):
        preregister, put = store.preregister, store.put

        def announced(self, run_id, object_tree):
            missing = preregister(self, run_id, object_tree)
            say(message=object_tree.object_id, missing=list(missing), all=ids(object_tree))
            return missing

        def stored(self, object_id, object_content):
            kind, names = "", 0
            if get_object_type_from_object_content(object_content) == "Message":
                found = Message.FromString(get_object_body(object_content, flwr.app.Message)).metadata
                kind = found.message_type + (" up" if found.reply_to_message_id else " down")
                names = sum(-(-number.bit_length() // 7) for number in (found.src_node_id, found.dst_node_id))
            say(object=object_id, bytes=len(object_content) - names, kind=kind)
            return put(self, object_id, object_content)

        store.preregister, store.put = announced, stored

    watch(in_memory_object_store.InMemoryObjectStore)
    watch(sql_object_store.SqlObjectStore)
"""


def test_flower_s_store_takes_as_many_bytes_of_a_client_without_records_in_the_batch(tmp_path: Path, monkeypatch):
    """Two records, one a group, of one of two clients: this seed draws them so.

    The run ends with the model and the epsilon of a simulation: Flower starts a process of its own for every message.
    """
    (tmp_path / "sitecustomize.py").write_text(LOOKING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("FEDSW_TEST_STORED", str(tmp_path / "stored.jsonl"))
    experiment = small(
        *("data.records=60", "training.batch_fraction=0.02", "training.rounds=1"),
        *("federation.clients=2", "federation.timeout=600.0", "seed=6"),
    )
    encode, asked = messages.encode, list[int]()

    def seen(message: Any, terms: Any) -> Any:
        asked.extend(getattr(message, "counts", np.empty((0, 2))).sum(1).tolist())
        return encode(message, terms)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "encode", seen)
        directory, ours = prepare_served(experiment, tmp_path / "runs"), run(experiment, runs=tmp_path / "ours")
    assert sorted(asked) == [0, 2], "records that the server asks of each client"
    with local_federation(directory / "deployment", directory / "nodes", experiment, stock=True) as link:
        result = run_served(link, directory, NoObserver(), resume=False)
    assert torch.equal(parameters_of(result.directory), parameters_of(ours.directory))
    assert result.summary["epsilon_spent"] == ours.summary["epsilon_spent"]
    assert len(json.loads((result.directory / "plan.json").read_text())["groups"]) == 2

    lines = [json.loads(line) for line in (tmp_path / "stored.jsonl").read_text().splitlines()]
    sizes = {line["object"]: line["bytes"] for line in lines if "object" in line}
    kinds = {line["object"]: line["kind"] for line in lines if line.get("kind")}
    taken, found = defaultdict(list), list[str]()
    for line in lines:
        if "message" in line:
            if kinds[line["message"]] in ("train.outputs up", "train.gradients up"):
                found += line["all"]
            taken[kinds[line["message"]]].append(sum(sizes[each] for each in line["missing"]))
    assert len(set(found)) == len(found), "an object of two replies"
    assert {kind: len(sizes) for kind, sizes in taken.items() if kind.endswith("up")} == {
        f"{kind} up": 2 for kind in ("query.roll", "query.hello", "train.outputs", "train.gradients")
    }
    for kind in ("train.outputs", "train.gradients"):
        for way in ("down", "up"):
            assert len(set(taken[f"{kind} {way}"])) == 1, (kind, taken)
