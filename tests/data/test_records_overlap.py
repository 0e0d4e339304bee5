"""Laws of records that are in two files: counted by what they hold, whatever their ids, order and file format."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fedsw._tools.files import same_content, same_file
from fedsw.data import Records, rows_in_common


def records(features, sensitive=None, target=None, first=0) -> Records:
    n = len(features)
    return Records(
        torch.tensor(features, dtype=torch.float32),
        torch.zeros(n, dtype=torch.int64) if sensitive is None else torch.tensor(sensitive),
        torch.zeros(n, dtype=torch.int64) if target is None else torch.tensor(target),
        torch.arange(first, first + n),
    )


def test_rows_are_counted_by_features_group_and_target():
    held = records([[1.0, 2.0], [3.0, 4.0], [3.0, 4.0], [5.0, 6.0]], [0, 1, 1, 0], [0, 0, 0, 1])
    same = records([[5.0, 6.0], [3.0, 4.0], [9.0, 9.0]], [0, 1, 0], [1, 0, 0], first=70)
    assert rows_in_common(held, [same]) == 3  # the row that is there twice counts twice
    assert rows_in_common(held, [same, same]) == 3 and rows_in_common(held, []) == 0
    for changed in (
        records([[5.0, 6.0]], [1], [1]),
        records([[5.0, 6.0]], [0], [0]),
        records([[5.0, 6.5]], [0], [1]),
    ):
        assert rows_in_common(held, [changed]) == 0


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zero_has_one_value_and_numeric_targets_count(zero):
    one = records([[0.0], [1.0]], target=[[0.0, 0.5], [0.25, 0.5]])
    assert rows_in_common(one, [records([[zero]], target=[[zero, 0.5]])]) == 1
    assert rows_in_common(one, [records([[1.0]], target=[[0.25, 0.75]])]) == 0


def test_one_file_is_known_by_every_path_and_a_copy_by_its_content(tmp_path):
    file, copy, other = (tmp_path / name for name in ("file", "copy", "other"))
    file.write_text("a"), copy.write_text("a"), other.write_text("b")
    os.link(file, tmp_path / "hard")
    (tmp_path / "soft").symlink_to(file)
    for path in (file, tmp_path / "hard", tmp_path / "soft", tmp_path / "." / "soft"):
        assert same_file(file, path) and same_content(file, path)
    assert same_content(file, copy) and not same_file(file, copy) and not same_content(file, other)
    for nowhere in (Path("/nowhere/at/all"), Path("a\0b"), Path("x" * 5000)):
        assert not same_file(nowhere, file) and not same_file(file, nowhere)
