"""Fixtures of tests of ledgers."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a test's ledger is."""
    return tmp_path / "ledger.sqlite"
