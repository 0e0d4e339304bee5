"""Fixtures of the command's tests."""

from tests.pretended_runs import fake_runs, finished_run  # noqa: F401
