"""Fixtures of the audit's tests."""

from tests.pretended_runs import fake_runs, finished_run  # noqa: F401
