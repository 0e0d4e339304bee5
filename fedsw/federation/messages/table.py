"""The table of messages in Markdown: `python -m fedsw.federation.messages.table FILE...` writes it into documents."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedsw.experiment.trust import answering, names_of, trust_models
from fedsw.federation.messages.codec import Message, fields_of
from fedsw.federation.messages.exchanges import EXCHANGES, HELLO, SIZES, Exchange
from fedsw.federation.messages.fields import SEEN, Field
from fedsw.federation.messages.terms import SYMBOLS
from fedsw.text import table

BEGIN, END = "<!-- messages: begin -->", "<!-- messages: end -->"
"""Lines between which a document holds the table."""

_HEADINGS = ("", "field", "what it is", "type and shape", "believed", "who may see it", "travels")


def markdown() -> str:
    """Every exchange with its two messages, what the symbols of shapes stand for, and who may see what."""
    parts = [_exchange(exchange) for exchange in EXCHANGES]
    symbols = table(("symbol", "length"), [(f"`{name}`", meaning) for name, meaning in SYMBOLS.items()])
    seen = table(("who may see it", "what"), [(each.value, meaning) for each, meaning in SEEN.items()])
    return "\n\n".join([*parts, "Lengths in shapes:", symbols, "What the words of the last column but one mean:", seen])


def written(document: str) -> str:
    """A document with the table between its marks.

    Raises:
        ValueError: if it has not both marks, once each and in order.
    """
    if document.count(BEGIN) != 1 or document.count(END) != 1 or document.index(END) < document.index(BEGIN):
        raise ValueError(f"a document for the table of messages holds {BEGIN} and, after it, {END}, once each")
    before, rest = document.split(BEGIN)
    return f"{before}{BEGIN}\n\n{markdown()}\n\n{END}{rest.split(END)[1]}"


def main(arguments: Sequence[str]) -> int:
    """Write the table into every named document."""
    if not arguments:
        print("usage: python -m fedsw.federation.messages.table FILE...", file=sys.stderr)
        return 2
    for name in arguments:
        path = Path(name)
        try:
            path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
        except (OSError, ValueError) as fault:
            print(f"{name}: {fault}", file=sys.stderr)
            return 1
    return 0


def _exchange(exchange: Exchange[Message, Message]) -> str:
    trusts = ", ".join(f"`{trust}`" for trust in trusts_of(exchange))
    rows = [_row("down", field) for field in fields_of(exchange.down).values()]
    rows += [_row("up", field) for field in fields_of(exchange.up).values()]
    return f"## `{exchange.kind}`\n\nUnder {trusts}; {exchange.about}.\n\n{table(_HEADINGS, rows)}"


def trusts_of(exchange: Exchange[Message, Message]) -> tuple[str, ...]:
    """The trust models under which a client answers it."""
    if exchange is HELLO:
        return tuple(trust_models())
    if exchange is SIZES:
        return names_of(gradients=True)
    return answering(exchange.kind)


def _row(way: str, field: Field) -> tuple[str, ...]:
    believed = field.believed + ("; left out where it is something else" if field.spare else "")
    travels = "always" if field.when is None else field.when.text
    where = f"`{field.record}` `{field.name}`"
    return way, where, field.about, field.kind, believed, field.seen.value, travels


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
