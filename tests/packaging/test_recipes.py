"""Each recipe of CONTRIBUTING.md is a patch that applies, of at most three files, with a test that passes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.diff"))


def touched(recipe: Path) -> list[str]:
    return re.findall(r"^\+\+\+ b/(\S+)$", recipe.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_a_recipe_touches_at_most_three_files_one_of_which_is_its_test_and_is_linked():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert {"verb", "ledger-column", "noise", "figure", "data-set"} == {recipe.stem for recipe in RECIPES}
    for recipe in RECIPES:
        files = touched(recipe)
        assert len(files) <= 3 and sum(name.startswith("tests/") for name in files) == 1, (recipe.stem, files)
        assert f"(docs/recipes/{recipe.name})" in text


@pytest.mark.slow
def test_the_recipes_apply_and_their_tests_pass(tmp_path):
    """All of them together, in a copy of the package."""
    shutil.copytree(ROOT / "fedsw", tmp_path / "fedsw", ignore=shutil.ignore_patterns("__pycache__"))
    for recipe in RECIPES:
        subprocess.run(["git", "apply", str(recipe)], cwd=tmp_path, check=True, capture_output=True)
    tests = [name for recipe in RECIPES for name in touched(recipe) if name.startswith("tests/")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", *tests],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(tests) == len(RECIPES) and re.search(rf"\b{len(RECIPES)} passed", done.stdout)


def test_the_table_of_changes_says_how_many_files_each_touches_and_it_is_at_most_three():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## Ten changes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| an? [^|]+\| (\d+) \| (\d+) \| \[[^]]+\]\(([^)]+)\) \|$", table, flags=re.MULTILINE)
    assert len(rows) == 10
    for before, now, shown in rows:
        place = (ROOT / "docs" / shown).resolve()
        assert int(now) == (len(touched(place)) if place.suffix == ".diff" else 1) <= min(3, int(before)), shown
        assert place.is_file()
