"""The table of mutants: small patches, each of which breaks one thing that a guarantee rests on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.sources import NoPlace, Sources, changed

TABLES = Path(__file__).parent / "table"


class BadMutant(ValueError):
    """A mutant that is none any more: its function is gone, what it changes there, or its tests."""


@dataclass(frozen=True)
class Mutant:
    """One small change to a function and the tests that should notice it.

    Attributes:
        name: the law broken, in a few words.
        subject: the table it stands in.
        breaks: one sentence, what would be wrong.
        function: what is changed, wherever it stands: a function or class with those around it (`Account.charge`), or
            a name that a module or a class assigns; the end of its module's path and a colon before it tell it from
            another of that name.
        old: the expression, statements or text in it that go; found exactly once.
        new: what comes in their place.
        tests: paths or node ids, the likeliest to notice first.
    """

    name: str
    subject: str
    breaks: str
    function: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, sources: Sources) -> tuple[Path, str]:
        """The file that it changes, relative to the tree, and the changed text.

        Raises:
            BadMutant: unless its name says one definition, and its change one place there.
        """
        try:
            definition = sources.find(self.function)
            return definition.path, changed(definition, self.old, self.new)
        except NoPlace as fault:
            raise BadMutant(f"{self.name}: {fault}") from None

    def check(self, sources: Sources) -> None:
        """Refuse a mutant that does not apply to a tree, or whose tests are not there.

        Raises:
            BadMutant: naming it and what is missing.
        """
        self.applied(sources)
        for test in self.tests:
            name, _, function = test.partition("::")
            if not (sources.root / name).exists():
                raise BadMutant(f"{self.name}: its tests {name} are gone")
            function = function.partition("[")[0]
            if function and not re.search(
                rf"^def {function}\(", (sources.root / name).read_text(encoding="utf-8"), re.M
            ):
                raise BadMutant(f"{self.name}: {name} has no test {function}")
        if not self.tests:
            raise BadMutant(f"{self.name}: no test should notice it")


def read(folder: Path = TABLES) -> list[Mutant]:
    """All mutants, by subject.

    Raises:
        BadMutant: if two have one name, or one says what no mutant has.
    """
    found = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            if unknown := entry.keys() - Mutant.__dataclass_fields__.keys():
                raise BadMutant(
                    f"{entry['name']}: a mutant has no {', '.join(unknown)}, it names the `function` it changes"
                )
            found.append(Mutant(subject=path.stem, **{**entry, "tests": tuple(entry["tests"])}))
    names = [mutant.name for mutant in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BadMutant(f"two mutants are called {', '.join(twice)}")
    return found


def checked(mutants: Iterable[Mutant], root: Path) -> list[str]:
    """What is wrong with mutants on a tree; empty if all apply and have their tests."""
    wrong, sources = [], Sources(root)
    for mutant in mutants:
        try:
            mutant.check(sources)
        except BadMutant as fault:
            wrong.append(str(fault))
    return wrong
