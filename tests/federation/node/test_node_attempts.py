"""Laws of attempts: each of them draws anew."""

from __future__ import annotations

import pytest

from fedsw.federation.node import node
from tests.federation.local_runs import client_of, kind_of
from tests.federations import Saboteur, small


@pytest.mark.parametrize("seed", [(), ("seed=5",)], ids=["secret", "seeded"])
def test_every_attempt_at_a_round_has_a_batch_key_of_its_own(federation, monkeypatch, seed):
    """Client 2 is lost twice before its outputs: the others drew for attempts that came to nothing, and draw again."""
    keys: dict[tuple[int, int], list[bytes]] = {}
    asked, failed = [], []
    drawn = node.Node.draw
    monkeypatch.setattr(
        node.Node, "draw", lambda self, key, counts: (keys[asked[-1]].append(key), drawn(self, key, counts))[1]
    )

    def hook(message, context):
        config = message.content.get("config", {})
        if kind_of(message) == "train.outputs":
            asked.append((int(config["round"]), int(config["attempt"])))
            keys.setdefault(asked[-1], [])
            if client_of(context) == 2 and len(failed) < 2:
                failed.append(asked[-1])
                raise OSError("gone")

    federation.run(small("federation.min_clients=2", "training.rounds=3", *seed), app=Saboteur(hook))
    assert failed and len(keys) >= 4
    of_attempt = [set(used) for used in keys.values()]
    assert all(used for used in of_attempt)
    assert len(set.union(*of_attempt)) == sum(map(len, of_attempt)), "a key came back in another attempt"
    if not seed:
        assert all(len(used) == len(set(used)) for used in keys.values()), "two clients share a secret key"
