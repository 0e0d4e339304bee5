"""Fixtures of tests of what runs leave."""

import pytest

from tests.brief import brief  # noqa: F401
from tests.federation.local_runs import Runs
from tests.federations import Federation


@pytest.fixture
def federation(tmp_path):
    return Federation(tmp_path)


@pytest.fixture
def run(federation):
    """A run under local trust: takes an experiment, gives its summary and its folder."""
    return Runs(federation)
