"""The way of a setting is short: no setting of a run is read in more than ten files before the first round is over."""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fedsw
import fedsw.experiment.sections as sections
from fedsw.experiment import load_experiment
from fedsw.experiment.load import find_experiment
from fedsw.federation.engines.driver import run

TINY = ("training.rounds=1", "data.records=300", "data.test_records=60", "federation.clients=2")


def ways(name: str, trust: str) -> dict[str, list[str]]:
    """For every setting that one tiny run reads, the files that read it, in order, repeats of a file left out."""
    with tempfile.TemporaryDirectory() as folder, watched() as seen:
        epsilon = () if trust == "central" else ("privacy.epsilon=50",)
        experiment = load_experiment(find_experiment(name), (*TINY, f"privacy.trust={trust}", *epsilon))
        run(experiment, runs=Path(folder))
    return dict(seen)


@contextmanager
def watched() -> Iterator[dict[str, list[str]]]:
    """Every read of a setting, by "section.name", with the file of the code that read it."""
    seen: dict[str, list[str]] = defaultdict(list)
    fields = {}
    for section in vars(sections).values():
        if isinstance(section, type) and issubclass(section, sections.Section) and section is not sections.Section:
            fields[section] = frozenset(section.model_fields)
    package = str(Path(fedsw.__file__).parent)
    genuine = sections.Section.__getattribute__

    def reading(self: Any, name: str) -> Any:
        if name in fields.get(type(self), ()):
            file = sys._getframe(1).f_code.co_filename
            if file.startswith(package):
                way, room = seen[f"{type(self).__name__.lower()}.{name}"], file[len(package) + 1 :]
                if not way or way[-1] != room:
                    way.append(room)
        return genuine(self, name)

    sections.Section.__getattribute__ = reading  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        del sections.Section.__getattribute__


@pytest.mark.parametrize("trust", ["central", "local-gradient"])
def test_no_setting_enters_more_than_ten_files(trust):
    found = ways("fair-classification", trust)
    setting = max(found, key=lambda name: len(set(found[name])))
    assert len(set(found[setting])) <= 10, (setting, found[setting])
    assert len(found["training.batch_fraction"]) >= 1 and len(found) > 40
