"""The way of every setting from the command to the end of the first round, and of a record through one round.

    python -m benchmarks.ways

A file is entered when its code reads the setting, and returned to when it reads it again after another file did. What
goes on under another name (a plan's noise multiplier, a clip's radius) is no longer the setting. A record's way is that
of its values, from its client's draw to the step of the optimizer: files with a function that is called with them, or
with a tensor made of them.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import fedsw
import fedsw.experiment.sections as sections
from benchmarks.machine import describe
from fedsw.experiment import load_experiment
from fedsw.experiment.load import find_experiment

RESULT = Path(__file__).parent / "results" / "ways.json"
TINY = ("training.rounds=1", "data.records=300", "data.test_records=60", "federation.clients=2")
EXPERIMENTS = ("fair-classification", "fair-regression", "ring")
TRUSTS = {"fair-classification": ("central", "local-gradient"), "fair-regression": ("central",), "ring": ("central",)}


def ways(name: str, trust: str) -> dict[str, list[str]]:
    """For every setting that one tiny run reads, the files that read it, in order, repeats of a file left out."""
    from fedsw.federation.engines.driver import run

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


def record_way() -> list[str]:
    """The files that a record's values enter in one round of one client, in order, repeats of a file left out."""
    import torch

    from fedsw.data import Records
    from fedsw.federation.engines.driver import run

    carriers = ("Bounded", "Aggregate", "Tape", "Batch", "Term")
    package, way, going = str(Path(fedsw.__file__).parent), [], [False]

    def carries(value: object) -> bool:
        if isinstance(value, list | tuple) and value:
            return isinstance(value[0], torch.Tensor)
        return isinstance(value, Records | torch.Tensor) or type(value).__name__ in carriers

    def look(frame: FrameType, event: str, _: object) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if event != "call" or not file.startswith(package):
            return
        if (name, Path(file).name) in (("draw", "node.py"), ("step", "trainer.py")):
            going[0] = name == "draw"
        if going[0] and any(map(carries, list(frame.f_locals.values())[:8])):
            room = file[len(package) + 1 :]
            if not way or way[-1] != room:
                way.append(room)

    one = (*TINY, "federation.clients=1", "federation.min_clients=1")
    experiment = load_experiment(find_experiment("fair-classification"), one)
    with tempfile.TemporaryDirectory() as folder:
        threading.setprofile(look)
        sys.setprofile(look)
        try:
            run(experiment, runs=Path(folder))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    return way


def longest(found: dict[str, list[str]]) -> tuple[str, int, int]:
    """The setting with the longest way: its name, files entered, returns."""
    name = max(found, key=lambda setting: len(set(found[setting])))
    return name, len(set(found[name])), len(found[name]) - len(set(found[name]))


def main() -> None:
    """Measure, print and store."""
    rows = []
    for name in EXPERIMENTS:
        for trust in TRUSTS[name]:
            found = ways(name, trust)
            setting, files, returns = longest(found)
            mean = sum(len(set(way)) for way in found.values()) / len(found)
            rows.append(
                {"experiment": name, "trust": trust, "settings": len(found), "longest": setting, "files": files,
                 "returns": returns, "mean_files": round(mean, 2), "way": found[setting]}
            )  # fmt: skip
            print(f"{name:20} {trust:15} {setting:28} files {files:2}  returns {returns:2}  mean {mean:.2f}")
    way = record_way()
    record = {"files": len(set(way)), "returns": len(way) - len(set(way)), "way": list(dict.fromkeys(way))}
    print(f"{'a record':36} files {record['files']}  returns {record['returns']}")
    RESULT.write_text(
        json.dumps({"machine": describe(), "rows": rows, "record": record}, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
