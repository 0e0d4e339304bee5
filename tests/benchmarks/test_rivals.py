"""Laws of the comparison with other private models: who is ahead is counted by standard errors, and it can be run."""

from __future__ import annotations

import pytest

from benchmarks.rivals import __main__ as rivals
from benchmarks.rivals import page


def row(rival: str, seed: int, score: float | None) -> dict:
    return {"cell": ["made-up", 1.0, rival, seed], "records": 100, "constant": 0.5, "score": score, "chosen": "linear"}


def rows(*, descent: float, apart: float) -> list[dict]:
    return [
        *(row("fedsw", seed, 0.8 + 0.01 * seed) for seed in range(3)),
        *(row("descent", seed, descent + 0.01 * seed) for seed in range(3)),
        *(row("dp-sgd", seed, 0.8 + apart) for seed in range(3)),
        row("adassp", 0, None),
    ]


def test_a_rival_is_behind_or_ahead_by_more_than_a_standard_error_or_neither():
    behind = page.verdict(rows(descent=0.7, apart=0.1))
    assert "by replacement: ahead in 1 of 1 cells" in behind and "all rivals: ahead in 0 of 1" in behind
    assert behind.endswith("behind in 1.")
    even = page.verdict(rows(descent=0.8, apart=-0.1))
    assert "ahead in 0 of 1" in even and even.endswith("behind in 0.")


def test_of_fewer_than_three_seeds_nobody_is_said_to_be_ahead():
    one = [known for known in rows(descent=0.7, apart=-0.1) if known["cell"][3] == 0]
    assert "nobody can say who is ahead" in page.verdict(one)


def test_the_table_has_the_best_rival_of_each_relation():
    table = page.table(rows(descent=0.7, apart=0.1))
    assert "0.71 (descent)" in table and "0.9 (dp-sgd)" in table and "| 0.81 |" in table


def test_rivals_are_asked_for_what_they_can_predict():
    assert not rivals.suits("dp-ebm", regression=False, classes=3) and rivals.suits(
        "dp-ebm", regression=True, classes=0
    )
    assert not rivals.suits("perturbed-objective", regression=True, classes=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wine", "diabetes", "breast-cancer"])
def test_the_default_path_is_not_behind_rivals_of_its_relation_where_epsilon_is_three(name):
    scores = {
        rival: rivals.measured(name, 3.0, rival, 0, python="")["score"] for rival in ("fedsw", *page.REPLACED, "dp-sgd")
    }
    assert scores["fedsw"] >= max(scores[rival] for rival in page.REPLACED) - 0.05
