"""The messages between server and clients: one table, by which both sides encode and decode."""

from typing import Any

from fedsw.experiment.trust import answering, releasing_gradients, trust_models
from fedsw.federation.messages._lengths import Terms as Terms
from fedsw.federation.messages._sums import HISTOGRAMS as HISTOGRAMS
from fedsw.federation.messages._sums import MASKED_HISTOGRAMS as MASKED_HISTOGRAMS
from fedsw.federation.messages._sums import MASKED_MOMENTS as MASKED_MOMENTS
from fedsw.federation.messages._sums import MASKED_SCORES as MASKED_SCORES
from fedsw.federation.messages._sums import MASKED_SKETCH as MASKED_SKETCH
from fedsw.federation.messages._sums import MASKED_TALLY as MASKED_TALLY
from fedsw.federation.messages._sums import MOMENTS as MOMENTS
from fedsw.federation.messages._sums import NOISY_HISTOGRAMS as NOISY_HISTOGRAMS
from fedsw.federation.messages._sums import NOISY_MOMENTS as NOISY_MOMENTS
from fedsw.federation.messages._sums import NOISY_SCORES as NOISY_SCORES
from fedsw.federation.messages._sums import NOISY_TALLY as NOISY_TALLY
from fedsw.federation.messages._sums import RECORDS_SUM as RECORDS_SUM
from fedsw.federation.messages._sums import SCORES as SCORES
from fedsw.federation.messages._sums import SKETCH as SKETCH
from fedsw.federation.messages._sums import TALLY as TALLY
from fedsw.federation.messages.arrays import Broadcast as Broadcast
from fedsw.federation.messages.codec import Exchange as Exchange
from fedsw.federation.messages.codec import Fault as Fault
from fedsw.federation.messages.codec import Message as Message
from fedsw.federation.messages.codec import addressed as addressed
from fedsw.federation.messages.codec import answered_for as answered_for
from fedsw.federation.messages.codec import bytes_of as bytes_of
from fedsw.federation.messages.codec import decode as decode
from fedsw.federation.messages.codec import decode_one as decode_one
from fedsw.federation.messages.codec import encode as encode
from fedsw.federation.messages.codec import is_packed as is_packed
from fedsw.federation.messages.codec import opened as opened
from fedsw.federation.messages.codec import packed as packed
from fedsw.federation.messages.codec import unpacked as unpacked
from fedsw.federation.messages.common import HELLO as HELLO
from fedsw.federation.messages.common import MOST_BELIEVED as MOST_BELIEVED
from fedsw.federation.messages.common import MOST_RECORDS as MOST_RECORDS
from fedsw.federation.messages.common import ROLL as ROLL
from fedsw.federation.messages.common import SIZES as SIZES
from fedsw.federation.messages.fields import Malformed as Malformed
from fedsw.federation.messages.masked_sums import MASKED_SUM as MASKED_SUM
from fedsw.federation.messages.masked_sums import MASKED_TABLES as MASKED_TABLES
from fedsw.federation.messages.masked_sums import READY as READY
from fedsw.federation.messages.noised import LOCAL_GRADIENTS as LOCAL_GRADIENTS
from fedsw.federation.messages.noised import RELEASE as RELEASE
from fedsw.federation.messages.noised import SLICES as SLICES
from fedsw.federation.messages.noised import TABLES as TABLES
from fedsw.federation.messages.trusted import GRADIENTS as GRADIENTS
from fedsw.federation.messages.trusted import OUTPUTS as OUTPUTS
from fedsw.federation.messages.trusted import SUM as SUM

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
