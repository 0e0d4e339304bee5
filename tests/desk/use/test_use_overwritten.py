"""Laws of what verbs write over: nothing that is there without a word, and never a file that is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

import fedsw
from fedsw.cli.app import main
from fedsw.data import BadRecords
from fedsw.experiment import ExperimentError


@pytest.fixture
def table(place: Path, tmp_path: Path) -> Path:
    """A table to predict from."""
    return Path(shutil.copy(place / "held-out.csv", tmp_path / "t.csv"))


def refused(capsys, *command: object) -> str:
    capsys.readouterr()
    assert main([str(word) for word in command]) == 2
    return " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_there_is_written_over_with_force_alone(classifier, table, tmp_path):
    verbs = [
        (["predict", classifier, table, "-o"], "p.csv"),
        (["export", classifier, "-o"], "m.pt"),
        (["report", classifier, "-o"], "r.html"),
        (["show", classifier, "card", "-o"], "c.md"),
        (["init", table.parent, "--group", "sex", "--target", "income", "--from-public", "-o"], "own.toml"),
    ]
    for words, name in verbs:
        out = tmp_path / "there" / name
        out.parent.mkdir(exist_ok=True)
        out.write_text("somebody's")
        line = [*map(str, words), str(out)]
        assert main(line) == 2 and out.read_text() == "somebody's", line
        assert main([*line, "--force"]) == 0 and "somebody's" not in out.read_text(errors="replace"), line
    (tmp_path / "there" / "n.pt.json").write_text("somebody's")  # what stands beside an export, too
    assert main(["export", str(classifier), "-o", str(tmp_path / "there" / "n.pt")]) == 2
    assert not (tmp_path / "there" / "n.pt").exists()


def test_a_file_that_is_read_is_never_written_over(classifier, table, tmp_path, capsys):
    run = Path(shutil.copytree(classifier, tmp_path / "run"))
    (tmp_path / "link.csv").symlink_to(table)
    data = tmp_path / "DATA"
    shutil.copytree(table.parents[0] / "run", data / "run")  # a folder that is no client's
    shutil.copy(table, data / "t.csv")
    lines = [
        ["predict", run, table, "-o", table],
        ["predict", run, table, "-o", tmp_path / "link.csv"],
        ["predict", run, table, "-o", run / "model.safetensors"],
        ["export", run, "-o", run / "config.json"],
        ["report", run, "-o", run / "summary.json"],
        ["show", run, "card", "-o", run / "ledger.sqlite"],
        ["init", data, "--group", "sex", "--target", "income", "--from-public", "-o", data / "t.csv"],
        ["init", data, "--code-book-template", data / "t.csv"],
    ]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for line in lines:
        assert "which is read here, and would be lost" in refused(capsys, *line, "--force"), line
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["out.parquet", "out.XLSX", "out.pdf", "out.csv.gz", "made.up"])
def test_nothing_is_written_under_a_name_that_says_another_format(classifier, table, tmp_path, capsys, name):
    lines = {
        "the table of predictions is written as CSV, between commas": [["predict", classifier, table]],
        "the table is written as CSV": [["synthesize", tmp_path / "own.toml"]],
        "the page is written as HTML": [["report", classifier], ["describe", tmp_path / "own.toml"]],
        "the card is written as Markdown or HTML": [["show", classifier, "card"]],
        "the picture is written as PNG": [["plan", tmp_path / "own.toml", "--picture"]],
    }
    (tmp_path / "own.toml").write_text("")
    for why, verbs in lines.items():
        for line in verbs:
            said = refused(capsys, *line, *([] if line[-1] == "--picture" else ["-o"]), tmp_path / name)
            assert f"ends with {Path(name).suffix.lower()}, and {why}: name a file that ends with" in said
    assert not (tmp_path / name).exists()


def test_what_is_made_of_a_run_in_its_own_folder_is_made_again(classifier, tmp_path):
    run = shutil.copytree(classifier, tmp_path / "run")
    (run / "report.html").write_text("old")
    (run / "card.md").write_text("old")
    assert main(["report", str(run)]) == 0 and main(["show", str(run), "card"]) == 0
    assert "old" not in ((run / "report.html").read_text()[:3], (run / "card.md").read_text())


@pytest.mark.parametrize("name", ["predicted_income", "probability_high", "row"])
def test_a_kept_column_never_takes_the_place_of_an_answer(classifier, place, name):
    frame = pd.read_csv(place / "held-out.csv").assign(**{name: "mine"})
    with pytest.raises(ExperimentError, match=f"column '{name}' is to be kept, and the answer has a column"):
        fedsw.load(classifier).predict(frame, keep=[name])
    assert list(fedsw.load(classifier).predict(frame, keep=["id"])["id"]) == list(frame["id"])


def test_one_row_of_a_frame_is_one_record(classifier, regression, place):
    frame = pd.read_csv(place / "held-out.csv").set_index("id", drop=False)
    for run in (classifier, regression):
        model = fedsw.load(run)
        whole = model.predict(frame)
        for row in (0, 7):
            pd.testing.assert_frame_equal(model.predict(frame.iloc[row]), whole.iloc[[row]], check_names=False)
    with pytest.raises(BadRecords, match="is one row or one column"):
        fedsw.load(classifier).predict(frame.reset_index(drop=True)["age"])
