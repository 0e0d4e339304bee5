"""Several observers as one: none of them can end a run that spends budget."""

import logging

import pytest

from fedsw.federation.engines import driver
from fedsw.runs.observer import Ending, Witness
from fedsw.runs.observers import Observers, numbers_of, words_of
from tests.federations import small


class Notes:
    """Writes down every call; raises at the call that `fails` names."""

    def __init__(self, fails="", fault=None):
        self.calls, self.fails = [], fails
        self.fault = fault or ConnectionError("the tracking server is gone")

    def note(self, what):
        self.calls.append(what)
        if what == self.fails:
            raise self.fault

    def started(self, plan):
        self.note("started")

    def round_done(self, record):
        self.note(f"round {record['round']}")

    def finished(self, summary):
        self.note("finished")


class Wants(Notes):
    """Is shown models and ends, too."""

    def released(self, round_, theta, outcome):
        self.note(f"released {round_}")

    def broke_off(self, status):
        self.note(f"broke off: {status}")


ALL = ["started", "round 1", "round 2", "round 3", "round 4", "finished"]


@pytest.mark.parametrize("fails", ALL)
def test_an_observer_that_raises_does_not_end_the_run_and_is_left_out_after_one_warning(tmp_path, caplog, fails):
    bad, good = Notes(fails), Notes()
    with caplog.at_level(logging.WARNING, logger="fedsw.server"):
        result = driver.run(small(), runs=tmp_path, observer=Observers(bad, good))
    assert result.summary["status"] == "completed" and result.summary["released_rounds"] == 4
    assert good.calls == ALL and bad.calls == ALL[: ALL.index(fails) + 1]
    warnings = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(warnings) == 1 and "Notes" in warnings[0] and "the tracking server is gone" in warnings[0]


def test_the_same_rounds_are_charged_whether_an_observer_fails_or_not(tmp_path):
    alone = driver.run(small("seed=1"), runs=tmp_path / "a")
    beside = driver.run(small("seed=1"), runs=tmp_path / "b", observer=Observers(Notes("round 1"), Notes("started")))
    assert [line["epsilon"] for line in alone.history] == [line["epsilon"] for line in beside.history]
    assert [line["gradient_norm"] for line in alone.history] == [line["gradient_norm"] for line in beside.history]


def test_an_interruption_passes_and_everyone_who_wants_to_knows_of_the_end(federation):
    interrupting, wants, plain = Notes("round 2", KeyboardInterrupt()), Wants(), Notes()
    with pytest.raises(KeyboardInterrupt):
        federation.run(small(), observer=Observers(wants, plain, interrupting))
    rounds = ["released 1", "round 1", "released 2", "round 2"]
    assert wants.calls == ["started", *rounds, "broke off: interrupted"]
    assert plain.calls == ["started", "round 1", "round 2"]


def test_only_who_asks_for_models_is_shown_them_and_a_failing_one_is_left_out_of_all():
    wants, plain = Wants("released 1"), Notes()
    several = Observers(wants, plain)
    assert isinstance(several, Witness) and isinstance(several, Ending)
    several.released(1, None, None)
    several.round_done({"round": 1})
    several.broke_off("failed")
    assert wants.calls == ["released 1"] and plain.calls == ["round 1"]


def test_numbers_are_flat_and_words_gaps_and_truths_are_no_numbers():
    record = {
        "round": 3, "epsilon": 0.5, "snr": None, "clients": 4, "nominal": True, "status": "completed", "sigma": "inf",
        "held_out": {"accuracy": 0.75, "mine.odd (name)": 1}, "epsilon_by_client": {"0": 0.1}, "training_loss": 0.3,
        "list": ["a", "b"],
    }  # fmt: skip
    assert numbers_of(record) == {
        "epsilon": 0.5,
        "clients": 4.0,
        "sigma": float("inf"),
        "held_out/accuracy": 0.75,
        "held_out/mine.odd _name_": 1.0,
        "epsilon_by_client/0": 0.1,
        "unsafe/training_loss": 0.3,
    }
    assert words_of(record) == {"nominal": "True", "status": "completed", "list": "a, b"}
