"""Each recipe of CONTRIBUTING.md is a patch of at most three files with a test; with all applied, tests pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.diff"))

BELOW = ("mathematics", "_tools")
"""Layers that recipes leave as they are, and that import no other (`pyproject.toml`, importlinter)."""

WALKED = (
    *("cli/test_app*", "cli/test_cli*", "data/test_downloads*", "data/test_image_sets*", "experiment/test_trust*"),
    *("laws/test_*", "privacy/accounting/test_ledger*", "privacy/test_mechanisms*", "privacy/test_release*"),
    *("runs/report/test_plots*", "site/test_*"),
)
"""Tests that an added name can break, beside the recipes' own: of what they write in, and what walks the source."""


def touched(recipe: Path) -> list[str]:
    return re.findall(r"^\+\+\+ b/(\S+)$", recipe.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_a_recipe_touches_at_most_three_files_one_of_which_is_its_test_and_is_linked():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {"verb", "ledger-column", "noise", "figure", "data-set"} == {recipe.stem for recipe in RECIPES}
    for recipe in RECIPES:
        files = touched(recipe)
        assert len(files) <= 3 and sum(name.startswith("tests/") for name in files) == 1, (recipe.stem, files)
        assert f"(docs/recipes/{recipe.name})" in text
        assert not any(name.startswith(tuple(f"fedsw/{layer}/" for layer in BELOW)) for name in files), recipe.stem


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_applies_to_the_code_as_it_is(recipe):
    tried = subprocess.run(["git", "apply", "--check", str(recipe)], cwd=ROOT, capture_output=True, text=True)
    assert tried.returncode == 0, tried.stderr


@pytest.mark.slow
def test_with_all_recipes_applied_quick_tests_pass(tmp_path):
    """Followed to the letter they break nothing, in a copy with all: every quick test of `WALKED`, one case each."""
    copy = tmp_path / "checkout"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    for compiled in (path for room in ("fedsw", "tests") for path in (ROOT / room).rglob("__pycache__")):
        shutil.copytree(compiled, copy / compiled.relative_to(ROOT))  # whatever stayed as it is need not be compiled
    git = ["git", "-c", "user.name=recipes", "-c", "user.email=recipes@localhost"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**own, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    for command in (
        [*git, "init", "--quiet"],
        *([*git, "apply", str(recipe)] for recipe in RECIPES),
        [*git, "add", "--all"],
        [*git, "commit", "--quiet", "--message", "All recipes"],
    ):
        subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True)
    (copy / ".venv").symlink_to(sys.prefix)
    suite = [*("-n", "0", "-m", "not slow and not again", "-p", "no:cacheprovider")]
    own_tests = {copy / name for recipe in RECIPES for name in touched(recipe) if name.startswith("tests/")}
    walked = own_tests | {path for each in WALKED for path in (copy / "tests").glob(each)}
    suite += ["-rf", "--tb=short", *map(str, sorted(walked))]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *suite],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=2400,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]


def test_the_table_of_changes_says_how_many_files_each_touches_and_it_is_at_most_three():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## Ten changes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| an? [^|]+\| (\d+) \| (\d+) \| \[[^]]+\]\(([^)]+)\) \|$", table, flags=re.MULTILINE)
    assert len(rows) == 10
    for before, now, shown in rows:
        place = (ROOT / "docs" / shown).resolve()
        assert int(now) == (len(touched(place)) if place.suffix == ".diff" else 1) <= min(3, int(before)), shown
        assert place.is_file()
