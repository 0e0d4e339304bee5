"""What many ledgers are charged together, with one wait for the disk."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from fedsw import files
from fedsw.accounting.charges import Charge
from fedsw.accounting.journal import sync_together
from fedsw.accounting.ledger import Ledger


@dataclass(frozen=True)
class Spending:
    """What one ledger is charged; see :meth:`Ledger.spend`."""

    ledger: Ledger
    round: int
    attempt: int
    charges: Sequence[Charge]
    sigma: float


def spend_together(spendings: Sequence[Spending]) -> list[float | Exception]:
    """:meth:`Ledger.spend` for many ledgers with one wait for the disk.

    Guarantee: that of `spend`, for every ledger of which an epsilon is returned: its charge is on disk. One that
    refuses, or that the disk does not take, keeps nobody else from spending. Where the disk failed, the ledger is
    closed. The charge may be in the file all the same: it is then counted, and nothing is released for it.

    Returns:
        For each, in their order, epsilon or what `spend` raises (OSError where the disk failed).

    Raises:
        ValueError: if a ledger is named twice; nothing is written.
    """
    if len({id(each.ledger) for each in spendings}) < len(spendings):
        raise ValueError("a ledger is named twice; one release is charged to each at a time")
    found: list[float | Exception] = []
    for each in spendings:
        ledger = each.ledger
        try:
            found.append(
                ledger._spend(each.round, each.attempt, each.charges, each.sigma, ledger._journal.append_unsynced)
            )
        except Exception as fault:
            found.append(fault)
    written = [place for place, spent in enumerate(found) if not isinstance(spent, Exception)]
    for place, said in zip(written, sync_together([spendings[p].ledger._journal for p in written]), strict=True):
        if said is not None:
            spendings[place].ledger.close()  # its file is read again before anything more is charged to it
            found[place] = said
    limited = [p for p in written if not isinstance(found[p], Exception) and spendings[p].ledger.limiter is not None]
    with ThreadPoolExecutor(min(files.AT_ONCE, len(limited)) or 1) as waiting:
        refusals = waiting.map(_announced, [spendings[place].ledger for place in limited])
        for place, refusal in zip(limited, refusals, strict=True):
            found[place] = refusal or found[place]
    return found


def _announced(ledger: Ledger) -> Exception | None:
    try:
        ledger._announce()
    except Exception as fault:
        return fault
    return None
