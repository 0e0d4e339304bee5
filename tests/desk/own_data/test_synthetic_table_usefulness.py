"""Laws of what a synthetic table is said to be worth: beside a constant and real records, with what chance allows."""

from __future__ import annotations

import json

import pytest
import torch

from fedsw.cli.app import main
from fedsw.data import Records
from fedsw.desk.own_data.synthetic_table import REAL, SYNTHETIC, usefulness
from tests.desk.own_data.test_synthetic_table import place, run_of, synthesize  # noqa: F401  (place is a fixture)


def drawn(count: int, seed: int, *, signal: float = 1.5, classes: int = 2) -> Records:
    """Records whose target follows the first of three features; numbers where there are no classes."""
    made = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=made)
    score = signal * x[:, 0] + torch.randn(count, generator=made)
    target = score[:, None] if not classes else torch.bucketize(score, torch.linspace(-1, 1, classes + 1)[1:-1])
    return Records(x, torch.zeros(count, dtype=torch.long), target, torch.arange(count))


@pytest.mark.parametrize("classes", [2, 3, 0])
def test_a_table_is_useful_or_not_by_what_a_model_learns_from_it(classes):
    real, tested = (drawn(600, seed, classes=classes) for seed in (1, 2))
    good = usefulness(drawn(600, 3, classes=classes), real, tested, classes)
    assert good is not None and not good.useless and 0.8 < good.kept < 1.2 and "keeps" in good.verdict
    assert good.constant < good.around[SYNTHETIC].low < good.scores[SYNTHETIC] < good.around[SYNTHETIC].high
    other = drawn(600, 4, classes=classes)
    other = Records(
        other.features.roll(1, dims=1), other.sensitive, other.target, other.ids
    )  # it follows another column
    for bad in (other, drawn(600, 5, classes=classes).take(torch.arange(1))):
        found = usefulness(bad, real, tested, classes)
        assert found is not None and found.useless and found.gains[REAL].above and not found.gains[SYNTHETIC].above
        assert found.verdict.startswith("The table is of no use for prediction: a model that learns from it cannot be")


def test_a_table_that_keeps_little_of_what_can_be_learnt_is_not_called_useful():
    """AUC about .57, surely above a constant's, where real records give .8."""
    real, tested, rows = drawn(4000, 1), drawn(4000, 2), drawn(4000, 3)
    turned = Records(rows.features.roll(1, dims=1) + 0.18 * rows.features, rows.sensitive, rows.target, rows.ids)
    found = usefulness(turned, real, tested, 2)
    assert found is not None and found.gains[SYNTHETIC].value < 0.5 * found.gains[REAL].value
    assert found.useless and "of what can be learnt is lost" in found.verdict or "of no use" in found.verdict


@pytest.mark.parametrize("classes", [2, 3, 0])
def test_where_real_records_teach_nothing_nobody_can_say_whether_the_table_does(classes):
    noise = [drawn(200, seed, signal=0.0, classes=classes) for seed in (1, 2, 3)]
    found = usefulness(*noise, classes)
    assert found is not None and not found.useless
    assert found.verdict.startswith("Whether the table is of use for prediction cannot be told")


def test_nothing_is_said_where_nothing_is_predicted():
    one = drawn(60, 1, classes=1)
    assert usefulness(one, one, one, 1) is None


def test_screen_and_card_say_first_that_a_table_is_of_no_use(place, capsys):  # noqa: F811
    table = ["--runs", str(place / "runs" / "useless.csv"), "--rows", "800", "-o", str(place / "useless.csv")]
    words = [
        str(place / "own.toml"),
        "--data-dir",
        str(place / "DATA"),
        "--epsilon",
        "0.001",
        "training.rounds=20",
        "seed=2",
    ]
    assert main(["synthesize", *words, *table]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    card = (place / "useless.md").read_text()
    page = (place / "useless.html").read_text()
    for begins in (
        "Rows are drawn from",
        "Useless for what fewer than",
        "Every cell is",
        "Likeness to",
        "A column of a",
    ):
        said = next(line.strip() for line in card.splitlines() if begins in line)
        assert said in shown and begins in page
    assert "The table is of no use for prediction" in shown and "a constant 0.5" in shown
    assert "**The table is of no use for prediction" in card.split("## Guarantee")[0]
    assert synthesize(place, "none.toml", "unknown.csv", "training.rounds=1") == 0
    assert "use for prediction" not in (place / "unknown.md").read_text()
    assert main(["show", str(run_of(place, "useless.csv")), "card"]) == 0
    own = (run_of(place, "useless.csv") / "card.md").read_text()
    assert "cannot be told from a constant: accuracy" in own and "The constant is the best answer" in own


def test_what_json_says_of_a_table_has_the_verdict(place, capsys):  # noqa: F811
    run = run_of(place, "made.csv")
    more = ["--held-out", str(place / "held.csv"), "-o", str(place / "again.csv"), "--rows", "800", "--json"]
    assert main(["synthesize", str(run), *more]) == 0
    found = json.loads(capsys.readouterr().out)["held_out"]["usefulness"]
    assert found["verdict"].startswith("For prediction the table keeps") and found["useless"] is False
    assert "On 400 records of held.csv, which the guarantee does not cover" in (place / "again.md").read_text()
