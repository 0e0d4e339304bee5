"""Errors that several layers raise; settings as text, messages that name the nearest one, and numbers from Python."""

from __future__ import annotations

import difflib
import functools
import math
import numbers
import operator
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from pydantic import BaseModel, ValidationError


class FederationError(RuntimeError):
    """The federation cannot go on; the message names the client, the reason and the remedy.

    It is for the terminal: it repeats what clients said, which may quote a record. `recorded` may be written.
    """

    def __init__(self, message: str, *, recorded: str = "the federation could not go on") -> None:
        super().__init__(message)
        self.recorded = recorded


class Unaccounted(FederationError):
    """Something was released of which no ledger has a row: nothing bounds what it costs."""


Setting = tuple[tuple[str, ...], Any]
Schema = TypeVar("Schema", bound=BaseModel)
Function = TypeVar("Function", bound=Callable[..., Any])

_MOST_SHOWN = 200
_DATA_SET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_MOST_NESTED = 20


class ExperimentError(ValueError):
    """An experiment that cannot be run as written; the message names the key, its value and the remedy."""


def read_setting(text: str) -> Setting:
    """Keys and value of `section.key=value`, which is TOML or a bare word; ExperimentError if it is not written so."""
    key, sign, written = text.partition("=")
    keys = tuple(part.strip() for part in key.split("."))
    if not sign or not all(keys):
        raise ExperimentError(f"setting {_shown(text)} cannot be read; write section.key=value")
    if len(keys) > _MOST_NESTED:
        raise ExperimentError(f"setting {_shown(text)} is nested over {_MOST_NESTED} deep; write section.key=value")
    try:
        parsed = tomllib.loads(f"value = {written}")
    except (ValueError, RecursionError):  # no TOML, a number of thousands of digits, brackets without end
        return keys, written.strip()
    return keys, parsed["value"] if set(parsed) == {"value"} else written.strip()


def apply_setting(raw: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
    """Write `value` under `keys` of a nested mapping, making sections; ExperimentError if one is a plain value."""
    node = raw
    for section in keys[:-1]:
        node = node.setdefault(section, {})
        if not isinstance(node, dict):
            raise ExperimentError(f"setting {'.'.join(keys)!r}: {section!r} is a value, not a section")
    node[keys[-1]] = value


def deep_copy(raw: Mapping[str, Any], *, depth: int = 1) -> dict[str, Any]:
    """A copy of a nested mapping that can be written to; ExperimentError if it is deeper than any experiment."""
    if depth > _MOST_NESTED:
        raise ExperimentError(f"sections are nested over {_MOST_NESTED} deep; an experiment has section.key = value")
    return {
        key: deep_copy(value, depth=depth + 1) if isinstance(value, Mapping) else value for key, value in raw.items()
    }


TAKEN: Mapping[str, tuple[str, ...]] = {
    "epsilon": ("privacy", "epsilon"),
    "delta": ("privacy", "delta"),
    "noise_multiplier": ("privacy", "noise_multiplier"),
    "max_grad_norm": ("clip", "loss"),
    "sensitive_features": ("data", "columns", "sensitive"),
    "random_state": ("seed",),
    "n_clients": ("federation", "clients"),
}
"""The field's words that are taken for settings which mean the same, at the top or in a section of the setting."""


def our_keys(keys: tuple[str, ...]) -> tuple[str, ...]:
    """The keys of the setting that a word of the field means where it stands; other keys as they are."""
    meant = TAKEN.get(keys[-1], ())
    return meant if len(keys) <= len(meant) and keys[:-1] == meant[: len(keys) - 1] else keys


def in_our_words(raw: dict[str, Any]) -> None:
    """Write what a nested mapping says in the field's words under the keys of the settings that they mean.

    Raises:
        ExperimentError: if a setting is there by both.
    """
    for word, meant in TAKEN.items():
        node: Any = raw
        for depth in range(len(meant)):
            written = (*meant[:depth], word)
            if isinstance(node, dict) and word in node and written != meant:
                if _has(raw, meant):
                    raise ExperimentError(
                        f"{'.'.join(written)} and {'.'.join(meant)} are one setting: keep one of them"
                    )
                apply_setting(raw, meant, node.pop(word))
            node = node.get(meant[depth]) if isinstance(node, dict) else None


def _has(raw: Any, keys: tuple[str, ...]) -> bool:
    for key in keys:
        if not isinstance(raw, dict) or key not in raw:
            return False
        raw = raw[key]
    return True


def takes(**words: str) -> Callable[[Function], Function]:
    """Let a function take a word of the field for each of these parameters: `@takes(seed="random_state")`."""

    def decorated(function: Function) -> Function:
        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            for parameter, word in words.items():
                if word in named:
                    if parameter in named:
                        raise TypeError(f"{word} and {parameter} are one argument: keep one of them")
                    named[parameter] = named.pop(word)
            return function(*arguments, **named)

        return cast(Function, called)

    return decorated


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The content of a TOML file; ExperimentError names it after ``what`` it is ("the roster")."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ExperimentError(f"{what} {path} cannot be read: {fault.strerror}") from None
    except (ValueError, RecursionError) as fault:
        raise ExperimentError(f"{what} {path} is not valid TOML: {fault}") from None


def validated(schema: type[Schema], raw: Any, *, where: str = "", apart: str = "; ") -> Schema:
    """A mapping as its schema has it; ExperimentError says ``where``, and every wrong key with its limit."""
    try:
        return schema.model_validate(raw)
    except ValidationError as fault:
        raise ExperimentError(where + apart.join(explain_all(fault.errors(), schema))) from None


def explain_all(errors: Sequence[Any], schema: type[BaseModel]) -> list[str]:
    """One line for every error, but for those that follow from another: what is refused is missing from its list."""
    places = [error["loc"] for error in errors]

    def follows(error: Any) -> bool:
        loc = error["loc"]
        inside = any(len(other) > len(loc) and other[: len(loc)] == loc for other in places)
        return inside and error["type"] == "too_short"

    return [_explain(error, schema) for error in errors if not follows(error)]


def _explain(error: Any, schema: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "experiment"
    if error["type"] == "extra_forbidden":
        return _explain_unknown(where, schema)
    if error["type"] == "model_type":
        return f"{where}: {_shown(error['input'])} is a value where a section belongs; write {where}.key=value"
    message = error["msg"].removeprefix("Value error, ")
    got = "" if isinstance(error["input"], Mapping) else f" (got {_shown(error['input'])})"
    return f"{where}: {message}{got}"


def _shown(value: Any) -> str:
    """A value for a message: a short one whatever it is, and a whole number that Python does not write out."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def _explain_unknown(where: str, schema: type[BaseModel]) -> str:
    where = ".".join(part for part in where.split(".") if not part.isdigit())
    section, _, last = where.rpartition(".")
    known = known_keys(schema)
    siblings = [key for key in known if key.rpartition(".")[0] == section] or known
    elsewhere = {key.rpartition(".")[2]: key for key in known}
    synonyms: Mapping[str, tuple[str, str]] = getattr(schema, "synonyms", {})
    called = last.lower().replace("-", "_")
    if last not in elsewhere and called in synonyms:
        near, said = synonyms[called]
        return f"unknown key {where!r}; it is called {near!r} here{f': {said}' if said else ''}"
    if last in elsewhere:
        near = elsewhere[last]
    elif close := difflib.get_close_matches(where, siblings, n=1):
        near = close[0]
    elif close := difflib.get_close_matches(last, elsewhere, n=1):
        near = elsewhere[close[0]]
    else:
        near = difflib.get_close_matches(where, siblings, n=1, cutoff=0.0)[0]
    here = f"[{section}]" if section else "the top level"
    names = ", ".join(sorted({key.rpartition(".")[2] for key in siblings}))
    return f"unknown key {where!r}; nearest known: {near!r}. Known in {here}: {names}"


def known_keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    """Return the dotted keys of a section, of its variants and of the sections in it, each after ``prefix``."""
    keys = []
    for kind in (section, *getattr(section, "variants", tuple)()):
        for name, field in kind.model_fields.items():
            keys.append(prefix + name)
            for inner in _sections_in(field.annotation):
                keys += known_keys(inner, f"{prefix}{name}.")
    return keys


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Sections behind an annotation: itself, or what it may be or hold (`Section | None`, `tuple[Section, ...]`)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for inner in get_args(annotation) for section in _sections_in(inner)]


def require_data_set(name: str) -> str:
    """The name of a data set, and of its account's file; ValueError unless it can name a file."""
    if not _DATA_SET.fullmatch(name):
        raise ValueError(
            f"the data set is called {_shown(name)}; its account needs a name of at most 100 letters, digits, '.', '_' "
            "and '-' that begins with a letter or digit"
        )
    return name


_SEEDS = 2**63


def whole(value: Any, name: str, *, least: int, most: int | None = None) -> int:
    """A whole number that a caller gave, of whatever type: 3, 3.0 and `np.int64(3)` are 3; ValueError names it."""
    number = None if _is_truth(value) else _whole(value)
    within = number is not None and number >= least and (most is None or number <= most)
    if number is None or not within:
        limit = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{name} = {_shown(value)}; it is a whole number, {limit}")
    return number


def seed_of(value: Any, name: str = "seed") -> int | None:
    """A seed that a caller gave, or None for none: whole numbers of any type are one seed; ValueError for the rest."""
    return None if value is None else whole(value, name, least=0, most=_SEEDS - 1)


def real(value: Any, name: str) -> float:
    """A number that a caller gave, of whatever type; ValueError names it where it is text, a truth value or none."""
    if not (_is_truth(value) or isinstance(value, str | bytes)):
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise ValueError(f"{name} = {_shown(value)}; it is a number")


def _whole(value: Any) -> int | None:
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # an array's or a tensor's one number
        value = value.item()
    try:
        return operator.index(value)
    except TypeError:
        plain = isinstance(value, numbers.Real) and math.isfinite(value) and value == math.floor(value)
        return math.floor(value) if plain else None


def _is_truth(value: Any) -> bool:
    """Say whether a value is a truth value: Python's, or one of an array or a tensor."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
