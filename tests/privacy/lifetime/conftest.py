"""Fixtures of tests of accounts of a data set."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsw.privacy.accounting.lifetime import DatasetAccount
from tests.brief import brief  # noqa: F401
from tests.federations import Federation


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of accounts, this test's alone."""
    folder = tmp_path / "accounts"
    monkeypatch.setenv("FEDSW_ACCOUNTS", str(folder))
    return folder


@pytest.fixture
def people(accounts: Path) -> DatasetAccount:
    """An account that a test's runs count in."""
    return DatasetAccount(accounts, "people")


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    """Runs of a small federation, in a folder as `fedsw run` makes one."""
    return Federation(tmp_path / "runs" / "small")
