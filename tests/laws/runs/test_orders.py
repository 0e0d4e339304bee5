"""A penalty of another order than 2 runs where somebody holds outputs, and is refused elsewhere before a charge."""

from __future__ import annotations

import pytest

import fedsw
from fedsw.experiment import parse_experiment
from tests.federations import SMALL, Federation

CUBIC = fedsw.Parity(order=3.0)
"""What a user's own module holds; no setting says its order."""


def cubic(trust: str) -> dict:
    return {**SMALL, "objective": {"penalty": f"{__name__}:CUBIC", "alpha": 0.5}, "privacy": {"trust": trust}}


def test_an_own_penalty_of_order_3_trains_where_outputs_are_held(tmp_path):
    result = Federation(tmp_path).run(parse_experiment(cubic("central"), ("training.rounds=2",)))
    assert result["status"] == "completed"


def test_tables_refuse_an_own_penalty_of_order_3_before_anything_is_charged(tmp_path):
    with pytest.raises(Exception, match="of order 3 has no slot means: noised tables serve order 2 alone"):
        Federation(tmp_path).run(parse_experiment(cubic("distributed"), ("training.rounds=2",)))
    assert not list(tmp_path.rglob("client-*.sqlite"))  # the ledgers of who pays
