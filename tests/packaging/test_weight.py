"""Whoever clones the repository gets no large files: pictures are small, contact sheets are made and not committed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from simulations.papers.figure import figures

ROOT = Path(__file__).parents[2]
PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".pdf"}


@pytest.fixture(scope="module")
def committed() -> list[Path]:
    """Paths of the committed files; in a copy without git, of the files under docs/ that no command makes."""
    git = ["git", "ls-files", "-z"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout if shutil.which("git") else ""
    paths = [ROOT / name for name in listed.split("\0") if name]
    if not paths:
        paths = [path for path in (ROOT / "docs").rglob("*") if "sheets" not in path.parts]
    return [path for path in paths if path.is_file()]


def _too_large(paths: list[Path], most: int) -> dict[str, int]:
    sizes = {str(path.relative_to(ROOT)): path.stat().st_size for path in paths}
    return {name: size for name, size in sizes.items() if size > most}


def test_no_committed_file_has_more_than_a_megabyte(committed: list[Path]) -> None:
    assert _too_large(committed, 1_000_000) == {}


def test_no_committed_picture_has_more_than_150_kilobytes(committed: list[Path]) -> None:
    assert _too_large([path for path in committed if path.suffix in PICTURES], 150_000) == {}


def test_the_documents_have_at_most_six_megabytes(committed: list[Path]) -> None:
    assert sum(path.stat().st_size for path in committed if (ROOT / "docs") in path.parents) <= 6_000_000


def test_results_of_the_papers_are_committed_in_compact_files() -> None:
    results = ROOT / "simulations" / "papers" / "results"
    assert [path.name for path in results.iterdir() if path.suffix != ".xz"] == []


def test_contact_sheets_are_not_committed(committed: list[Path]) -> None:
    papers = {name.partition("/")[0] for name in figures()}
    sheets = [path for path in committed if path.stem in papers and path.suffix in PICTURES]
    assert sheets == []
