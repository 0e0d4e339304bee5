"""Fixtures of tests of what runs leave."""

from tests.brief import brief  # noqa: F401
