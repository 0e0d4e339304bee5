"""Fixtures of tests of deployments."""

from tests.pretended_runs import fake_runs, finished_run  # noqa: F401
