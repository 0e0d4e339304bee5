"""One field of a message: its record, its accepted values, who may see it; and the fields of numbers and texts."""

from __future__ import annotations

import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any, Literal, NoReturn

from fedsw.federation.messages._lengths import Condition, Terms

Record = Literal["config", "metrics", "model", "prepared", "arrays"]
Get = Callable[[str], Any]
"""The value of a key that came, or `Malformed`."""

_LONGEST = 120  # letters of what came, in an error
_LEAST_POWER = 20  # of two, from which a limit is written as one


class Seen(Enum):
    """Parties that may see a field."""

    PUBLIC = "public"
    RELEASED = "released"
    NOISED = "noised"
    SECRET = "secret"
    COUNTED = "public, or secret"

    @property
    def quoted(self) -> bool:
        """True if an error may quote what came."""
        return self not in (SECRET, COUNTED)


PUBLIC, RELEASED, NOISED, SECRET, COUNTED = Seen

SEEN: Mapping[Seen, str] = {
    PUBLIC: "settings, public sizes, or random numbers that follow from no record",
    RELEASED: "the model: what earlier rounds released, noised in every trust model but `none`",
    NOISED: "noised by the client, or made of such numbers alone; everybody may see it",
    SECRET: "an un-noised function of records, or of which were drawn: for the server and this client only, which "
    "keep it to themselves; no error quotes it",
    COUNTED: 'how many records there are: public; with `privacy.relation = "add-remove"`, which protects that number, '
    "secret",
}


class Malformed(ValueError):
    """A message does not match the table of messages.

    `value` is what came for the field `name`; None for what is secret, and where nothing came.
    """

    def __init__(self, reason: str, name: str, value: object = None) -> None:
        super().__init__(reason)
        self.name, self.value = name, value


@dataclass(frozen=True)
class Limits:
    """The values of a number that are accepted: from `least` to `most`."""

    least: float = -math.inf
    most: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        least = _number(self.least)
        if self.least == self.most:
            return least
        if self.most == sys.float_info.max:
            return f"from {least}, finite"
        return f"from {least}" + (f" to {_number(self.most)}" if self.most < math.inf else "")


@dataclass(frozen=True)
class Field(ABC):
    """A field of a message.

    Attributes:
        name: its key in its record.
        seen: who may see it.
        about: what it is, for the table: the text beside the field in an attribute's annotation.
        record: of Flower's, that it is in.
        when: whether it is there; None for always. It is None in the message where it is not.
        spare: a message is taken without it if it is malformed: a diagnostic, on which nothing rests.
    """

    name: str
    seen: Seen
    _: KW_ONLY
    about: str = ""
    record: Record
    when: Condition | None = None
    spare: bool = False

    def present(self, terms: Terms) -> bool:
        """True if the field is in the messages of a run."""
        return self.when is None or self.when.holds(terms.agreed)

    def keys(self, terms: Terms) -> tuple[str, ...]:
        """Keys of the record that it takes."""
        return (self.name,)

    def bound(self, value: Any) -> Mapping[str, int]:
        """Lengths of later fields that this value determines, by symbol."""
        return {}

    @abstractmethod
    def put(self, value: Any, terms: Terms) -> Mapping[str, Any]:
        """Encode a value: the entries that travel, by key."""

    @abstractmethod
    def take(self, get: Get, terms: Terms) -> Any:
        """Decode the field's value from a received record; `Malformed` if it is not what the table says."""

    def refuse(self, value: object, wanted: str) -> NoReturn:
        """Raise the `Malformed` that names what came and what was expected; it does not quote a secret value."""
        if not self.seen.quoted:
            raise Malformed(f"{self.name} did not come as {wanted}", self.name)
        raise Malformed(f"{self.name} came as {_short(value)}; expected {wanted}", self.name, value)


@dataclass(frozen=True, kw_only=True)
class Text(Field):
    """A text with a limit of letters; all of it matches a `pattern`, which `form` describes in words."""

    record: Record = "config"
    most: int
    pattern: str | None = None
    form: str = ""

    def put(self, value: str, terms: Terms) -> Mapping[str, Any]:
        """See `Field`; `Malformed` if it has not the form that the other side takes."""
        self._require(value)
        return {self.name: value}

    def take(self, get: Get, terms: Terms) -> str:
        """See `Field`."""
        value = get(self.name)
        self._require(value)
        return str(value)

    def _require(self, value: object) -> None:
        if not isinstance(value, str):
            self.refuse(value, "a text")
        if len(value) > self.most:
            self.refuse(f"a text of {len(value)} letters", f"at most {self.most}")
        if self.pattern is not None and re.fullmatch(self.pattern, value) is None:
            self.refuse(value, self.form)


@dataclass(frozen=True)
class NumberField(Field):
    """A number of one type within the limits, or a list of them; the size of a whole one on the wire shows it.

    Attributes:
        promised: what its limits are in `RunGuarantee`, where a run without noise has others.
        count: how many a list has, or the symbol of that length; None for a number that is alone.
    """

    limits: Limits
    _: KW_ONLY
    record: Record = "config"
    kind: type[int] | type[float] = int
    promised: Literal["deviations", "epsilons"] | None = None
    count: str | int | None = None

    def put(self, value: Any, terms: Terms) -> Mapping[str, Any]:
        """See `Field`."""
        return {self.name: self.kind(value) if self.count is None else [self.kind(number) for number in value]}

    def take(self, get: Get, terms: Terms) -> Any:
        """See `Field`; a tuple of a list's numbers."""
        value, count, limits = get(self.name), self.count, self.limits
        if self.promised is not None:
            limits = Limits(*getattr(terms.guarantee, self.promised))
        called = "whole number" if self.kind is int else "float"
        if count is None:
            if type(value) is self.kind and value in limits:
                return value
            self.refuse(value, f"a {called} {limits}")
        wanted = terms.sizes.get(count) if isinstance(count, str) else count
        fits = isinstance(value, list) and wanted in (None, len(value))
        if fits and all(type(number) is self.kind and number in limits for number in value):
            return tuple(value)
        self.refuse(value, f"{'' if wanted is None else f'{wanted} '}{called}s {limits}")


def _number(value: float) -> str:
    if not isinstance(value, int):
        return f"{value:g}"
    for below in (0, 1):
        power = (value + below).bit_length() - 1
        if power >= _LEAST_POWER and value + below == 2**power:
            return f"2^{power}" + " - 1" * below
    return str(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
