"""Fixtures of the clients' tests."""

from tests.brief import brief  # noqa: F401
