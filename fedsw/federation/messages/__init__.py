"""The messages between server and clients: one table, by which both sides encode and decode."""

from typing import Any

from fedsw.experiment.trust import answering, releasing_gradients, trust_models
from fedsw.federation.messages.codec import (
    Broadcast,
    Exchange,
    Fault,
    Malformed,
    Message,
    Terms,
    addressed,
    answered_for,
    bytes_of,
    decode,
    decode_one,
    encode,
    is_packed,
    opened,
    packed,
    unpacked,
)
from fedsw.federation.messages.table import (
    GRADIENTS,
    HELLO,
    HISTOGRAMS,
    LOCAL_GRADIENTS,
    MASKED_HISTOGRAMS,
    MASKED_MOMENTS,
    MASKED_SCORES,
    MASKED_SKETCH,
    MASKED_SUM,
    MASKED_TABLES,
    MASKED_TALLY,
    MOMENTS,
    MOST_BELIEVED,
    MOST_RECORDS,
    NOISY_HISTOGRAMS,
    NOISY_MOMENTS,
    NOISY_SCORES,
    NOISY_TALLY,
    OUTPUTS,
    READY,
    RECORDS_SUM,
    RELEASE,
    ROLL,
    SCORES,
    SIZES,
    SKETCH,
    SLICES,
    SUM,
    TABLES,
    TALLY,
)

AnyExchange = Exchange[Any, Any]

EXCHANGES: tuple[AnyExchange, ...] = (
    ROLL,
    SIZES,
    HELLO,
    HISTOGRAMS,
    MOMENTS,
    NOISY_HISTOGRAMS,
    NOISY_MOMENTS,
    OUTPUTS,
    GRADIENTS,
    SUM,
    TABLES,
    LOCAL_GRADIENTS,
    READY,
    MASKED_TABLES,
    MASKED_SUM,
    MASKED_SKETCH,
    MASKED_HISTOGRAMS,
    MASKED_MOMENTS,
    MASKED_TALLY,
    MASKED_SCORES,
    SLICES,
    RELEASE,
    RECORDS_SUM,
    SKETCH,
    TALLY,
    NOISY_TALLY,
    SCORES,
    NOISY_SCORES,
)
"""Every exchange between server and clients: what goes down, and what comes up."""


def trusts_of(exchange: AnyExchange) -> tuple[str, ...]:
    """The trust models under which a client answers it."""
    if exchange in (ROLL, HELLO):
        return tuple(trust_models())
    if exchange is SIZES:
        return releasing_gradients()
    return answering(exchange.kind)


__all__ = [
    "AnyExchange", "Broadcast", "EXCHANGES", "Exchange", "Fault", "GRADIENTS", "HELLO", "HISTOGRAMS",
    "LOCAL_GRADIENTS", "MASKED_HISTOGRAMS", "MASKED_MOMENTS", "MASKED_SCORES", "MASKED_SKETCH", "MASKED_SUM",
    "MASKED_TABLES", "MASKED_TALLY", "MOMENTS", "MOST_BELIEVED", "MOST_RECORDS", "Malformed", "Message",
    "NOISY_HISTOGRAMS", "NOISY_MOMENTS", "NOISY_SCORES", "NOISY_TALLY", "OUTPUTS", "READY", "RECORDS_SUM",
    "RELEASE", "ROLL", "SCORES", "SIZES", "SKETCH", "SLICES", "SUM", "TABLES", "TALLY", "Terms", "addressed",
    "answered_for", "bytes_of", "decode", "decode_one", "encode", "is_packed", "opened", "packed", "trusts_of",
    "unpacked",
]  # fmt: skip
