"""Fixtures of laws of devices."""

from tests.brief import brief  # noqa: F401
