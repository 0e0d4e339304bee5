"""One mutant on a copy of the tree, and what the tests that should notice it said."""

from __future__ import annotations

import compileall
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Literal

from tests.mutants.sources import Sources
from tests.mutants.table import BadMutant, Mutant

PATIENCE, SHORT_PATIENCE = 180.0, 30.0
"""Seconds that the tests of one mutant may take: in a run of their own, and in a fork of what is collected."""

_ARGUMENTS = (
    *("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-p", "mutant_witness", "--tb=no"),
    "--assert=plain",  # rewritten asserts would be compiled anew for every mutant
)
_PACKAGES = (
    *("torch", "numpy", "scipy.stats", "scipy.optimize", "scipy.fft", "hypothesis.extra.numpy", "ot", "mpmath"),
    *("flwr.app", "flwr.clientapp", "flwr.serverapp", "safetensors.torch", "pydantic", "psutil", "pytest"),
    *("cryptography.hazmat.primitives.ciphers", "rich.table", "typer", "torch._dynamo", "torch.utils.flop_counter"),
    *("sklearn.metrics", "pyarrow.parquet", "pywt", "jinja2", "pydantic.types", "uvicorn", "annotated_types"),
)
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
_LATER = itertools.count(100)
_PLUGIN = Path(__file__).parent / "plugin"
_LAWS = ("AssertionError", "Failed")
"""What a test that notices raises: its assertion, or `pytest.raises` that nothing was raised in."""
_BROKEN = ("NameError", "ImportError", "ModuleNotFoundError", "SyntaxError", "AttributeError", "TypeError")

Verdict = Literal["killed", "survived", "error"]


@dataclass(frozen=True)
class Outcome:
    """What came of one run of tests: which one failed, or why the run says nothing."""

    verdict: Verdict
    by: str
    seconds: float


def tracked(root: Path) -> list[Path]:
    """The files of a checkout, relative to it, with what is not committed yet; of no checkout, all of them."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)},
    )
    if listed.returncode:
        return [path.relative_to(root) for path in root.rglob("*") if path.is_file() or path.is_symlink()]
    return [Path(name) for name in listed.stdout.split("\0") if name and (root / name).exists()]


@contextmanager
def copies(root: Path, count: int) -> Iterator[list[Path]]:
    """So many copies of a tree, compiled, in folders that go when this ends."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        first, *others = made = [Path(folder) / str(number) for number in range(count)]
        for path in tracked(root):
            (first / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, first / path, follow_symlinks=False)
        compileall.compile_dir(first, quiet=2, workers=0)
        for copy in others:
            shutil.copytree(first, copy, symlinks=True)
        yield made


@contextmanager
def mutated(sources: Sources, mutant: Mutant) -> Iterator[None]:
    """The copy that sources were read from with the mutant in it; afterwards as it was.

    Every patched file has a time of its own: Python tells by it that what was compiled before is another's, also of a
    mutant of the same length. Without it a mutant is judged by the one before it.
    """
    name, text = mutant.applied(sources)
    path = sources.root / name
    was, before = path.read_bytes(), path.stat()
    path.write_text(text, encoding="utf-8")
    os.utime(path, (before.st_atime, before.st_mtime + next(_LATER)))
    try:
        yield
    finally:
        path.write_bytes(was)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


class Nursery:
    """A copy of the tree, and a process that forks a run of its tests whenever it is asked (`plugin/nursery.py`).

    Args:
        tests: those of the mutants to come. They are collected once, and a mutant that changes functions alone is tried
            in a fork of that (`plugin/mutant_collected.py`). Only a law that failed there is believed: whatever else
            came of it is asked again of a run that has imported everything with the mutant in it.
    """

    def __init__(self, copy: Path, tests: Sequence[str], packages: Sequence[str] = _PACKAGES) -> None:
        self.copy = copy
        self.sources = Sources(copy)
        self._own = {
            "PYTHONPATH": os.pathsep.join([str(copy), str(_PLUGIN)]),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(copy.with_name(f"{copy.name}-hypothesis")),
            **_ENVIRONMENT,
        }
        self._collected, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, str(_PLUGIN / "nursery.py"), *packages],
            cwd=copy,
            env={**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **_ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[theirs.fileno()],
        )
        self._ask(
            arguments=[*_ARGUMENTS, "-p", "mutant_collected", f"--basetemp={copy}-collected", *tests],
            environment={**self._own, "MUTANTS_ASKED": str(theirs.fileno())},
            folder=str(copy),
            said=f"{copy}-said.txt",
            kept=theirs.fileno(),
        )
        theirs.close()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *fault: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._collected.close()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def ran(self, tests: Sequence[str], *, patience: float = PATIENCE) -> Outcome:
        """Run tests in the copy until one fails: "killed" by that one, or "survived".

        It is an error if the tests could not be collected, did not end in time, ran on code from elsewhere, or ended
        in a fault of the patch itself (a name that is not there): that would say nothing of the law.
        """
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutant-said-") as folder:
            witness, said = Path(folder) / "witness.json", Path(folder) / "said.txt"
            code = self._ask(
                arguments=[*_ARGUMENTS, f"--basetemp={folder}/tmp", *tests],
                environment={**self._own, "MUTANT_WITNESS": str(witness)},
                folder=str(self.copy),
                said=str(said),
                patience=patience,
            )
            seconds = time.monotonic() - began
            if code is None:
                return Outcome("error", f"not done after {patience:g} s", seconds)
            words = said.read_text(encoding="utf-8", errors="replace")[-500:] if said.exists() else ""
            if not witness.exists():
                return Outcome("error", f"pytest ended with {code}: {words}", seconds)
            return _read(json.loads(witness.read_text(encoding="utf-8")), code, words, seconds)

    def tried(self, mutant: Mutant) -> Outcome:
        """What the tests of a mutant say of it."""
        try:
            path, after = mutant.applied(self.sources)
            before = (self.copy / path).read_text(encoding="utf-8")
            with mutated(self.sources, mutant):
                return self._noticed(self.copy / path, before, after, mutant.tests) or self.ran(mutant.tests)
        except BadMutant as fault:
            return Outcome("error", str(fault), 0.0)

    def _noticed(self, path: Path, before: str, after: str, tests: Sequence[str]) -> Outcome | None:
        """The law that fails with changed functions in modules that were imported before; None if none does."""
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutant-said-") as folder:
            witness = Path(folder) / "witness.json"
            try:
                self._collected.send((str(path), before, after, list(tests), str(witness), SHORT_PATIENCE))
                self._collected.recv()
            except (EOFError, OSError):  # its tests could not be collected together: each mutant is asked by itself
                return None
            seen = json.loads(witness.read_text(encoding="utf-8")) if witness.exists() else {"failed": None}
        if seen["failed"] is None or seen["failed"]["kind"] not in _LAWS or seen["failed"]["when"] != "call":
            return None
        return _read(seen, 1, "", time.monotonic() - began)

    def _ask(self, **asked: object) -> int | None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        while (line := self._process.stdout.readline()).strip() == "ready":
            pass
        code: int | None = json.loads(line)
        return code


def _read(witness: dict, code: int, said: str, seconds: float) -> Outcome:
    failed = witness["failed"]
    if witness["foreign"]:
        return Outcome("error", f"code from elsewhere was run: {witness['foreign'][0]}", seconds)
    if failed is not None:
        words = f"{failed['test']} ({failed['when']}, {failed['kind']}: {failed['said']})"
        if failed["when"] != "call" or failed["kind"] in _BROKEN:
            return Outcome("error", f"broke more than a law: {words}", seconds)
        return Outcome("killed", failed["test"], seconds)
    if code != 0:
        return Outcome("error", f"pytest ended with {code}: {said}", seconds)
    if not witness["passed"]:
        return Outcome("error", "every test was skipped", seconds)
    return Outcome("survived", "", seconds)
