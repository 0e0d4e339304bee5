"""What happens to the processes of a deployed run, when, and to whom: the script of a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.laws.chaos.faults import EVERY, stretches

NODE_DIES = "a SuperNode is killed, its worker is left alone"
NODE_AWAY = "a SuperNode is killed and stays away for rounds"
NODE_HANGS = "a SuperNode is stopped for longer than the time limit"
NODES_DIE = "as many SuperNodes are killed as may be missing"
TOO_MANY_DIE = "more SuperNodes are killed than may be missing"
WORKER_DIES = "the worker of a SuperNode is killed"
SERVER_DIES = "the ServerApp is killed"
SERVER_ENDS = "the ServerApp is interrupted"
LINK_DIES = "the SuperLink is killed"

NODE_INJECTIONS = (NODE_DIES, NODE_AWAY, NODE_HANGS, NODES_DIE, TOO_MANY_DIE, WORKER_DIES)
SERVER_INJECTIONS = (SERVER_DIES, SERVER_ENDS, LINK_DIES)
INJECTIONS = (*NODE_INJECTIONS, *SERVER_INJECTIONS)

MOMENTS = ("attempt", "charge", "checkpoint")
"""Files that an injection waits for: the next attempt's line, the ledger's next row, the next checkpoint."""


@dataclass(frozen=True)
class Injection:
    """What happens in a round, once.

    Attributes:
        round: it happens in the first attempt that begins from then on.
        moment: what that attempt must have done.
        fraction: how much later: of a round after its attempt began, of `injector.INSTANT` after the other moments.
        chance: decides what is left to chance when it happens (which node, which signal).
    """

    round: int
    kind: str
    moment: str
    fraction: float
    chance: int


def script(seed: int, rounds: int) -> list[Injection]:
    """An injection in every stretch of `EVERY` rounds: kinds in random order, all of them before one comes again.

    What hits clients comes at any time of a round. A round's charge and checkpoint take some thousandths of it, so
    what hits the server waits, in two of three cases, for one of them.
    """
    chance = random.Random(seed)
    planned = []
    for start, kind in stretches(chance, INJECTIONS, rounds):
        round_ = min(rounds, start + chance.randrange(1, EVERY - 1))
        moment = chance.choice(MOMENTS) if kind in SERVER_INJECTIONS else MOMENTS[0]
        planned.append(Injection(round_, kind, moment, chance.random(), chance.randrange(2**32)))
    return planned
