"""The package runs on every Python that CI names, where this machine has its interpreter."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.packaging.environments import ROOT, built_wheel, empty_environment, outside, pip, run, sources

pytestmark = pytest.mark.slow
NAMED = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]["version"]
HERE = "{}.{}".format(*sys.version_info)
VERSIONS = [version for version in NAMED["strategy"]["matrix"]["python"] if version != HERE]
DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
CONSTRAINED = ("--no-compile", "--constraint", str(ROOT / "constraints.txt"))
QUESTIONS = (
    ["budget", "--records", "500", "--epsilon", "2", "--json", "--no-compare"],
    ["budget", "--records", "20000", "--steps", "3000", "--noise-multiplier", "1.3", "--json", "--no-compare"],
    ["account", "--help"],
)


def interpreter(version: str) -> str | None:
    """An interpreter that starts: on the path, or where pyenv and uv keep theirs."""
    places = (f".pyenv/versions/{version}.*/bin/python", f".local/share/uv/python/cpython-{version}.*/bin/python3")
    for found in (shutil.which(f"python{version}"), *(each for place in places for each in Path.home().glob(place))):
        asked = [str(found), "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        if found and subprocess.run(asked, capture_output=True, text=True).stdout.strip() == version:
            return str(found)
    return None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(sources(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", params=VERSIONS)
def python(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with fedsw and what it depends on, under constraints.txt, but torch."""
    if (found := interpreter(request.param)) is None:
        pytest.skip(f"no Python {request.param} on this machine (looked on the path, in ~/.pyenv, ~/.local/share/uv)")
    python = empty_environment(tmp_path_factory.mktemp("other") / request.param, by=found)
    pip(python, "install", *CONSTRAINED, *(name for name in DEPENDENCIES if not name.startswith("torch")))
    pip(python, "install", "--no-compile", "--no-deps", str(wheel))
    return python


def test_every_file_compiles_without_a_warning_and_the_same_guarantees_are_answered(python: Path, tmp_path: Path):
    """What needs no torch; of it the index has gigabytes for Linux. CI's matrix runs all quick tests."""
    (package,) = python.parent.parent.glob("lib/python*/site-packages/fedsw")
    run([str(python), "-W", "error", "-m", "compileall", "-q", "-f", str(package)], tmp_path, outside())
    ours = Path(sys.executable).with_name("fedsw")
    for words in QUESTIONS:
        said = [run([str(each), *words], tmp_path, outside()) for each in (python.with_name("fedsw"), ours)]
        assert said[0] == said[1] and said[0], words
