"""What tests of the clip share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedsw.mathematics.clipping import columns
from tests.mathematics.clipping.naive import double_by_default


@pytest.fixture(params=["formed", "factored"])
def way(request, monkeypatch):
    """Every layer that knows two ways to be measured and added takes this one."""
    original = columns._forms
    monkeypatch.setattr(
        columns, "_forms", lambda call, deltas, way, room: original(call, deltas, request.param, room=room)
    )
    return request.param


@pytest.fixture
def double() -> Iterator[None]:
    """Tensors that a test makes have 64 bits."""
    with double_by_default():
        yield
