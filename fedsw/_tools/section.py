"""`Section`, the base of every section of an experiment, and the types of values that several sections have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from fedsw._tools.own_objects import is_reference

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
PositiveInt = Annotated[int, Field(gt=0, le=2**53, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
_MOST_DEEP = 8


def _ordinary(norm: float) -> float:
    """A clip far from where float32 has fewer digits: what is cut to 7e-46 would be rounded to 1.4e-45."""
    if not 1e-30 <= norm <= 1e30:
        raise ValueError("a clip lies between 1e-30 and 1e30")
    return norm


ClipNorm = Annotated[float, Field(allow_inf_nan=False, strict=True), AfterValidator(_ordinary)]


class SettingRule(NamedTuple):
    """One row of what goes together: ``when`` this is so, ``requires`` must be true, too; if not, what it ``says``."""

    when: object
    requires: object
    says: str


def first_misfit(rules: Iterable[SettingRule]) -> str | None:
    """Return what the first broken rule says, or None; those behind it are not asked, since they may rest on it."""
    return next((rule.says for rule in rules if rule.when and not rule.requires), None)


class Section(BaseModel):
    """Base of all sections: unknown keys are refused, and values never change.

    Settings that were ``removed`` may stand in stored runs, which are written whole, at the default that they had; at
    another value they are unknown keys, as what they did is not done.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    removed: ClassVar[Mapping[str, Any]] = {}

    def rules(self) -> Iterable[SettingRule]:
        """Rows of what goes together in this section, in the order in which they are asked."""
        return ()

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if (refusal := first_misfit(self.rules())) is not None:
            raise ValueError(refusal)
        return self

    @model_validator(mode="before")
    @classmethod
    def _without_removed(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        return {name: value for name, value in raw.items() if name not in cls.removed or value != cls.removed[name]}

    def __hash__(self) -> int:
        """Hash the settings as JSON text, since tables of arguments have no hash."""
        return hash(self.model_dump_json())

    @classmethod
    def variants(cls) -> tuple[type[BaseModel], ...]:
        """Classes that may stand in its place, as the trust model has it."""
        return ()

    def changed(self, *names: str) -> str | None:
        """The first of these settings that is not its default."""
        return next((name for name in names if getattr(self, name) != type(self).model_fields[name].default), None)


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value as TOML and JSON write and read it back, or raise ValueError."""
    if depth > _MOST_DEEP:
        raise ValueError(f"arguments are nested over {_MOST_DEEP} deep; give numbers, texts, and lists of them")
    if isinstance(value, bool | str) or (isinstance(value, int) and abs(value) <= 2**53):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    raise ValueError(f"an argument of type {type(value).__name__} is no finite number, text, truth value or list")


Arguments = Annotated[dict[str, Any], AfterValidator(_plain)]
"""Arguments by name of something of a user's own, as TOML and JSON can write them."""


def at_most(count: int, what: str) -> AfterValidator:
    """A limit on how many values a list has, with what they are for the message: "layers"."""

    def limited(values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(values) > count:
            raise ValueError(f"{len(values)} {what} are given; there are at most {count}")
        return values

    return AfterValidator(limited)


def among(names: Callable[[], Iterable[str]], custom: str | None = None) -> AfterValidator:
    """A limit on a name, to those that are known when it is read; see `one_of`."""
    return AfterValidator(lambda name: one_of(name, names(), custom))


def one_of(name: str, names: Iterable[str], custom: str | None = None) -> str:
    """Return the name if it is known, or `module:name` where ``custom`` says what that may be; else ValueError."""
    known = [repr(known_name) for known_name in names]
    if repr(name) in known or (custom is not None and is_reference(name)):
        return name
    if custom is None:
        raise ValueError(f"Input should be {', '.join(known[:-1])} or {known[-1]}")
    raise ValueError(f"Input should be {', '.join(known)}, or 'module:name' for {custom} of your own")
