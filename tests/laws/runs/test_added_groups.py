"""Laws of tables where a record is added or removed: groups, thresholds, drafts, plans, and secret numbers."""

from __future__ import annotations

import csv
import json
import math
import re
import sqlite3
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsw._tools.randomness import Stream
from fedsw.audit.record import audit
from fedsw.cli.app import main
from fedsw.data import Records
from fedsw.desk.own_data.answers import Words
from fedsw.desk.own_data.description import as_description
from fedsw.desk.own_data.draft import DraftRequest, draft
from fedsw.desk.own_data.synthetic_table import as_synthesis
from fedsw.desk.planning import public_rows, run_plan
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation.node.held_records import Held
from fedsw.federation.node.node import Node
from fedsw.federation.trust.budget_shares import SCORES_PART
from fedsw.federation.trust.round_plan import make_plan
from fedsw.federation.trust.sums_once import SUMS, Sum
from fedsw.learning.moments.moments_sum import STEP, layout_of, sums_of
from fedsw.learning.moments.released_moments import Moments, constant_of
from fedsw.learning.tasks.calibration import calibration_of
from fedsw.learning.tasks.problem import Problem
from fedsw.learning.tasks.score_counts import BOTH, ScoreCounts
from fedsw.privacy.relations import ADD_OR_REMOVE
from fedsw.privacy.sensitivity import SLACK
from fedsw.runs.evaluation.group_thresholds import Scores, band_of, cuts_of
from tests.federations import sites_of

pytestmark = pytest.mark.usefixtures("nobody_is_remembered")

CELLS = {"age": "age=0:100", "hours": "hours=0:100"}
DECLARED, SIZES = 1500, (1433, 1487, 1397)
NOT_SAID: Any = dict.fromkeys(("dates", "edges", "booleans", "integers", "drop"), ())
WORDS = Words.read(bounds=[*CELLS.values()], categories=["sex=f,m", "hired=no,yes"], **NOT_SAID)
OPTIONS = [
    *("--target", "hired", "--positive", "yes", "--group", "sex"),
    *(part for cell in CELLS.values() for part in ("--bounds", cell)),
    *("--categories", "sex=f,m", "--categories", "hired=no,yes"),
    *("--relation", "add-remove", "--records", str(DECLARED)),
]


def tables(
    folder: Path, sizes: tuple[int, ...] = SIZES, *, seed: int = 0, unit: str | None = None, rows_each: int = 1
) -> Path:
    """Write a client's table for each of these numbers of rows, by chance: two columns, two groups, two classes.

    With a `unit` it has the column, and as many rows of everybody as there are to each.
    """
    chance = np.random.default_rng(seed)
    for client, size in enumerate(sizes):
        (folder / str(client)).mkdir(parents=True)
        with (folder / str(client) / "table.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow([*CELLS, "sex", "hired", *([unit] if unit else [])])
            man = False
            for row in range(size):
                age, hours, another = chance.uniform(18, 80), chance.uniform(0, 60), chance.uniform() < 0.7
                man = man if unit and row % rows_each else another  # one group a person
                hired = (age - 50) / 15 + (hours - 30) / 20 + 0.7 * man + chance.normal() > 0
                who = [f"{seed}-{client}-{row // rows_each}"] if unit else []
                rows.writerow([f"{age:.2f}", f"{hours:.2f}", "m" if man else "f", "yes" if hired else "no", *who])
    return folder


def added(*settings: str) -> Experiment:
    raw = {
        "name": "added",
        "data": {
            "source": "object",
            "columns": {
                "features": [{"name": name, "low": 0, "high": 100} for name in CELLS],
                "sensitive": {"name": "sex", "values": ["f", "m"]},
                "target": {"name": "hired", "values": ["no", "yes"], "positive": "yes"},
            },
        },
        "model": {"kind": "logistic"},
        "objective": {"penalty": "none"},
        "training": {"rounds": 2},
        "privacy": {
            "relation": "add-remove", "sampling": "poisson", "records": DECLARED, "delta": 1e-5, "epsilon": 3.0,
        },
    }  # fmt: skip
    return parse_experiment(raw, settings)


ALL_RELEASED = ("privacy.moments=0.2", "calibration.share=0.1", "thresholds.share=0.2")


def some(count: int, *, share: float = 0.8) -> Records:
    chance = np.random.default_rng(3)
    inputs = torch.from_numpy(chance.uniform(0.2, 0.9, size=(count, 2)))
    sex, hired = (torch.from_numpy(chance.uniform(size=count) < part).long() for part in (0.7, share))
    return Records(inputs.float(), sex, hired, torch.arange(count))


def test_a_record_that_comes_or_goes_moves_every_sum_that_leaves_once_by_at_most_its_bound_in_any_group() -> None:
    """Neighbours by removal, side by side: moments and counts of scores by group, without each record in turn."""
    plan = make_plan(Problem.from_experiment(added(*ALL_RELEASED)), sites_of((7,)))
    found, everybody = dict[str, float](), some(24)
    for part, total in sums_of_all(plan.task).items():
        bound = total.budget(plan.delta, plan.shares).sensitivity
        assert bound.relation == ADD_OR_REMOVE and bound.value == pytest.approx(1.0, abs=0.002)
        found[part] = max(
            float((summed(total, everybody) - summed(total, everybody.take(np.delete(np.arange(24), gone)))).norm())
            for gone in range(24)
        )
    assert found.keys() == {"moments", SCORES_PART}
    assert 0.5 < found["moments"] <= 1.0 and found[SCORES_PART] == 1.0


def sums_of_all(task: Problem) -> dict[str, Sum]:
    """The sums that a run releases once, under a model that a server chose."""
    assert task.experiment.privacy.model.sides  # whose modules register their sums
    return {part: SUMS[part].at(task, 0, torch.zeros(task.parameters).double()) for part in ("moments", SCORES_PART)}


def summed(total: Sum, records: Records) -> torch.Tensor:
    """The sum over records of one client, without noise."""
    places, client = np.zeros(len(records), dtype=np.int64), np.zeros(1, dtype=np.int64)
    node = Node.of(total.task, Held(records, places, client), "law")
    return total.steps(node, [0], Stream.secure()).double() * total.step


def test_of_groups_a_site_is_believed_what_their_number_is_together() -> None:
    task = Problem.from_experiment(added(*ALL_RELEASED))
    total = sums_of_all(task)[SCORES_PART]
    steps = (summed(total, some(24)) / total.step).long()
    assert total.fault(steps, np.array([24])) is None and total.fault(steps, np.array([23])) is not None
    (site,) = sites_of((24,))
    assert total.counted(site).tolist() == [[24]] and total.records([site], [0]).tolist() == [DECLARED]


def test_a_declared_number_that_is_far_off_changes_nothing_that_is_read_off_releases() -> None:
    """Without noise all is as if the number were public; how many there are is in the sums themselves."""
    task, records = Problem.from_experiment(added(*ALL_RELEASED)), some(400)
    layout, counts = layout_of(task), ScoreCounts(2, 1, BOTH)
    assert layout is not None
    sums = sums_of(task, layout, records)
    public = Moments.exact(layout, sums, (400,))
    for declared in (40, 400, 9000):
        read = replace(public, records=(declared,), declared=True)
        assert read.count == 400 and np.allclose(read.products, public.products)
        assert constant_of(read) == constant_of(public)
    chance = np.random.default_rng(1)
    values = np.zeros((2, counts.width))
    places = counts.places(torch.from_numpy(chance.uniform(size=(400, 1))), records.target).numpy()[:, 0]
    np.add.at(values, (records.sensitive.numpy(), places), 1.0)
    assert calibration_of(counts, values, 0.0, None) == calibration_of(counts, values, 0.0, 400.0)
    sizes, about = records.sensitive.bincount().numpy(), (1, 0, 1.0)
    for rule in ("best", "parity", "odds"):
        secret = cuts_of(Scores(values, 0.0, np.array([9000]), *about), rule)
        assert secret == cuts_of(Scores(values, 0.0, sizes, *about), rule)


def test_intervals_hold_the_truth_as_often_as_they_say_where_the_number_is_noised_too() -> None:
    """Most records are of one class, so that an error in their number moves its share by nearly as much of it."""
    task, records = Problem.from_experiment(added(*ALL_RELEASED)), some(400, share=0.97)
    layout, share = layout_of(task), float((records.target == 1).double().mean())
    assert layout is not None
    exact, chance, held = sums_of(task, layout, records).double() * STEP, np.random.default_rng(5), 0
    for _ in range(200):
        noise = 12.0 * torch.from_numpy(chance.standard_normal(exact.shape))
        found = constant_of(Moments(layout, exact + noise, 12.0, (DECLARED,), declared=True)).means[1]
        held += found.low <= share <= found.high
    assert held >= 185


def test_the_noise_in_a_groups_selected_share_is_within_its_band_where_its_size_is_secret() -> None:
    """The worst place: nearly all records above a threshold, and nearly all counts, which are noise, below it."""
    counts, sigma = ScoreCounts(2, 1), 5.0
    values, chance = np.zeros((2, counts.width)), np.random.default_rng(2)
    values[:, 2 * 28], values[:, 2 * 29 + 1] = 40.0, 960.0
    outside = 0
    for _ in range(200):
        scores = Scores(values + sigma * chance.standard_normal(values.shape), sigma, np.array([DECLARED]), 1, 0, 1.0)
        cuts = cuts_of(scores, "best")
        outside += abs(cuts.selected[0] - 0.96) > cuts.bands[0]
    assert outside <= 10


@pytest.mark.slow
def test_a_plan_forecasts_additions_as_replacements_with_twice_the_noise() -> None:
    """A replaced record moves a sum twice as far as one that comes, so that half the multiplier is the same noise."""
    settings = ("privacy.epsilon=inf", "privacy.moments=0.0", "calibration.share=0.0", "training.preset=auto")
    noised = added(*settings[1:], "privacy.noise_multiplier=60.0")
    replaced = parse_experiment(
        {**noised.model_dump(), "privacy": {"epsilon": None, "noise_multiplier": 30.0, "delta": 1e-5, "moments": 0.0}}
    )
    sizes, assumed = public_rows.sizes_by_group(noised, None)
    assert sizes == {"f": DECLARED // 2, "m": DECLARED // 2} and "groups of one size are assumed" in assumed
    found, known = run_plan.planned(noised, sizes).forecast, run_plan.planned(replaced, sizes).forecast
    assert found is not None and known is not None
    assert found.strength == pytest.approx(known.strength, rel=1e-9)
    assert found.share_left == pytest.approx(known.share_left, rel=1e-9)


def test_a_draft_for_additions_counts_no_row_and_runs_as_it_is(tmp_path: Path) -> None:
    texts = []
    for name, sizes in (("few", (3, 5)), ("many", (4000, 60_000))):
        folder = tables(tmp_path / name / "data", tuple(min(size, 3) for size in sizes))
        with (folder / "1" / "table.csv").open("a") as file:
            file.writelines(["20,20,m,yes\n"] * sizes[1])
        request = DraftRequest(folder, "sex", "hired", WORDS, positive="yes", declared=DECLARED)
        texts.append(draft(request, name="own").text.replace(str(folder), ""))
    few, many = (re.sub("account = .*", "", text) for text in texts)
    assert few == many
    experiment = parse_experiment(tomllib.loads(texts[0]))
    assert experiment.privacy.records == DECLARED and experiment.objective.penalty == "none"
    assert experiment.data.held_out_fraction == 0.2 and experiment.data.held_out_released
    assert Problem.from_experiment(experiment).groups == ("f", "m")
    with pytest.raises(ExperimentError, match="--alpha has no bound for added and removed records"):
        draft(replace(request, alpha=0.2), name="own")


@pytest.mark.parametrize("options", [["--relation", "add-remove"], ["--records", "1500"]])
def test_a_relation_and_its_declared_number_go_together(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str]
) -> None:
    folder = tables(tmp_path / "data", (3,))
    assert main(["init", str(folder), "--target", "hired", "-o", str(tmp_path / "own.toml"), *options]) == 2
    assert "--relation add-remove and --records N" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ("objective.penalty='statistical-parity'", "objective.alpha=0.0"),
            "a penalty's groups are strata, and their sizes are secret",
        ),
        (("objective.penalty='statistical-parity'", "objective.alpha=0.1"), "moves by every record's rank"),
    ],
)
def test_groups_are_refused_where_more_than_a_records_own_term_moves(settings: tuple[str, ...], said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        added(*settings)


def test_what_is_released_once_for_a_replacement_is_not_made_of_an_experiment_that_hides_the_number() -> None:
    for made in (as_description, partial(as_synthesis, trust=None, fair=False, epsilon=1.0)):
        with pytest.raises(ExperimentError, match="hides how many records there are"):
            made(added())


def test_a_plan_of_additions_says_twice_the_band_of_a_group_of_known_size() -> None:
    experiment, sizes = added("thresholds.share=0.2", "privacy.epsilon=9.0"), {"f": 700, "m": 800}
    found = run_plan.planned(experiment, sizes).bands
    sigma = SLACK * make_plan(Problem.from_experiment(experiment), sites_of((7,))).scores
    assert found == {name: pytest.approx(2 * band_of(sigma, size), rel=1e-9) for name, size in sizes.items()}


@pytest.mark.slow
@pytest.mark.parametrize("unit", [None, "who"])
def test_nothing_that_a_run_prints_or_stores_has_a_secret_number_and_all_of_it_says_both_epsilons(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, unit: str | None
) -> None:
    """From `init` to the page: how many records or persons there are, at a client or of a group, is nowhere."""
    monkeypatch.chdir(tmp_path)
    data = tables(tmp_path / "data", unit=unit, rows_each=3)
    men = sum((data / name / "table.csv").read_text().count(",m,") for name in "012")
    held_out = tables(tmp_path / "judged", (50,), seed=1, unit=unit) / "0" / "table.csv"
    persons = [-(-size // 3) for size in SIZES]
    secret = {sum(SIZES), *SIZES, men, sum(SIZES) - men, *([sum(persons), *persons] if unit else [])}
    options = [*OPTIONS, *(["--unit", unit] if unit else [])]
    assert main(["init", "data", *options, "--held-out", str(held_out), "-o", "own.toml"]) == 0
    overrides = ["thresholds.share=0.3", "training.rounds=3"]
    capfd.readouterr()
    assert main(["run", "own.toml", "--data-dir", "data", *overrides]) == 0
    (folder,) = (tmp_path / "runs" / "own").iterdir()
    assert audit(folder).passed
    for words in (["show", str(folder)], ["show", str(folder), "--json"], ["report", str(folder), "-o", "page.html"]):
        assert main(words) == 0
    screens = "".join(capfd.readouterr())
    found = {name: told(text) & secret for name, text in [("screens", screens), *texts_of(folder), *texts_of(tmp_path)]}
    assert not {name: numbers for name, numbers in found.items() if numbers}
    summary = json.loads((folder / "summary.json").read_text())
    own, other = summary["epsilon"], summary["guarantee"]["epsilon_of_replacement"]
    assert own == 1.0 and 2 * own < other < math.inf
    shown = f"{other:.3f}"[:4]
    card, page = (folder / "card.md").read_text(), (tmp_path / "page.html").read_text()
    for text in (screens, card, page):
        assert shown in text and "not comparable" in text
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["records"] == [DECLARED] and np.shape(scores["values"])[0] == 2
    assert set(summary["thresholds"]["by_group"]) == {"f", "m"}


def told(text: str) -> set[int]:
    """The whole numbers in a text, with thousands parted or not; no digests, times or parts."""
    return {int(number.replace(",", "")) for number in re.findall(r"(?<![\w.,:-])\d+(?:,\d{3})*(?![\w.:])", text)}


def texts_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Files that were written, as text; a ledger row by row."""
    for path in sorted(folder.iterdir()):
        if path.suffix == ".sqlite":
            with sqlite3.connect(path) as ledger:
                yield path.name, "\n".join(ledger.iterdump())
        elif path.suffix in (".json", ".jsonl", ".md", ".html", ".log", ".toml", ".txt"):
            yield path.name, path.read_text()
