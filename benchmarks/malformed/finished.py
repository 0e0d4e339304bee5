"""Runs that have ended, with something amiss."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from benchmarks.malformed.case import folder, invoke
from benchmarks.malformed.inputs import table


def finished(spoil: Callable[[Path], object]) -> Callable[[], None]:
    """A finished run in runs/own/first, with one of its files spoiled."""

    def prepare() -> None:
        table()()
        outcome = invoke("run own.toml --quiet")
        assert outcome.code == 0, outcome.error
        (folder,) = Path("runs/own").iterdir()
        spoil(folder.rename("runs/own/first"))

    return prepare


def trained(*lines: str) -> Callable[[], None]:
    """What a finished run left but its ledger, in runs/own/first, and table.csv with these lines."""

    def prepare() -> None:
        table()()
        place = Path("runs/own/first")
        place.mkdir(parents=True)
        for name, content in _left_by_a_run().items():
            (place / name).write_bytes(content)
        Path("table.csv").write_text("\n".join(lines) + "\n")

    return prepare


@functools.cache
def _left_by_a_run() -> dict[str, bytes]:
    with folder():
        finished(lambda _: None)()
        place = Path("runs/own/first")
        return {name: (place / name).read_bytes() for name in ("config.json", "model.safetensors", "summary.json")}


def damage(folder: Path) -> None:
    path = folder / "ledger.sqlite"
    content = bytearray(path.read_bytes())
    content[: len(content) // 2] = bytes(len(content) // 2)
    path.write_bytes(content)


def unreadable(folder: Path) -> None:
    (folder / "config.json").write_text("{")
