"""The table of mutants: small patches, each of which breaks one thing that a guarantee rests on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

TABLES = Path(__file__).parent / "table"


class BadMutant(ValueError):
    """A mutant that is none any more: its text is gone, or its tests are."""


@dataclass(frozen=True)
class Mutant:
    """One small patch and the tests that should notice it.

    Attributes:
        name: the law broken, in a few words.
        subject: the table it stands in.
        breaks: one sentence, what would be wrong.
        file: the file that is patched.
        old: the text that goes; it occurs exactly once.
        new: the text in its place.
        tests: paths or node ids, the likeliest to notice first.
        always: whether every sample holds it.
    """

    name: str
    subject: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    always: bool = False

    def applied(self, text: str) -> str:
        """The patched text of its file.

        Raises:
            BadMutant: unless the old text occurs exactly once.
        """
        found = text.count(self.old)
        if found != 1 or self.old == self.new:
            raise BadMutant(f"{self.name}: its text occurs {found} times in {self.file}, once is needed:\n{self.old}")
        return text.replace(self.old, self.new)

    def check(self, root: Path) -> None:
        """Refuse a mutant that does not apply to a tree, or whose tests are not there.

        Raises:
            BadMutant: naming it and what is missing.
        """
        path = root / self.file
        if not path.is_file():
            raise BadMutant(f"{self.name}: {self.file} is gone")
        self.applied(path.read_text(encoding="utf-8"))
        for test in self.tests:
            name, _, function = test.partition("::")
            if not (root / name).exists():
                raise BadMutant(f"{self.name}: its tests {name} are gone")
            function = function.partition("[")[0]
            if function and not re.search(rf"^def {function}\(", (root / name).read_text(encoding="utf-8"), re.M):
                raise BadMutant(f"{self.name}: {name} has no test {function}")
        if not self.tests:
            raise BadMutant(f"{self.name}: no test should notice it")


def read(folder: Path = TABLES) -> list[Mutant]:
    """All mutants, by subject.

    Raises:
        BadMutant: if two have one name.
    """
    found = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            found.append(Mutant(subject=path.stem, **{**entry, "tests": tuple(entry["tests"])}))
    names = [mutant.name for mutant in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadMutant(f"two mutants are called {', '.join(twice)}")
    return found


def checked(mutants: Iterable[Mutant], root: Path) -> list[str]:
    """What is wrong with mutants on a tree; empty if all apply and have their tests."""
    wrong = []
    for mutant in mutants:
        try:
            mutant.check(root)
        except BadMutant as fault:
            wrong.append(str(fault))
    return wrong


def sample(mutants: Sequence[Mutant], size: int, turn: int) -> list[Mutant]:
    """Those that every sample holds, and the next `size` of the others: every turn goes on where the last one ended."""
    others = [mutant for mutant in mutants if not mutant.always]
    chosen = {others[(turn * size + i) % len(others)].name for i in range(min(size, len(others)))} if others else set()
    return [mutant for mutant in mutants if mutant.always or mutant.name in chosen]
