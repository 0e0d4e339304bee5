"""The small run that campaigns break, and what they raise."""

from __future__ import annotations

from fedsw.experiment import Experiment, parse_experiment

CLIENTS, LEAST = 5, 3


class ChaosFailed(RuntimeError):
    """The run did not end, or its account is wrong; the message says what."""


def experiment_of(rounds: int, *overrides: str) -> Experiment:
    """A small private run of five clients, with some settings changed (`key=value`).

    About 300 records a group, of which 1.9 % (5.7) are asked and 5 are taken: rounds cost less than planned, which
    leaves room for the rounds that a crash makes the run pay twice.
    """
    return parse_experiment(
        {
            "name": "chaos",
            "data": {"records": 600, "test_records": 50},
            "objective": {"alpha": 0.5},
            "training": {"rounds": rounds, "learning_rate": 0.1, "batch_fraction": 0.019},
            "privacy": {"epsilon": 2.0},
            "federation": {"clients": CLIENTS, "min_clients": LEAST, "timeout": 3.0},
            "evaluate_every": rounds,
        },
        overrides,
    )


def require(holds: bool, what: str) -> None:
    """Raise ChaosFailed if it does not hold."""
    if not holds:
        raise ChaosFailed(what)
