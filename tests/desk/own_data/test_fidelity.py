"""Laws of the comparison of a synthetic table with held-out records: what is one score, a fault, or given away."""

from __future__ import annotations

import numpy as np
import pytest

from fedsw.data import Records
from fedsw.data.codes import records_of_table
from fedsw.data.columns.declaration import Columns, coded_columns
from fedsw.desk.own_data.fidelity import Fidelity, faults_of, fidelity

COLUMNS = Columns.model_validate(
    {
        "features": [
            {"name": "age", "kind": "integer", "low": 0, "high": 9},
            {"name": "city", "categories": ["a", "b", "c"]},
            {"name": "code", "categories": [f"v{k}" for k in range(6)]},
        ],
        "sensitive": {"name": "sex", "values": ["f", "m"]},
        "target": {"name": "sick", "values": ["no", "yes"]},
    }
)
CODED = coded_columns(COLUMNS, bins=8, group_in_cell=False)


def cells(n: int, seed: int, *, told: float = 0.0) -> dict[str, list[str]]:
    """Cells in which age says the code as often as `told`."""
    rng = np.random.default_rng(seed)
    ages, sick = rng.integers(0, 10, n), rng.random(n) < 0.5
    codes = np.where(rng.random(n) < told, ages % 6, rng.integers(0, 6, n))
    return {
        "age": [str(age) for age in ages],
        "city": ["abc"[each] for each in rng.integers(0, 3, n)],
        "code": [f"v{code}" for code in codes],
        "sex": ["fm"[each] for each in rng.integers(0, 2, n)],
        "sick": ["yes" if each else "no" for each in sick],
    }


def records(*arguments: int, told: float = 0.0) -> Records:
    return records_of_table(cells(*arguments, told=told), COLUMNS)


def compared(made: Records, held_out: Records) -> Fidelity:
    return fidelity(made, held_out, CODED, groups=COLUMNS.groups, classes=2)


def test_rows_of_the_same_law_score_as_high_as_one_half_for_the_other():
    found = compared(records(1000, 1), records(1000, 2))
    assert set(found.scores) == {"single columns", "pairs of columns", "columns by class", "columns by group"}
    for made, half in found.scores.values():
        assert 0.85 < half <= made + 0.03 and made <= 1


def test_the_score_of_a_property_falls_where_that_property_is_lost():
    law, held_out = records(1000, 1), records(1000, 2)
    whole = compared(law, held_out).scores
    other = np.where(law.target.numpy() == 1, 0, 1)
    one_city = law.features.clone()
    one_city[:, 1:4] = 0
    one_city[np.arange(1000), 1 + other] = 1
    lost = compared(Records(one_city, law.sensitive, law.target, law.ids), held_out).scores
    assert lost["columns by class"][0] < whole["columns by class"][0] - 0.1
    assert lost["columns by group"][0] > lost["columns by class"][0]


def test_what_follows_from_other_columns_is_guessed_from_them_and_chance_is_not():
    free, tied = (compared(records(1000, 1, told=told), records(1000, 2, told=told)) for told in (0.0, 1.0))
    (made, half, commonest), _, _ = free.guessed
    assert abs(made - half) < 0.04 and commonest > made - 0.02
    assert tied.guessed[0][0] > made + 0.05 and tied.guessed[0][1] > half + 0.05


def test_a_column_that_the_synthetic_rows_alone_give_away_is_named():
    held_out = records(1000, 2, told=0.3)
    copied = compared(held_out, held_out)
    assert copied.guessed[0][0] > copied.guessed[0][1]
    assert copied.guessed[1][0] - copied.guessed[1][1] > 0.04 and copied.guessed[2] in {each.name for each in CODED}


@pytest.mark.parametrize(
    ("column", "cell"), [("age", "10"), ("age", "3.5"), ("age", "x"), ("city", "d"), ("sick", "maybe"), ("age", "")]
)
def test_every_cell_that_is_not_as_declared_is_counted(column, cell):
    table = cells(20, 1)
    assert faults_of(table, COLUMNS) == 0
    table[column][3] = table[column][7] = cell
    assert faults_of(table, COLUMNS) == 2


def test_rates_by_group_are_of_the_class_that_is_favourable():
    made, held_out = records(200, 1), records(300, 2)
    for shown, number in ((None, 1), (1, 1), (0, 0)):
        found = fidelity(made, held_out, CODED, groups=COLUMNS.groups, classes=2, shown=shown)
        for place, name in enumerate(COLUMNS.groups):
            sides = [
                float((each.target[each.sensitive == place] == number).double().mean()) for each in (made, held_out)
            ]
            assert found.rates[name] == pytest.approx(sides)
