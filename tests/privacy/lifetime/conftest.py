"""Fixtures of tests of accounts of a data set."""

from tests.brief import brief  # noqa: F401
