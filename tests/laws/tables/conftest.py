"""Fixtures of laws of own tables."""

from tests.desk.use.conftest import place  # noqa: F401
