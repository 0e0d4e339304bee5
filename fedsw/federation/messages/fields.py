"""One field of a message: where it travels, what of it is believed, who may see it; settings and metrics."""

from __future__ import annotations

import math
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Any, Literal, NoReturn

from fedsw.federation.messages.terms import Condition, Terms

Record = Literal["config", "metrics", "model", "prepared", "arrays"]
Get = Callable[[str], Any]
"""The value of a key that came, or `Malformed`."""

_LONGEST = 120  # letters of what came, in an error
_LEAST_POWER = 20  # of two, from which a limit is written as one


class Seen(Enum):
    """Who may see a field."""

    PUBLIC = "public"
    RELEASED = "released"
    NOISED = "noised"
    SECRET = "secret"


PUBLIC, RELEASED, NOISED, SECRET = Seen

SEEN: Mapping[Seen, str] = {
    PUBLIC: "settings, public sizes, or random numbers that follow from no record",
    RELEASED: "the model: what earlier rounds released, noised in every trust model but `none`",
    NOISED: "noised by the client, or made of such numbers alone; everybody may see it",
    SECRET: "an un-noised function of records, or of which were drawn: for the server and this client only, which "
    "keep it to themselves; no error quotes it",
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
        about: what it is, for the table.
        record: of Flower's, that it is in.
        when: whether it is there; None for always. It is None in the message where it is not.
        spare: a message is taken without it if it is malformed: a diagnostic, on which nothing rests.
    """

    name: str
    seen: Seen
    about: str
    _: KW_ONLY
    record: Record
    when: Condition | None = None
    spare: bool = False

    def present(self, terms: Terms) -> bool:
        """Whether the field is in the messages of a run."""
        return self.when is None or self.when.holds(terms.agreed)

    def keys(self, terms: Terms) -> tuple[str, ...]:
        """Keys of the record that it takes."""
        return (self.name,)

    def bound(self, value: Any) -> Mapping[str, int]:
        """Lengths that later fields of the message have because of it."""
        return {}

    @abstractmethod
    def put(self, value: Any, terms: Terms) -> Mapping[str, Any]:
        """What travels, by key."""

    @abstractmethod
    def take(self, get: Get, terms: Terms) -> Any:
        """Decode the field's value from a received record; `Malformed` if it is not what the table says."""

    def refuse(self, value: object, wanted: str) -> NoReturn:
        """Raise the `Malformed` that names what came and what was expected; it does not quote a secret value."""
        if self.seen is SECRET:
            raise Malformed(f"{self.name} did not come as {wanted}", self.name)
        raise Malformed(f"{self.name} came as {_short(value)}; expected {wanted}", self.name, value)


@dataclass(frozen=True, kw_only=True)
class Text(Field):
    """A text of at most so many letters, the whole of which matches a `pattern`, which `form` says in words."""

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


@dataclass(frozen=True, kw_only=True)
class Number(Field):
    """One number or several, each within the limits."""

    limits: Limits


@dataclass(frozen=True, kw_only=True)
class Whole(Number):
    """A whole number; its size on the wire says its magnitude, so it is for public ones."""

    record: Record = "config"

    def put(self, value: int, terms: Terms) -> Mapping[str, Any]:
        """See `Field`."""
        return {self.name: int(value)}

    def take(self, get: Get, terms: Terms) -> int:
        """See `Field`."""
        value = get(self.name)
        if type(value) is int and value in self.limits:
            return value
        self.refuse(value, f"a whole number {self.limits}")


@dataclass(frozen=True, kw_only=True)
class Wholes(Number):
    """Whole numbers, one for each of what `length` counts; their size on the wire says their magnitude."""

    record: Record = "config"
    length: str

    def put(self, value: tuple[int, ...], terms: Terms) -> Mapping[str, Any]:
        """See `Field`."""
        return {self.name: [int(each) for each in value]}

    def take(self, get: Get, terms: Terms) -> tuple[int, ...]:
        """See `Field`."""
        values, count = get(self.name), terms.sizes.get(self.length)
        fits = isinstance(values, list) and count in (None, len(values))
        if fits and all(type(each) is int and each in self.limits for each in values):
            return tuple(values)
        self.refuse(values, f"{'' if count is None else f'{count} '}whole numbers {self.limits}")


@dataclass(frozen=True, kw_only=True)
class Real(Number):
    """A number, of one size on the wire, with other limits in a run that adds no noise where it has some."""

    record: Record = "metrics"
    without_noise: Limits | None = None

    def put(self, value: float, terms: Terms) -> Mapping[str, Any]:
        """See `Field`."""
        return {self.name: float(value)}

    def take(self, get: Get, terms: Terms) -> float:
        """See `Field`."""
        value = get(self.name)
        limits = self.limits if self.without_noise is None or terms.noisy else self.without_noise
        if type(value) is float and value in limits:
            return value
        self.refuse(value, f"a float {limits}")


@dataclass(frozen=True, kw_only=True)
class Reals(Number):
    """Numbers, of one size on the wire, as many as `count`."""

    count: int

    def put(self, value: list[float], terms: Terms) -> Mapping[str, Any]:
        """See `Field`."""
        return {self.name: value}

    def take(self, get: Get, terms: Terms) -> list[float]:
        """See `Field`."""
        values = get(self.name)
        fits = isinstance(values, list) and len(values) == self.count
        if fits and all(type(each) is float and each in self.limits for each in values):
            return list(values)
        self.refuse(values, f"{self.count} floats {self.limits}")


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
