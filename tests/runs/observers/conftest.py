"""Fixtures of the observers' tests."""

import pytest

from tests.federations import Federation


@pytest.fixture
def federation(tmp_path):
    return Federation(tmp_path)
