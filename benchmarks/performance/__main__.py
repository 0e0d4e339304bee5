"""Measure what fedsw promises about speed and memory; docs/measured/performance.md shows it.

    python -m benchmarks.performance [NAME ...] [--quick] [--list] [--table] [--results DIR] [--pfl-python PATH]

Without a name, every benchmark; each in a process of its own where there are several. A benchmark writes
benchmarks/results/performance/NAME.json after every row, so that one that is broken off leaves what it has; one that
cannot be measured here (`gpu` without a GPU) says so, and what another machine measured stays. `--quick`
measures the smallest sizes, to try the code: its JSON goes to benchmarks/results/performance/quick/ and never on the
site. `--table` measures nothing and prints the page of the JSON that is there.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.performance import table
from benchmarks.performance.pfl_python import PYTHON
from benchmarks.performance.rows import checked

PACKAGE = Path(__file__).parent


def modules() -> dict[str, str]:
    """The first line of the docstring of every benchmark, by its name."""
    found = {}
    for path in sorted(PACKAGE.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "measure" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def run_one(name: str, folder: Path, *, quick: bool) -> Path:
    """Run one benchmark and write its JSON after every row; the path of the JSON, as it was if nothing can be measured.

    Raises:
        ValueError: if a row is not what `benchmarks.performance.rows` describes.
    """
    module = importlib.import_module(f"benchmarks.performance.{name}")
    path, began, rows = folder / f"{name}.json", time.perf_counter(), list[dict[str, Any]]()
    if why := getattr(module, "missing", str)():
        print(f"{name}: not measured, {why}; {'what was measured elsewhere stays' if path.exists() else 'no rows'}")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Any] = {"about": modules()[name], "quick": quick, "machine": describe(), "rows": rows}

    def write(complete: bool) -> None:
        stored.update(seconds=round(time.perf_counter() - began, 1), complete=complete)
        fresh = path.with_suffix(".json.new")
        fresh.write_text(json.dumps(stored, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        fresh.replace(path)

    for row in module.measure(quick):
        rows.append(checked(row))
        write(complete=False)
        print(
            f"{name}: {row['what']}: {row['ours']} against {row['other']}, ratio {row['ratio']}, met {row['met']}",
            flush=True,
        )
    write(complete=True)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's docstring; 1 if a benchmark failed."""
    known = modules()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--quick", action="store_true", help="the smallest sizes")
    parser.add_argument("--list", action="store_true", help="the benchmarks, and what each measures")
    parser.add_argument("--table", action="store_true", help="only print the page")
    parser.add_argument("--results", type=Path, help="folder of the JSON")
    parser.add_argument(
        "--pfl-python", metavar="PATH", help=f"an interpreter that has pfl, for dpsgd (or {PYTHON} in the environment)"
    )
    asked = parser.parse_args(arguments)
    if asked.list:
        print("\n".join(f"{name:12} {about}" for name, about in known.items()))
        return 0
    unknown = [name for name in asked.names if name not in known]
    if unknown:
        parser.error(f"{', '.join(unknown)}: there is no such benchmark; choose from {', '.join(known)}")
    if asked.pfl_python:
        os.environ[PYTHON] = asked.pfl_python
    folder = asked.results or (table.RESULTS / "quick" if asked.quick else table.RESULTS)
    failed = [] if asked.table else _run(asked.names or list(known), folder, quick=asked.quick)
    print(table.page(folder))
    return 1 if failed else 0


def _run(names: Sequence[str], folder: Path, *, quick: bool) -> list[str]:
    """The benchmarks that failed; what they had measured stays."""
    if len(names) == 1:
        run_one(names[0], folder, quick=quick)
        return []
    flags = ["--results", str(folder), *(["--quick"] if quick else [])]
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", "benchmarks.performance", name, *flags]
        if subprocess.run(command, cwd=table.ROOT, check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"broken off: {', '.join(failed)}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
