"""Fixtures of the federation's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedsw.federation.node import joining as nodes
from tests.brief import brief  # noqa: F401


@pytest.fixture
def nobody_is_remembered() -> Iterator[None]:
    """Nodes of a run number are kept by the process: those of these tests are not for others, nor others' for these."""
    nodes._nodes.clear()
    yield
    nodes._nodes.clear()
