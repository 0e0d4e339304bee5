"""`python -m tests.mutants`: apply each mutant to a copy, run the tests that should notice, print who did.

Whoever did must pass on a copy without a mutant: that is looked at last, and of those tests alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.mutants.table import Mutant, checked, read
from tests.mutants.trial import Nursery, Outcome, copies

ROOT = Path(__file__).parents[2]
_COLOURS = {"killed": "green", "survived": "bold red", "error": "bold red"}
_ALL_TESTS = 1200.0
"""Seconds that the tests which noticed a mutant may take together on a tree without one."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every mutant was killed, 1 if one survived, 2 if one says nothing."""
    asked = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = read()
    if wrong := checked(table, ROOT):
        console.print("\n".join(wrong), style="bold red", markup=False)
        return 2
    mutants = _chosen(table, asked.only)
    began, tests = time.monotonic(), list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    with contextlib.ExitStack() as stack:
        free: SimpleQueue[Nursery] = SimpleQueue()
        made, pool = stack.enter_context(copies(ROOT, asked.jobs)), stack.enter_context(ThreadPoolExecutor(asked.jobs))
        for nursery in pool.map(partial(Nursery, tests=tests), made):
            free.put(stack.enter_context(nursery))
        outcomes = {}
        for mutant, outcome in zip(mutants, pool.map(partial(_tried, free), mutants), strict=True):
            outcomes[mutant.name] = outcome
            console.print(
                f"{outcome.seconds:5.1f} s  {outcome.verdict:8s} {mutant.name}  {outcome.by}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
        if not asked.unsure and (failed := _failed_anyway(free, pool, _parts(outcomes.values(), asked.jobs))):
            console.print(f"without any mutant: {failed}", style="bold red", markup=False)
            return 2
    console.print(_report(mutants, outcomes))
    _conclude(console, mutants, outcomes, time.monotonic() - began)
    if asked.json:
        found = [{**asdict(mutant), **asdict(outcomes[mutant.name])} for mutant in mutants]
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    verdicts = {outcome.verdict for outcome in outcomes.values()}
    return 2 if "error" in verdicts else int("survived" in verdicts)


def _failed_anyway(free: SimpleQueue[Nursery], pool: ThreadPoolExecutor, parts: Sequence[Sequence[str]]) -> str:
    """The first of the tests that noticed a mutant which fails without one, too; empty if none does."""
    alone = list(pool.map(lambda tests: _borrowed(free, lambda copy: copy.ran(tests, patience=_ALL_TESTS)), parts))
    return next((outcome.by for outcome in alone if outcome.verdict != "survived"), "")


def _chosen(table: Sequence[Mutant], names: Sequence[str] | None) -> list[Mutant]:
    known = {mutant.name: mutant for mutant in table}
    if unknown := [name for name in names or () if name not in known]:
        raise SystemExit(f"no mutant is called {', '.join(unknown)}")
    return [known[name] for name in names or known]


def _borrowed(free: SimpleQueue[Nursery], work: Callable[[Nursery], Outcome]) -> Outcome:
    """Do work in a copy that nobody else is in."""
    nursery = free.get()
    try:
        return work(nursery)
    finally:
        free.put(nursery)


def _tried(free: SimpleQueue[Nursery], mutant: Mutant) -> Outcome:
    return _borrowed(free, lambda nursery: nursery.tried(mutant))


def _parts(outcomes: Iterable[Outcome], jobs: int) -> list[list[str]]:
    """The tests that noticed a mutant, each once and those of a file together, in parts that take about as long."""
    files: dict[str, set[str]] = {}
    seconds: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.verdict == "killed":
            file = outcome.by.partition("::")[0]
            files.setdefault(file, set()).add(outcome.by)
            seconds[file] += outcome.seconds
    parts: list[list[str]] = [[] for _ in range(jobs)]
    loads = [0.0] * jobs
    for file, taken in seconds.most_common():
        lightest = loads.index(min(loads))
        parts[lightest] += sorted(files[file])
        loads[lightest] += taken
    return [part for part in parts if part]


def _report(mutants: Sequence[Mutant], outcomes: dict[str, Outcome]) -> Table:
    table = Table("mutant", "what it breaks", "killed by", "s", title="Mutants")
    for mutant in mutants:
        outcome = outcomes[mutant.name]
        by = outcome.by.rpartition("::")[2] if outcome.verdict == "killed" else f"{outcome.verdict} {outcome.by}"
        colour = _COLOURS[outcome.verdict]
        table.add_row(
            f"{mutant.subject}: {mutant.name}",
            escape(mutant.breaks),
            f"[{colour}]{escape(by.strip())}[/]",
            f"{outcome.seconds:.0f}",
        )
    return table


def _conclude(console: Console, mutants: Sequence[Mutant], outcomes: dict[str, Outcome], seconds: float) -> None:
    for verdict in ("survived", "error"):
        for mutant in mutants:
            if outcomes[mutant.name].verdict == verdict:
                console.print(f"{verdict}: {mutant.name}: {outcomes[mutant.name].by}", style="bold red", markup=False)
    killed = sum(outcome.verdict == "killed" for outcome in outcomes.values())
    console.print(f"{killed} of {len(mutants)} mutants killed in {seconds:.0f} s", style="bold")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants")
    parser.add_argument("--unsure", action="store_true", help="do not run the tests that noticed a mutant without one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to leave the outcomes")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
