"""Fixtures of the engines' tests."""

from tests.pretended_runs import fake_runs, finished_run  # noqa: F401
