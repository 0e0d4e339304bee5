"""Fixtures of the federation's tests."""

from tests.brief import brief  # noqa: F401
from tests.federations import nobody_is_remembered  # noqa: F401
