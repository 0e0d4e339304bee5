"""Fixtures of the tests of simulations."""

from tests.pretended_runs import fake_runs, finished_run  # noqa: F401
