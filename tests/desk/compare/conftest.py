"""Fixtures of tests of comparisons."""

from tests.pretended_runs import fake_runs, finished_run  # noqa: F401
