"""One message for many clients under the local trust models: the request once, and each client's own answer or refusal.

A request is the same for all clients. A node gets it once, with the positions of the clients that are asked. Its reply
holds what each of them would send alone, its records under its position, and says why a client sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from fedsw.federation.messages.fields import Malformed
from fedsw.text import shown

CLIENTS = "clients"
"""The record of a request that says who is asked."""
_POSITIONS, _FAULTS, _BETWEEN = "positions", "faults", "/"


@dataclass(frozen=True)
class Refusal:
    """Why a client of a node sends nothing: in words, and by Flower's code of the error that it is."""

    reason: str
    code: int


def addressed(content: RecordDict, positions: Sequence[int]) -> RecordDict:
    """A request to some of a node's clients.

    Args:
        content: the request, encoded once for all nodes.
        positions: of the clients among those of the node, ascending.
    """
    return RecordDict({**content, CLIENTS: ConfigRecord({_POSITIONS: [int(each) for each in positions]})})


def opened(content: RecordDict, clients: int) -> tuple[RecordDict, list[int]]:
    """A request, and which of the node's clients it is for.

    Raises:
        Malformed: if they are not positions of clients that the node has, ascending.
    """
    record = content.get(CLIENTS)
    positions = record.get(_POSITIONS) if isinstance(record, ConfigRecord) else None
    asked = [each for each in positions if type(each) is int] if isinstance(positions, list) else []
    if not asked or asked != positions or not _ascending(asked, clients):
        raise Malformed(
            f"the request does not say for which of this node's {clients} clients it is", CLIENTS, positions
        )
    return RecordDict({name: held for name, held in content.items() if name != CLIENTS}), asked


def packed(answers: Mapping[int, RecordDict | Refusal]) -> RecordDict:
    """A node's reply: what each of its clients sends, by position."""
    found, faults = RecordDict(), dict[str, str | int]()
    for position, answer in answers.items():
        if isinstance(answer, Refusal):
            faults |= {f"{position}{_BETWEEN}reason": answer.reason, f"{position}{_BETWEEN}code": answer.code}
            continue
        for name, record in answer.items():
            found[f"{position}{_BETWEEN}{name}"] = record
    if faults:
        found[_FAULTS] = ConfigRecord(faults)  # type: ignore[arg-type]
    return found


def unpacked(content: RecordDict, positions: Sequence[int]) -> Mapping[int, RecordDict | Refusal]:
    """What each of the asked clients answered; a refusal in the server's words where there is nothing of it.

    What came for clients that were not asked is not looked at.
    """
    answers: dict[int, RecordDict] = {}
    for name, record in content.items():
        position, between, own = name.partition(_BETWEEN)
        if between and position.isdecimal() and len(position) < 20:
            answers.setdefault(int(position), RecordDict())[own] = record
    faults = content.get(_FAULTS)
    return {each: answers.get(each) or _refusal(faults, each) for each in positions}


def _refusal(faults: object, position: int) -> Refusal:
    held = faults if isinstance(faults, ConfigRecord) else {}
    reason, code = held.get(f"{position}{_BETWEEN}reason"), held.get(f"{position}{_BETWEEN}code")
    if isinstance(reason, str) and type(code) is int:
        return Refusal(shown(reason), code)
    return Refusal("its node sent no answer of it", 0)


def _ascending(positions: Sequence[int], clients: int) -> bool:
    inside = all(0 <= each < clients for each in positions)
    return inside and all(one < two for one, two in zip(positions, positions[1:], strict=False))
