"""Where runs are, and how a name on the command line becomes one."""

from __future__ import annotations

from pathlib import Path

from fedsw.runs.files import CONFIG
from fedsw.text import nearest


def find_run(name: str, runs: Path) -> Path:
    """The directory of a run: a path, a name under `runs`, or an experiment's name for its latest run.

    Raises:
        ValueError: if there is no such run, naming the nearest one.
    """
    for folder in (Path(name).expanduser(), runs / name):
        if is_run(folder):
            return folder
        if folder.is_dir() and (dated := sorted(child for child in folder.iterdir() if is_run(child))):
            return dated[-1]
    known = [str(child.relative_to(runs)) for child in sorted(runs.glob("*/*")) if is_run(child)]
    latest = f"the latest are {', '.join(known[-3:])}" if known else f"there are none under {runs}/"
    raise ValueError(f"no run at {name!r}; {nearest(name, known)}{latest}")


def is_run(folder: Path) -> bool:
    """Whether `folder` holds a run that was started."""
    return (folder / CONFIG).is_file()
