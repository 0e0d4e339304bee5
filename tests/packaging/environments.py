"""Wheels of this checkout, and virtual environments that hold nothing of it but a wheel."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")


def sources(folder: Path) -> Path:
    """A copy of what a commit of the working tree would hold: tracked files, and new ones that are not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as fault:
        pytest.skip(f"not a git checkout: {fault}")
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def built_wheel(source: Path, into: Path) -> Path:
    """The wheel that pip builds of a folder or of a source archive."""
    pip(Path(sys.executable), "wheel", "--no-deps", "--wheel-dir", str(into), str(source))
    (wheel,) = into.glob("*.whl")
    return wheel


def empty_environment(folder: Path, *, over: Path | None = None, by: str = sys.executable) -> Path:
    """A virtual environment; returns its Python.

    Args:
        over: a folder of packages that are found where the environment has none of its own.
        by: the interpreter that it is of.
    """
    subprocess.run([by, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    if over is not None:
        (site_packages(python) / "over.pth").write_text(f"{over}\n", encoding="utf-8")
    return python


def link_requirements(python: Path, asked: str) -> None:
    """Link into an environment the packages, of those that run this, which a requirement asks for; but not itself.

    To unpack them once more would take a minute. Whether that is all that is needed says pip, which then installs the
    wheel without an index. Folders that several packages share are linked whole.
    """
    lines, pending, inner = set[str](), [asked], site_packages(python)
    while pending:
        needed = Requirement(pending.pop())
        package = importlib.metadata.distribution(needed.name)
        further = {
            line
            for line in package.requires or ()
            for extra in needed.extras or ("",)
            if (marker := Requirement(line).marker) is None or marker.evaluate({"extra": extra})
        }
        lines, pending = lines | further, [*pending, *(further - lines)]
        linked = [] if needed.name == Requirement(asked).name else [package]
        for name in {file.parts[0] for each in linked for file in each.files or ()} - {".."}:
            if not (inner / name).exists():
                (inner / name).symlink_to(Path(sysconfig.get_path("purelib"), name))
        for script in (script for each in linked for script in each.entry_points.select(group="console_scripts")):
            text = f"#!{python}\nfrom {script.module} import {script.attr} as main\nraise SystemExit(main())\n"
            python.with_name(script.name).write_text(text, encoding="utf-8")
            python.with_name(script.name).chmod(0o755)


def site_packages(python: Path) -> Path:
    """The folder of an environment's packages."""
    paths = dict.fromkeys(("base", "platbase"), str(python.parents[1]))
    return Path(sysconfig.get_path("purelib", "venv", paths))


def pip(python: Path, *arguments: str) -> None:
    """Run pip; skip the test where no package index can be reached, and fail it for every other fault."""
    done = subprocess.run([str(python), *PIP, *arguments], capture_output=True, text=True, env=outside())
    if done.returncode == 0:
        return
    with tempfile.TemporaryDirectory() as nowhere:
        probe = [str(python), *PIP, "download", "--no-deps", "--no-cache-dir", "--dest", nowhere, "iniconfig"]
        reachable = subprocess.run(probe, capture_output=True, env=outside()).returncode == 0
    if not reachable:
        pytest.skip("no package index is reachable: " + " ".join(re.findall(r"ERROR: .*", done.stderr))[:300])
    pytest.fail(f"pip {' '.join(arguments)}:\n{done.stderr[-3000:]}")


def outside(**changes: str) -> dict[str, str]:
    """This process' environment without what leads back to the checkout, or keeps what is compiled from being kept."""
    left_out = ("PYTHONPATH", "FLWR_HOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return kept | changes


def run(command: Sequence[str], folder: Path, environment: dict[str, str], *, limit: float = 600.0) -> str:
    """What a command printed on stdout; its whole output if it failed, or took more than `limit` seconds."""
    done = subprocess.run(list(command), cwd=folder, env=environment, capture_output=True, text=True, timeout=limit)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
