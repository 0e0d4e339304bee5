"""Write the pages that are built: settings, commands, messages, what was measured, and the papers, figure by figure.

    .venv/bin/python .ci/reference.py

They are in no commit; docs/conf.py writes them before the site is made. Settings are those of the schema,
with what the sections' docstrings say; commands those of the parser; messages those of the table that both sides encode
and decode by; measured numbers are those of the stored results.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import click
import typer
from pydantic import BaseModel

from fedsw._tools import exits
from fedsw._tools.text import json_text, table
from fedsw.cli.app import app
from fedsw.experiment import Experiment
from fedsw.experiment.trust import NoGuarantee, trust_models
from fedsw.federation.messages import EXCHANGES, Exchange, trusts_of
from fedsw.federation.messages.codec import (
    SEEN,
    SYMBOLS,
    ArrayField,
    Field,
    Limits,
    Message,
    NumberField,
    Text,
    fields_of,
)

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for what is not installed

from benchmarks import tables  # noqa: E402
from simulations.papers import compared  # noqa: E402
from simulations.papers.__main__ import COMMITTED  # noqa: E402
from simulations.papers.figure import chosen, figures  # noqa: E402
from simulations.papers.page import page_text  # noqa: E402
from simulations.papers.study import Study, read_study  # noqa: E402

_FIELDS = ("", "field", "what it is", "type and shape", "believed", "who may see it", "travels")
HEAD = "*Written by `.ci/reference.py`.*"
MESSAGES = """\
# Messages

Every message between a server and a client, field by field. Both sides encode and decode by this table,
`fedsw/federation/messages/`, and reject a missing or additional key, another type or shape, and a number outside its
limits.

A field is in the record, under the key, that its second column names. Every array begins with the key of the stream
that its numbers are mixed with, so equal arrays are never equal bytes. Arrays of `float` have the run's
`training.precision`. Between real processes a request also has a record `origin`, which is public: the run's name, 128
random bits, a count, and the server's signature over them and all the rest ([security](../security.md#on-the-wire))."""
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<", "maxItems": "items ≤"}


def settings() -> str:
    """Every section of an experiment's file: what its docstring says, and a row for each setting."""
    parts = ["# Settings", HEAD, "Every setting of an experiment's TOML file, section by section."]
    for heading, section in [*_sections(Experiment), *_of_trust_models()]:
        schema = section.model_json_schema()
        rows = [
            [f"`{name}`", _kind(about, schema), _default(about), _limits(about)]
            for name, about in schema.get("properties", {}).items()
            if not _is_section(section.model_fields[name].annotation)
        ]
        said = _markdown(inspect.getdoc(section) or "")
        parts += [f"## {heading}", said, *([table(("setting", "kind", "default", "limits"), rows)] if rows else [])]
    return "\n\n".join(parts) + "\n"


def _of_trust_models() -> Iterator[tuple[str, type[BaseModel]]]:
    """What trust models make of a section, each class once with the trust models that have it."""
    shipped = [model for model in trust_models().values() if type(model).__module__.startswith("fedsw.")]
    kinds = dict.fromkeys((name, kind) for model in shipped for name, kind in model.sections.items())
    for name, kind in kinds:
        theirs = [f"`{model.name}`" for model in shipped if model.sections.get(name) is kind]
        yield f"`[{name}]` where `privacy.trust` is {' or '.join(theirs)}", kind


def _sections(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """A section and those below it, each with what stands for it in the file."""
    yield (f"`[{above}]`" if above else "At the top"), model
    for name, field in model.model_fields.items():
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _sections(inner, f"{above}.{name}".strip("."))


def _is_section(kind: Any) -> bool:
    """Whether a setting is a section of its own, or may be one."""
    kinds = (kind, *get_args(kind))
    return any(isinstance(each, type) and issubclass(each, BaseModel) for each in kinds)


def _markdown(text: str) -> str:
    """A docstring's paragraphs, its attributes as a list."""
    text = text.replace("Attributes:\n", "\n")
    text = re.sub(r"(?m)^ {4}(\w[\w, ]*): ", r"- `\1`: ", text)
    text = re.sub(r"(?m)^ {8}", "  ", text)
    return re.sub(r"\n\s*\n", "\n\n", text).strip()


def _kind(about: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "$ref" in about:
        return _kind(schema["$defs"].get(about["$ref"].rsplit("/", 1)[-1], {"type": "table"}), schema)
    if options := about.get("anyOf"):
        return " or ".join(dict.fromkeys(_kind(each, schema) for each in options))
    if "enum" in about or "const" in about:
        return ", ".join(json_text(each, indent=None) for each in about.get("enum", [about.get("const")]))
    if about.get("type") == "array":
        return f"list of {_kind(about.get('items', {}), schema)}"
    return {"null": "nothing", "object": "table", "string": "text"}.get(
        str(about.get("type", "any")), str(about.get("type", "any"))
    )


def _default(about: Mapping[str, Any]) -> str:
    if "default" not in about:
        return "required"
    return "–" if about["default"] is None else f"`{json_text(about['default'], indent=None)}`"


def _limits(about: Mapping[str, Any]) -> str:
    parts = [about, *about.get("anyOf", ())]
    return ", ".join(
        dict.fromkeys(f"{sign} {each[name]:g}" for each in parts for name, sign in _LIMITS.items() if name in each)
    )


def commands() -> str:
    """Every verb: how it is used, what it does, its arguments and options."""
    parts = ["# Commands", HEAD, "Every verb with every option, as `fedsw VERB --help` shows it."]
    for words, command in _verbs(typer.main.get_command(app), "fedsw"):
        context = click.Context(command, info_name=words)
        parts += [f"## {words}", f"`{' '.join([words, *command.collect_usage_pieces(context)])}`"]
        parts += [_markdown(inspect.cleandoc(command.help or ""))]
        rows = [found for each in command.params if (found := each.get_help_record(context))]
        if rows:
            parts += [
                table(
                    ("option", "what it does"),
                    [(f"`{name}`", " ".join(text.split()).replace("\\[", "[")) for name, text in rows],
                )
            ]
    parts += ["## Exit codes", "By what was spent, the same for every verb:"]
    parts += [table(("exit code", "what happened", "what was spent"), exits.rows())]
    return "\n\n".join(parts) + "\n"


def _verbs(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
    """A command and the verbs below it; `fedsw` itself is none."""
    if words != "fedsw":
        yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _verbs(below, f"{words} {name}")


def messages() -> str:
    """Every exchange and its fields, with the lengths and the readers that they name."""
    symbols = table(("symbol", "length"), [(f"`{name}`", meaning) for name, meaning in SYMBOLS.items()])
    seen = table(("who may see it", "what"), [(each.value, meaning) for each, meaning in SEEN.items()])
    about = "The words of the last column but one:"
    parts = [MESSAGES, *map(_exchange, EXCHANGES), "Lengths in shapes:", symbols, about, seen]
    return "\n\n".join(parts) + "\n"


def _exchange(exchange: Exchange[Message, Message]) -> str:
    trusts = ", ".join(f"`{trust}`" for trust in trusts_of(exchange))
    rows = [_row("down", field) for field in fields_of(exchange.down).values()]
    rows += [_row("up", field) for field in fields_of(exchange.up).values()]
    about = " ".join((inspect.getdoc(exchange.down) or "").split())
    return f"## `{exchange.kind}`\n\nUnder {trusts}. {about}\n\n{table(_FIELDS, rows)}"


def _row(way: str, field: Field) -> tuple[str, ...]:
    believed = _believed(field) + ("; left out where it is something else" if field.spare else "")
    travels = "always" if field.when is None else field.when.text
    where = f"`{field.record}` `{field.name}`"
    return way, where, field.about, _shape(field), believed, field.seen.value, travels


def _shape(field: Field) -> str:
    """A field's type and shape."""
    if isinstance(field, ArrayField):
        precision = "float" if field.precision == "run" else field.precision
        if field.by_cell:
            return f"{precision} ({field.shape}_j) under the number of every cell j"
        return f"{precision} ({', '.join(field.shape.split())})"
    if not isinstance(field, NumberField):
        return "text"
    return field.kind.__name__ + ("" if field.count is None else f"s ({field.count})")


def _believed(field: Field) -> str:
    """The values of a field that are accepted."""
    if isinstance(field, Text):
        return field.form or f"at most {Limits(field.most, field.most)} letters"
    if isinstance(field, NumberField):
        if field.promised is None:
            return str(field.limits)
        return f"{field.limits}; without noise {Limits(*getattr(NoGuarantee, field.promised))}"
    assert isinstance(field, ArrayField)
    if field.limits is not None:
        return str(field.limits)
    return "; ".join(["finite"] * field.finite + [f"rows filled with zeros to {field.shape.split()[0]}"] * field.filled)


@functools.cache
def _studies() -> list[Study]:
    return [read_study(COMMITTED, figure) for figure in chosen(figures())]


def figure_settings() -> str:
    """The settings of every figure of the papers, the paper's beside those of the stored runs."""
    return compared.page_text(_studies())


def paper(name: str) -> str:
    """A paper, figure by figure."""
    pages = ROOT / "docs" / "papers"
    studies = [study for study in _studies() if study.figure.paper == name]
    return page_text(name, studies, pages / "images", pages / f"{name}.md")


PAPERS = tuple(dict.fromkeys(name.partition("/")[0] for name in figures()))


PAGES: Mapping[str, Callable[[], str]] = {
    "docs/reference/settings.md": settings,
    "docs/reference/commands.md": commands,
    "docs/reference/messages.md": messages,
    "docs/papers/settings.md": figure_settings,
    **{f"docs/papers/{name}.md": functools.partial(paper, name) for name in PAPERS},
    **tables.PAGES,
}
"""Every page that is built, and what makes its text."""


def main() -> None:
    """Write the pages; one that is there with the same text keeps its time, so that the site does not read it again."""
    for name, text in PAGES.items():
        path, made = ROOT / name, text()
        if not path.exists() or path.read_text(encoding="utf-8") != made:
            path.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
