"""What travels between server and clients: one table of messages, by which both sides encode and decode."""

from fedsw.federation.messages.arrays import Broadcast
from fedsw.federation.messages.codec import Message, declared, decode, decode_one, encode, fields_of
from fedsw.federation.messages.common import MOST_BELIEVED, MOST_RECORDS
from fedsw.federation.messages.envelopes import Refusal, addressed, opened, packed, unpacked
from fedsw.federation.messages.exchanges import (
    EXCHANGES,
    GRADIENTS,
    HELLO,
    LOCAL_GRADIENTS,
    NOISY_TALLY,
    OUTPUTS,
    RECORDS_SUM,
    RELEASE,
    SKETCH,
    SLICES,
    SUM,
    TABLES,
    TALLY,
    Exchange,
)
from fedsw.federation.messages.fields import Malformed, Seen
from fedsw.federation.messages.greetings import Greeting, Joined
from fedsw.federation.messages.held_out import ExactTally, NoisyTally, NoisyTallyAsked, TallyAsked
from fedsw.federation.messages.local import (
    LocalGradientAsked,
    NoisedContribution,
    NoisedSlices,
    NoisedTable,
    Release,
    ReleaseAsked,
    ReleasedRecords,
    SlicesAsked,
    TableAsked,
)
from fedsw.federation.messages.sketched import NoisySketch, SketchAsked, SumOfRecords, SumOfRecordsAsked
from fedsw.federation.messages.terms import Terms
from fedsw.federation.messages.trusted import Contribution, GradientsAsked, Outputs, OutputsAsked, SumAsked

__all__ = [
    "EXCHANGES",
    "GRADIENTS",
    "HELLO",
    "LOCAL_GRADIENTS",
    "MOST_BELIEVED",
    "MOST_RECORDS",
    "NOISY_TALLY",
    "OUTPUTS",
    "RECORDS_SUM",
    "RELEASE",
    "SKETCH",
    "SLICES",
    "SUM",
    "TABLES",
    "TALLY",
    "Broadcast",
    "Contribution",
    "ExactTally",
    "Exchange",
    "GradientsAsked",
    "Greeting",
    "Joined",
    "LocalGradientAsked",
    "Malformed",
    "Message",
    "NoisedContribution",
    "NoisedSlices",
    "NoisedTable",
    "NoisySketch",
    "NoisyTally",
    "NoisyTallyAsked",
    "Outputs",
    "OutputsAsked",
    "Refusal",
    "Release",
    "ReleaseAsked",
    "ReleasedRecords",
    "Seen",
    "SketchAsked",
    "SlicesAsked",
    "SumAsked",
    "SumOfRecords",
    "SumOfRecordsAsked",
    "TableAsked",
    "TallyAsked",
    "Terms",
    "addressed",
    "declared",
    "decode",
    "decode_one",
    "encode",
    "fields_of",
    "opened",
    "packed",
    "unpacked",
]
