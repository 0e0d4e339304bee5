"""Laws of `fedsw audit RUN` where counts of kept records were released: an honest folder passes, a changed one not."""

from __future__ import annotations

import math
import shutil

import pytest

from fedsw.audit.record import audit, cost, noise, promise, published
from fedsw.privacy.sensitivity import SLACK
from tests.audit.record.test_record import change_json, failed, forge
from tests.federations import Federation
from tests.runs.kept_runs import LOCAL, NOBODY, kept_run, tables

TRUSTS = {"central": (), "local-gradient": LOCAL, "none": NOBODY}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    home, made = tmp_path_factory.mktemp("runs"), {}

    def find(trust: str, **data):
        if (trust, *data) not in made:
            directory = home / "-".join([trust, *data])
            chosen = kept_run(tables(home / f"data{len(made)}", 40, 60), *TRUSTS[trust], clients=2, **data)
            Federation(home).run(chosen, directory=directory)
            made[trust, *data] = directory
        return made[trust, *data]

    return find


@pytest.fixture
def copied(finished, tmp_path):
    return lambda trust="central": shutil.copytree(finished(trust), tmp_path / "run")


@pytest.mark.parametrize("trust", TRUSTS)
def test_an_honest_release_of_kept_records_passes_every_check(finished, trust):
    found = audit(finished(trust))
    assert found.passed, found.verdict


def test_a_release_that_the_settings_do_not_have_is_named(finished, tmp_path):
    directory = shutil.copytree(finished("central", held_out_to="operator"), tmp_path / "run")
    assert audit(directory).passed
    shutil.copy(finished("central") / "held_out.json", directory)
    assert failed(audit(directory)) == [noise.NAME]


@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (lambda charge: charge.update(sampling_rate=0.5), {noise.NAME}),
        (lambda charge: charge.update(sensitivity=1.0), {noise.NAME}),
        (lambda charge: charge.update(sensitivity=1.5), {noise.NAME}),  # counts by answer alone
        (lambda charge: charge.update(sensitivity=3.0), {cost.REPLAY}),
    ],
)
def test_a_row_that_charges_kept_records_too_little_or_too_much_is_named(copied, change, checks):
    directory = copied()

    def of_kept(row):
        for charge in row["charges"]:
            if charge["group"] == "held out" and charge["sampling_rate"] > 0:
                change(charge)

    forge(directory, of_kept)
    assert checks <= set(failed(audit(directory)))


def test_counts_by_answer_alone_of_an_older_version_have_the_sensitivity_that_they_were_charged_with(copied):
    directory = copied()

    def of_kept(row):
        for charge in row["charges"]:
            if charge["group"] == "held out" and charge["sampling_rate"] > 0:
                charge.update(sensitivity=SLACK * math.sqrt(2))

    forge(directory, of_kept)
    assert noise.NAME in failed(audit(directory))
    change_json(directory / "held_out.json", lambda stored: stored.update(values=[row[:4] for row in stored["values"]]))
    assert noise.NAME not in failed(audit(directory))


def test_a_row_that_releases_kept_records_and_says_that_training_cost_the_others_is_named(copied):
    directory = copied()

    def both(row):
        if any(charge["group"] == "held out" and charge["sampling_rate"] > 0 for charge in row["charges"]):
            for charge in row["charges"]:
                charge.update(sampling_rate=1.0, sensitivity=charge["sensitivity"] or 0.1)

    forge(directory, both)
    assert noise.NAME in failed(audit(directory))


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda stored: stored.update(sigma=stored["sigma"] / 2), noise.NAME),
        (lambda stored: stored.update(values=[[1.0, 2.0, 3.0, 4.0]] * 2), noise.NAME),
        (lambda stored: stored.update(exact=[[1, 2, 3, 4]] * 2), noise.NAME),
    ],
)
def test_stored_counts_with_less_noise_or_more_than_the_release_are_named(copied, change, check):
    directory = copied()
    change_json(directory / "held_out.json", change)
    assert check in failed(audit(directory))


def test_a_summary_with_more_than_the_release_is_named(copied):
    directory = copied()
    change_json(directory / "summary.json", lambda summary: summary.update(held_out_exact={"accuracy": 0.5}))
    assert failed(audit(directory)) == [published.NAME]


def test_a_ledger_without_the_group_of_kept_records_is_named(finished, tmp_path):
    directory = shutil.copytree(finished("central", held_out_to="operator"), tmp_path / "run")
    change_json(directory / "config.json", lambda c: c["experiment"]["data"].update(held_out_to="everybody"))
    assert {promise.NAME, noise.NAME} <= set(failed(audit(directory)))
