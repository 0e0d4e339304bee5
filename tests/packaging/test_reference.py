"""Laws of the reference: it has every setting, verb, option and message as they are now."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import pytest
import typer
from pydantic import BaseModel

from fedsw.cli.app import app
from fedsw.experiment import Experiment
from fedsw.experiment.trust import trust_models
from fedsw.federation.messages import EXCHANGES
from fedsw.federation.messages.codec import fields_of
from tests.site.pages import BUILT, REFERENCE, ROOT, built

MOST_LINES = 120


def part(page: str, heading: str) -> str:
    """What stands below a heading, up to the next."""
    _, found, rest = built(page).partition(f"\n## {heading}\n")
    assert found, (page, heading)
    return rest.partition("\n## ")[0]


def sections(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    yield f"`[{above}]`" if above else "At the top", model
    for name, field in model.model_fields.items():
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from sections(inner, f"{above}.{name}".strip("."))


def test_every_setting_has_its_row_in_its_section_and_sections_of_trust_models_name_them():
    parts = set(re.findall(r"^## `\[(?:\w+\.)*(\w+)\]`", built("docs/reference/settings.md"), flags=re.M))
    for heading, model in sections(Experiment):
        rows = re.findall(r"^\| `(\w+)` \|", part("docs/reference/settings.md", heading), flags=re.M)
        nested = {name for name in model.model_fields if name in parts}
        assert set(model.model_fields) - nested <= set(rows) <= set(model.model_fields), heading
    headings = re.findall(r"^## (`\[\w+\]` where .*)$", built("docs/reference/settings.md"), flags=re.M)
    for name, model in trust_models().items():
        if type(model).__module__.startswith("fedsw."):
            for section in model.sections:
                assert any(each.startswith(f"`[{section}]`") and f"`{name}`" in each for each in headings)


def test_every_verb_has_its_part_with_every_option():
    def below(command: click.Command, words: str) -> Iterator[tuple[str, click.Command]]:
        for name, inner in getattr(command, "commands", {}).items():
            yield f"{words} {name}", inner
            yield from below(inner, f"{words} {name}")

    verbs = dict(below(typer.main.get_command(app), "fedsw"))
    assert len(verbs) > 20
    for words, command in verbs.items():
        text = part("docs/reference/commands.md", words)
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in text, (words, option.opts)


def test_every_field_of_every_message_has_its_row():
    for exchange in EXCHANGES:
        text = part("docs/reference/messages.md", f"`{exchange.kind}`")
        for field in (*fields_of(exchange.down).values(), *fields_of(exchange.up).values()):
            assert f"| `{field.record}` `{field.name}` |" in text, (exchange.kind, field.name)


def test_built_pages_are_in_no_commit_and_the_site_writes_them_before_it_looks_for_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {f"/{name}" for name in BUILT} <= set(ignored)
    conf = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    assert conf.index("reference.main()") < conf.index("_ANCHORS = ")
    made: dict[str, Any] = {"built/a.md": lambda: "one", "built/b.md": lambda: "two"}
    monkeypatch.setattr(REFERENCE, "ROOT", tmp_path)
    monkeypatch.setattr(REFERENCE, "PAGES", made)
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "a.md").write_text("older", encoding="utf-8")
    REFERENCE.main()
    assert [(tmp_path / name).read_text(encoding="utf-8") for name in made] == ["one", "two"]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < MOST_LINES
