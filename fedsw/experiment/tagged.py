"""Refuse settings that nothing of an experiment reads: sections are tagged by trust model, task and kind of model.

A trust model declares classes for its sections (`TrustModel.sections`), a task says what it leaves unread
(`Facts.unread`), and a kind of model what it reads (`ModelKind.reads`). A setting that is unread may be written with
its default, since stored runs are written whole; it is then dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from fedsw._tools.own_objects import is_reference
from fedsw._tools.section import Section
from fedsw.data.settings import Data
from fedsw.experiment.sections import (
    ClipSettings,
    Local,
    Model,
    ObjectiveSettings,
    Privacy,
    SlicingSettings,
    Training,
)
from fedsw.experiment.sketch_section import Sketch
from fedsw.experiment.task_kinds import MODELS, TASKS, Facts
from fedsw.experiment.trust import trust_model, trust_models

TAGGED: Mapping[str, tuple[type[Section], type[Section]]] = {
    "privacy": (Privacy, Privacy),
    "local": (Local, Local),
    "sketch": (Sketch, Section),
}
"""Sections of an experiment that depend on the trust model: the class if the trust model has none of its own, and
the class with the settings that then apply."""

_BY_TASK: Mapping[str, type[Section]] = {
    "data": Data, "objective": ObjectiveSettings, "clip": ClipSettings, "slicing": SlicingSettings,
    "training": Training,
}  # fmt: skip
_Readers = Callable[[str, str], tuple[str, tuple[str, ...]]]
"""From a section and a setting of it to words for what leaves it unread, and the names of what reads it."""
_BY_MODEL = tuple(name for name in Model.model_fields if name not in ("kind", "seed"))


def only_read(raw: Any) -> Any:
    """Return an experiment's settings without those at their defaults that trust model, task or model leave unread.

    Nothing is checked of what is refused later anyway: a section that is none, or a name that nothing has. ValueError
    names the first unread setting that is not at its default, what leaves it unread, and what reads it.
    """
    if not isinstance(raw, Mapping):
        return raw
    settings = dict(raw)
    trust, task, kind = _named(raw, "privacy", "trust"), _named(raw, "objective", "task"), _named(raw, "model", "kind")
    if trust in trust_models():
        for section in TAGGED.keys() & settings.keys():
            if isinstance(settings[section], Mapping):
                settings[section] = _without_foreign(section, settings[section], trust, prefix=f"{section}.")
    if task in TASKS:
        for section, names in TASKS.get(task).facts.unread.items():
            if section in settings:
                settings[section] = _without(_BY_TASK[section], section, settings[section], names, _task_words(task))
    if "model" in settings and (kind in MODELS or is_reference(kind)):
        names = tuple(name for name in _BY_MODEL if name not in MODELS.get(kind).reads)
        settings["model"] = _without(Model, "model", settings["model"], names, _model_words(kind))
    return settings


def unread(settings: Any, facts: Facts) -> str | None:
    """Return why a setting that a task leaves unread is refused, or None; for tasks loaded after reading settings."""
    for section, names in facts.unread.items():
        if name := getattr(settings, section).changed(*names):
            value = getattr(getattr(settings, section), name)
            return _refusal(section, name, value, *_task_words(settings.objective.task)(section, name))
    return None


def _named(raw: Mapping[str, Any], section: str, name: str) -> str:
    """Return the name that a section gives, or its default; "" where none can be read."""
    written = raw.get(section, {})
    kinds: dict[str, type[Section]] = {"privacy": Privacy, "objective": ObjectiveSettings, "model": Model}
    default = kinds[section].model_fields[name].default
    value = written.get(name, default) if isinstance(written, Mapping) else getattr(written, name, None)
    return value if isinstance(value, str) else ""


def _without(kind: type[Section], section: str, written: Any, names: Iterable[str], words: _Readers) -> Any:
    if isinstance(written, Section):
        if name := written.changed(*names):
            raise ValueError(_refusal(section, name, getattr(written, name), *words(section, name)))
        return written
    if not isinstance(written, Mapping):
        return written
    for name in names:
        # stored runs are written whole, so that a setting which nothing reads may stand at its default
        if name in written and _plain(written[name]) != kind.model_fields[name].get_default(call_default_factory=True):
            raise ValueError(_refusal(section, name, written[name], *words(section, name)))
    return {name: value for name, value in written.items() if name not in names}


def _task_words(task: str) -> _Readers:
    def words(section: str, name: str) -> tuple[str, tuple[str, ...]]:
        able = (known for known, kind in TASKS.items() if name not in kind.facts.unread.get(section, ()))
        return f"objective.task {task!r}", tuple(able)

    return words


def _model_words(kind: str) -> _Readers:
    def words(section: str, name: str) -> tuple[str, tuple[str, ...]]:
        able = (known for known, model in MODELS.items() if name in model.reads)
        return f"model.kind {kind!r}", tuple(able)

    return words


def _refusal(section: str, name: str, value: Any, tag: str, able: tuple[str, ...]) -> str:
    readers = " and ".join(map(repr, able)) or "one of your own, 'module:name'"
    return f"{section}.{name} is {value!r}, which {tag} does not read; it is read by {readers}: leave it out"


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def tagged(section: str, raw: Any, trust: str, *, sketch: bool = False) -> Any:
    """Read a section by the class that a trust model declares for it (`TrustModel.sections`).

    ValueError names the trust models under which a setting has a meaning that has none under this one.
    """
    kind = trust_model(trust, sketch=sketch).sections.get(section, TAGGED[section][0])
    if type(raw) is kind:
        return raw
    settings = raw.model_dump(exclude_unset=True) if isinstance(raw, Section) else raw
    return kind.model_validate(_without_foreign(section, settings, trust)) if isinstance(settings, Mapping) else raw


def _without_foreign(section: str, settings: Mapping[str, Any], trust: str, *, prefix: str = "") -> dict[str, Any]:
    """Return a section's settings without those of other trust models at their defaults; ValueError for others."""
    foreign = meaningless(section, settings, trust)
    for name, fields in foreign.items():
        if _plain(settings[name]) not in [field.default for field in fields.values()]:
            raise ValueError(
                f"{prefix}{name} is {settings[name]!r}, which has no meaning under privacy.trust {trust!r}, and has "
                f"one under {' and '.join(map(repr, fields))}: leave it out, or choose that trust model"
            )
    return {name: value for name, value in settings.items() if name not in foreign}


def meaningless(section: str, names: Iterable[str], trust: str) -> dict[str, dict[str, FieldInfo]]:
    """Return the settings of a section that other trust models alone read, with their fields under each of those."""
    read_here = trust_model(trust).sections.get(section, TAGGED[section][1]).model_fields
    declared = {model.name: model.sections.get(section, Section) for _, model in trust_models().items()}
    known = {name: kind.model_fields for name, kind in declared.items()}
    foreign = {
        name: {trust: fields[name] for trust, fields in known.items() if name in fields}
        for name in names
        if name not in read_here
    }
    return {name: fields for name, fields in foreign.items() if fields}


def without_unread(raw: Mapping[str, Any], *, trust: str | None, task: str | None) -> dict[str, Any]:
    """Return settings without those that a newly chosen trust model or task leaves unread, whatever their values."""
    unread: dict[str, set[str]] = {}
    if trust is not None and trust in trust_models():
        unread |= {name: set(meaningless(name, raw[name], trust)) for name in TAGGED if _is_section(raw, name)}
    if task is not None and task in TASKS:
        for section, names in TASKS.get(task).facts.unread.items():
            unread[section] = unread.get(section, set()) | set(names)
    sections = {name: raw[name] for name in unread if _is_section(raw, name)}
    return {
        **raw,
        **{
            section: {name: value for name, value in settings.items() if name not in unread[section]}
            for section, settings in sections.items()
        },
    }


def _is_section(raw: Mapping[str, Any], name: str) -> bool:
    return isinstance(raw.get(name), Mapping)
