"""Laws of the digest of the installed package: it is that of the code, and of nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fedsw._tools.installed import PACKAGE, code_digest, digest_of


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return shutil.copytree(PACKAGE / "_tools", tmp_path / "elsewhere" / "fedsw")


def test_a_copy_at_another_place_of_another_age_and_mode_has_the_same_digest(copy):
    same = digest_of(PACKAGE / "_tools")
    for path in copy.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o400)
    (copy / "__pycache__").mkdir(exist_ok=True)
    (copy / "__pycache__" / "text.cpython-311.pyc").write_bytes(b"made by Python")
    (copy / ".text.py.swp").write_text("an editor's")
    assert digest_of(copy) == same


@pytest.mark.parametrize("change", ["a letter", "a name", "a file more", "a file less", "an end moved"])
def test_a_change_of_any_file_is_another_digest(copy, change):
    same, path = digest_of(copy), copy / "text.py"
    if change == "a letter":
        path.write_text(path.read_text() + "#")
    elif change == "a name":
        path.rename(copy / "texts.py")
    elif change == "a file more":
        (copy / "more.py").touch()
    elif change == "a file less":
        path.unlink()
    else:  # of one file into the next by name
        content, after = path.read_bytes(), copy / "text.pyx"
        path.write_bytes(content[:-1])
        after.write_bytes(content[-1:])
    assert digest_of(copy) != same


def test_the_digest_is_of_the_package_that_runs():
    assert code_digest() == digest_of(PACKAGE) and (PACKAGE / "federation" / "client.py").is_file()
