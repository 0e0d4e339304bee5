"""One malformed input, the files that it begins with, and how a command line ends with it."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedsw.cli.app import main as fedsw


@dataclass(frozen=True)
class Case:
    """One malformed input.

    Attributes:
        what: the fault, in words.
        command: the words after `fedsw`.
        prepare: makes the files of the case in the current directory.
        named: what the message must name.
    """

    what: str
    command: str
    prepare: Callable[[], object]
    named: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How a command line ended: its exit code, what it wrote, and the ledgers that appeared."""

    code: int
    output: str
    error: str
    ledgers: tuple[str, ...]


def invoke(command: str) -> Outcome:
    """Run a command line in the current directory."""
    before = set(Path.cwd().rglob("*.sqlite"))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = fedsw(command.split())
    new = sorted(path.name for path in set(Path.cwd().rglob("*.sqlite")) - before)
    here = f"{Path.cwd()}/"
    return Outcome(code, out.getvalue().replace(here, ""), err.getvalue().replace(here, ""), tuple(new))


@contextlib.contextmanager
def folder() -> Iterator[None]:
    """A fresh current directory; wide enough for messages in one line."""
    before, kept = Path.cwd(), {name: os.environ.get(name) for name in ("COLUMNS", "FEDSW_ACCOUNTS")}
    with tempfile.TemporaryDirectory() as fresh:
        os.chdir(fresh)
        os.environ |= {"COLUMNS": "1000", "FEDSW_ACCOUNTS": f"{fresh}/accounts"}
        try:
            yield
        finally:
            os.chdir(before)
            for name, value in kept.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def outcome_of(case: Case) -> Outcome:
    """Prepare a case in a folder of its own and run it."""
    with folder():
        case.prepare()
        return invoke(case.command)


OWN = """
name = "own"
[data]
source = "files"
data_dir = "data"
[data.columns]
features = [{name = "age", low = 0, high = 100}, {name = "work", categories = ["private", "public"]}]
sensitive = {name = "sex", values = ["female", "male"]}
target = {name = "income", values = ["low", "high"]}
[training]
rounds = 2
[privacy]
noise_multiplier = 2.0
delta = 1e-5
[federation]
clients = 2
"""
IMAGES = """
name = "images"
[data]
source = "files"
data_dir = "data"
[data.columns]
features = [{name = "pixel", count = 64, low = 0, high = 255}]
target = {name = "kind", values = [0, 1]}
[model]
kind = "generator"
[objective]
task = "generation"
penalty = "distribution-matching"
alpha = 1.0
[federation]
clients = 2
"""
HEADER = ["age", "work", "sex", "income"]


def rows(count: int = 40) -> list[list[object]]:
    work, sex, income = ("private", "public"), ("female", "male"), ("low", "high")
    return [[20 + i, work[i % 2], sex[i // 2 % 2], income[i % 2]] for i in range(count)]


def table(*changes: tuple[int, int, object], count: int = 40, header: list[str] = HEADER) -> Callable[[], None]:
    """own.toml and data/train.csv, with cells (record, column, value) replaced."""

    def prepare() -> None:
        Path("own.toml").write_text(OWN)
        Path("data").mkdir()
        cells = rows(count)
        for record, column, value in changes:
            cells[record][column] = value
        with Path("data/train.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *(row[: len(header)] for row in cells)])

    return prepare


def edited(*changes: tuple[str, str], cell: tuple[int, int, object] = (0, 0, 20)) -> Callable[[], None]:
    """The same as `table`, with texts of own.toml replaced, and a cell."""

    def prepare() -> None:
        table(cell)()
        text = OWN
        for before, after in changes:
            assert before in text, before
            text = text.replace(before, after)
        Path("own.toml").write_text(text)

    return prepare


def limited() -> None:
    """own.toml and its table, and an account of the data set `people` with next to no room."""
    from fedsw.privacy.accounting.lifetime import DatasetAccount, accounts_folder

    table()()
    DatasetAccount(accounts_folder(), "people").limit(0.1, 1e-6)


def folders(*numbers: int, spoiled: bool = False) -> Callable[[], None]:
    """own.toml and data/0, data/1, ... with a train.csv each; a cell of the last one may be none."""

    def prepare() -> None:
        table()()
        Path("data/train.csv").unlink()
        for number in numbers:
            Path(f"data/{number}").mkdir()
            cells = rows()
            cells[7][0] = "x" if spoiled and number == numbers[-1] else 30 + number
            with Path(f"data/{number}/train.csv").open("w", newline="") as file:
                csv.writer(file).writerows([HEADER, *cells])

    return prepare


def visits(*changes: tuple[int, int, object], held: int = 0) -> Callable[[], None]:
    """Tables of persons with two rows each, with cells (record, column, value) replaced; the server's has `held`."""

    def prepare() -> None:
        table()()
        cells = [[*row[:2], ("female", "male")[i // 2 % 2], row[3], f"p{i // 2}"] for i, row in enumerate(rows())]
        for record, column, value in changes:
            cells[record][column] = value
        other = [[80, *row[1:4], row[4] if i < 2 * held else f"h{i}"] for i, row in enumerate(cells[:8])]
        for name, found in (("data/train.csv", cells), ("held-out.csv", other)):
            with Path(name).open("w", newline="") as file:
                csv.writer(file).writerows([[*HEADER, "patient"], *found])

    return prepare


def shared_visits(*, copied: bool = False) -> Callable[[], None]:
    """Two clients' tables of the same persons, whose rows have another order at the second or are ``copied``."""

    def prepare() -> None:
        visits()()
        whole = Path("data/train.csv")
        header, *lines = whole.read_text().splitlines()
        for client, rows_of in (("0", lines), ("1", lines if copied else lines[::-1])):
            Path("data", client).mkdir()
            Path("data", client, whole.name).write_text("\n".join([header, *rows_of]) + "\n")
        whole.unlink()

    return prepare


def semicolons() -> None:
    table()()
    path = Path("data/train.csv")
    path.write_text(path.read_text().replace(",", ";"))


def one_group() -> None:
    table(*((record, 2, "female") for record in range(40)))()


def held_out(private: int) -> Callable[[], None]:
    """The same, and held-out.csv with that many of its 10 rows private."""

    def prepare() -> None:
        table()()
        cells = [[20.5 + i if i >= private else 20 + i, *row[1:]] for i, row in enumerate(rows(10))]
        with Path("held-out.csv").open("w", newline="") as file:
            csv.writer(file).writerows([HEADER, *cells])

    return prepare


def images() -> None:
    Path("images.toml").write_text(IMAGES)
    Path("data").mkdir()
    pixels = np.zeros((10, 8, 8), dtype=np.uint8)
    Path("data/train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, *pixels.shape) + pixels.tobytes())
    Path("data/train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, 10) + bytes(10))
    cut("data/train-images-idx3-ubyte", 0.5)


def cut(path: str, kept: float) -> None:
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[: int(kept * len(content))])


def written(name: str, text: str) -> Callable[[], object]:
    return lambda: Path(name).write_text(text)


def nothing() -> None:
    """No file is needed."""


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
