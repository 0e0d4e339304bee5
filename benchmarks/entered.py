"""How much of fedsw is entered by what one does most: files, rooms, and returns between rooms.

    python -m benchmarks.entered [--json]

A file counts as entered when a function of it is called (`sys.setprofile`, in all threads); what imports run does not
count, except where a command is all that a process does: there functions, and bodies of classes, count too. The walk opens each file when it is first entered, and a
return is a step of it to a room that it had left. A climb is a call from `learning/sketches` into `learning/models`, or
back. Prints a table; `--json` also writes benchmarks/results/entered.json.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

PACKAGE = Path(__file__).parents[1] / "fedsw"
RESULT = Path(__file__).parent / "results" / "entered.json"
GOALS = {"first": (1800, 180), "central": 90, "refused": 8, "page": (8, 10), "climbs": 20}
"""Most functions and files of a command, most files of a run and of a refusal, most rooms and returns of a
page, and most climbs of a sketch."""

REFUSED: Mapping[str, str] = {
    "a key that no section has": "training.rouds=3",
    "a value beyond its limit": "training.momentum=1.5",
    "a setting of another task": 'data.public="mnist"',
    "a setting of another trust model": "local.colluding=2",
    "a setting of another model": "model.knots=3",
    "two sections that do not go together": 'clip.mode="none"',
    "a name that nothing has": 'model.kind="transformer"',
}
"""Settings of the shipped experiment `fair-classification` that are refused, by why."""


@dataclass
class Walk:
    """The files of fedsw in the order in which they were first entered, its functions, and calls between two folders."""

    files: list[str] = field(default_factory=list)
    functions: set[tuple[str, str]] = field(default_factory=set)
    climbs: int = 0

    @property
    def rooms(self) -> list[str]:
        """The room of each step of the walk; a room that follows itself is there once."""
        steps = [name.partition("/")[0] for name in self.files]
        return [room for step, room in enumerate(steps) if not step or room != steps[step - 1]]

    @property
    def returns(self) -> int:
        """Steps to a room that the walk had left."""
        return len(self.rooms) - len(set(self.rooms))

    @property
    def folders(self) -> int:
        """Folders with a file that was entered."""
        return len({Path(name).parent for name in self.files})


@contextlib.contextmanager
def watched(
    between: tuple[str, str] = ("learning/sketches", "learning/models"), *, imports: bool = False
) -> Iterator[Walk]:
    """Follow all calls of Python functions until the block ends; what imports run is followed where `imports` says so."""
    walk, seen, names = Walk(), set[str](), dict[str, str | None]()

    def name_of(filename: str) -> str | None:
        if filename not in names:
            path = Path(filename)
            names[filename] = path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else None
        return names[filename]

    def follow(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (name := name_of(frame.f_code.co_filename)) is None:
            return
        if frame.f_code.co_name == "<module>" or not imports and _is_imported(frame):
            return
        walk.functions.add((name, frame.f_code.co_qualname))
        if name not in seen:
            seen.add(name)
            walk.files.append(name)
        caller = frame.f_back and name_of(frame.f_back.f_code.co_filename)
        if caller:
            sides = [next((side for side in between if of.startswith(f"{side}/")), None) for of in (caller, name)]
            walk.climbs += None not in sides and sides[0] != sides[1]

    threading.setprofile(follow)
    sys.setprofile(follow)
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def _is_imported(frame: FrameType | None) -> bool:
    """True for code that a module runs while it is imported, the bodies of its classes among it."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__spec__") is not None:
            return str(frame.f_globals.get("__name__")) != "__main__"
        frame = frame.f_back
    return False


def table_of(clients: int, rows: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A small table for each client, and the settings of a run on them."""
    generator = np.random.default_rng(0)
    groups = ["a", "b"]
    tables = [
        {
            "x": generator.uniform(-1, 1, rows),
            "y": generator.integers(0, 2, rows).astype(str),
            "g": generator.choice(groups, rows),
        }
        for _ in range(clients)
    ]
    columns = {
        "features": [{"name": "x", "low": -1.0, "high": 1.0}],
        "target": {"name": "y", "values": ["0", "1"]},
        "sensitive": {"name": "g", "values": groups},
    }
    settings = {
        "name": "entered",
        "data": {"source": "object", "columns": columns},
        "federation": {"clients": clients},
        "training": {"rounds": 2, "batch_fraction": 0.5},
        "privacy": {"trust": "central", "delta": 1e-4},
        "evaluate_every": 2,
    }
    return tables, settings


def central(folder: Path) -> tuple[Walk, Path]:
    """A run of two rounds under `central` with three clients in process, and its folder."""
    from fedsw import run

    tables, settings = table_of(3, 200)
    with watched() as walk:
        directory = run(settings, runs=folder, data=tables).directory
    return walk, directory


def first() -> dict[str, int]:
    """Functions and files of a shipped experiment's two rounds, by the command, as all that a process does."""
    program = "import json; from benchmarks.entered import command_alone; print(json.dumps(command_alone()))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def command_alone() -> dict[str, int]:
    """What `fedsw run` enters once the command line is imported, with all that it then imports."""
    from fedsw.cli.app import main as command

    with tempfile.TemporaryDirectory() as folder, watched(imports=True) as walk:
        command(["run", "fair-classification", "training.rounds=2", "--quiet", "--runs", folder])
    return {"functions": len(walk.functions), "files": len(walk.files)}


def refused(setting: str) -> Walk:
    """A setting that is refused when the experiment is read."""
    from fedsw._tools.settings import ExperimentError
    from fedsw.experiment import load_experiment

    with watched() as walk:
        try:
            load_experiment("fair-classification", [setting])
        except ExperimentError:
            return walk
    raise AssertionError(f"{setting} was not refused")


def page(directory: Path, folder: Path) -> Walk:
    """The page of a run that has ended, by the command."""
    from fedsw.cli.app import main as command

    with watched() as walk, contextlib.redirect_stdout(io.StringIO()):
        code = command(["report", str(directory), "-o", str(folder / "page.html"), "--force"])
    if code:
        raise AssertionError(f"no page of {directory}: fedsw report ended with {code}")
    return walk


def sketch(folder: Path) -> Walk:
    """One sketch of digits, and a generator that takes two steps."""
    from fedsw import run

    with watched() as walk:
        run("sketch-digits", "training.rounds=2", "sketch.generated=100", "evaluation.records=100", runs=folder)
    return walk


def measure() -> dict[str, Any]:
    """All of it; each is done once before, so that nothing is imported while it is followed."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _, directory = central(folder)
        walk, directory = central(folder)
        page(directory, folder)
        paged = page(directory, folder)
        refusals = {reason: [refused(setting), refused(setting)][-1] for reason, setting in REFUSED.items()}
        sketched = sketch(folder)
    return {
        "first": first(),
        "central": {"files": len(walk.files), "folders": walk.folders, "names": walk.files},
        "refused": {reason: {"files": len(seen.files), "names": seen.files} for reason, seen in refusals.items()},
        "page": {"rooms": len(set(paged.rooms)), "returns": paged.returns, "walk": paged.rooms, "names": paged.files},
        "climbs": sketched.climbs,
    }


def rows(measured: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What was done, how much was entered, and the goal."""
    first_, run_, paged = measured["first"], measured["central"], measured["page"]
    functions, files = GOALS["first"]
    yield (
        "fair-classification, two rounds, by the command",
        f"{first_['functions']} functions in {first_['files']} files",
        f"{functions}, {files}",
    )
    yield (
        "central, two rounds, three clients",
        f"{run_['files']} files in {run_['folders']} folders",
        f"{GOALS['central']} files",
    )
    for reason, walk in measured["refused"].items():
        yield f"refused: {reason}", f"{walk['files']} files", f"{GOALS['refused']} files"
    rooms, returns = GOALS["page"]
    yield "from a run to its page", f"{paged['rooms']} rooms, {paged['returns']} returns", f"{rooms}, {returns}"
    yield "a sketch between its maps and models", f"{measured['climbs']} climbs", str(GOALS["climbs"])


def main() -> None:
    """Measure, print a table, and write the JSON where that is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help=f"also write {RESULT.name}")
    options = parser.parse_args()
    measured = measure()
    table = Table("what is done", "entered", "at most")
    for row in rows(measured):
        table.add_row(*row)
    Console().print(table)
    if options.json:
        RESULT.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
