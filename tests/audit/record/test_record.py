"""Laws of `fedsw audit RUN`: an honest folder passes every check, and whatever is changed in it is named."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedsw._tools.settings import FederationError
from fedsw._tools.text import downward, upward
from fedsw.audit import record
from fedsw.audit.record import cost, model, noise, promise, published, read_book, read_folder
from fedsw.cli.app import app
from fedsw.cli.options import invoke
from fedsw.federation import messages
from fedsw.privacy.accounting import pld
from fedsw.runs import recovery
from tests.federation.local_runs import kind_of
from tests.federation.sketch_runs import LOCAL, NOISELESS, sketched
from tests.federation.test_local_slices import FLOW, RELEASE, SLICES, experiment
from tests.federations import Federation, Saboteur, small

audit = functools.partial(record.audit, allow_modules=["tests.runs.single.examples"])

SEVERAL = (
    "objective.task=tests.runs.single.examples:ScoreTask",
    "model.kind=tests.runs.single.examples:TwoHeads",
    "objective.alpha=0.3",
    "objective.also=[{penalty='equality-of-odds', weight=0.2}, {penalty='prior-matching', weight=0.4, outputs='codes',"
    " dimension=2, radius=0.9, jacobian=0.5, prior_radius=0.8}]",
    "slicing.directions=5",
)

RUNS = {
    "central": lambda: small("seed=1"),
    "several penalties": lambda: small(*SEVERAL),
    "several penalties, iid": lambda: small(*SEVERAL, "slicing.scheme=iid", "training.rounds=2"),
    "none": lambda: small("privacy.trust=none"),
    "unsafe": lambda: small("privacy.noise_multiplier=2.0", "unsafe_metrics=true"),
    "local-gradient": lambda: small("privacy.trust=local-gradient", "privacy.epsilon=5.0"),
    "local-slices": lambda: experiment(SLICES, "slicing.scheme=iid"),
    "one-release flow": lambda: experiment(FLOW, "local.algorithm=flow-one-release", "training.rounds=2"),
    "local-release": lambda: experiment(RELEASE, "training.rounds=2"),
    "sketch": lambda: sketched("seed=1"),
    "sketch-local": lambda: sketched(LOCAL),
    "sketch, no noise": lambda: sketched(NOISELESS),
    "laplace": lambda: experiment(RELEASE, "local.mechanism=laplace", "local.norm=l1", "training.rounds=2"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a run of that name, made once; not to be changed."""
    home, made = tmp_path_factory.mktemp("runs"), dict[str, Path]()

    def find(name: str) -> Path:
        if name not in made:
            directory = home / name.replace(" ", "-")
            Federation(home).run(RUNS[name](), directory=directory)
            made[name] = directory
        return made[name]

    return find


@pytest.fixture
def copied(finished, tmp_path) -> Callable[[str], Path]:
    """A copy of such a folder, to be changed."""
    return lambda name="central": shutil.copytree(finished(name), tmp_path / "run")


def change_lines(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        change(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def change_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def change_checkpoint(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write the newest checkpoint again, whole, in the place of all others."""
    stored = read_folder(directory).checkpoint
    assert stored is not None
    change(stored)
    for path in directory.glob("checkpoint*.pt"):
        path.unlink()
    torch.save(stored, directory / "content")
    content = (directory / "content").read_bytes()
    title = b"fedsw checkpoint 2 " + hashlib.sha256(content).hexdigest().encode()
    (directory / "checkpoint.pt").write_bytes(title + b"\n" + content)


def change_ledger(path: Path, *statements: str) -> None:
    """Write to a ledger as somebody who drops its triggers can, and puts them back."""
    database = sqlite3.connect(path)
    triggers = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        database.execute(f"DROP TRIGGER {name}")
    for statement in (*statements, *(trigger for _, trigger in triggers)):
        database.execute(statement)
    database.commit()
    database.close()


def forge(directory: Path, change: Callable[[dict[str, Any]], object], *, header: bool = False) -> None:
    """Change every row (or the header) and every digest that commits to it, wherever it is remembered."""
    path = directory / "ledger.sqlite"
    book, statements = read_book(path), []
    body, previous = book.header
    if header:
        content = json.loads(body)
        change(content)
        body = json.dumps(content, sort_keys=True, separators=(",", ":"))
        previous = hashlib.sha256(body.encode()).hexdigest()
        statements.append(f"UPDATE header SET body = '{body}', digest = '{previous}'")
    for row in book.rows:
        content = json.loads(row.body)
        if not header:
            change(content)
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(json.dumps([previous, row.sequence, row.key, text]).encode()).hexdigest()
        values = f"body = '{text}', previous = '{previous}', digest = '{digest}'"
        statements.append(f"UPDATE rows SET {values} WHERE sequence = {row.sequence}")
        previous = digest
    change_ledger(path, *statements)
    head = {"sequence": len(book.rows), "digest": previous}
    change_json(directory / "summary.json", lambda summary: summary.update(ledger=head))
    change_checkpoint(directory, lambda stored: stored.update(ledger=head))


def failed(found) -> list[str]:
    assert found.passed == (not found.details["failed"])
    return found.details["failed"]


@pytest.mark.parametrize("name", list(RUNS))
def test_an_honest_folder_of_every_trust_model_passes_every_check(finished, name):
    found = audit(finished(name))
    assert failed(found) == [] and found.details["not_checked"] == [], found.details["checks"]
    assert found.passed and len(found.details["checks"]) == 7
    assert found.shown == found.claimed == math.inf or 0 < found.shown <= found.claimed * (1 + 1e-3)
    json.loads(json.dumps(found.as_dict()))


def test_a_run_that_accounted_on_a_gpu_is_audited_without_one_and_may_say_a_little_more(tmp_path, monkeypatch):
    directory = tmp_path / "run"
    with monkeypatch.context() as there:
        there.setattr(pld, "round_off_factor", lambda device: pld.ROUND_OFF)
        Federation(tmp_path).run(small("privacy.delta=1e-9", "training.rounds=2"), directory=directory)
    assert failed(audit(directory)) == [cost.REPLAY], "its processor would have said less"
    change_json(directory / "config.json", lambda config: config["experiment"]["training"].update(device="cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert failed(found := audit(directory)) == [] and not found.details["not_checked"], found.details["checks"]
    change_json(directory / "summary.json", lambda summary: summary.update(epsilon_spent=0.99 * found.shown))
    assert cost.REPLAY in failed(audit(directory)), "less is never right"


def test_a_line_with_seconds_a_count_or_an_un_noised_loss_is_named(copied):
    directory = copied()
    change_lines(directory / "metrics.jsonl", lambda line: line.update(seconds=0.1, training_loss=0.7, counts=[3, 4]))
    found = audit(directory)
    assert failed(found) == [published.NAME]
    (check,) = (each for each in found.details["checks"] if each["name"] == published.NAME)
    assert {key for key in ("seconds", "training_loss", "counts") if repr(key) in check["found"]} == {
        "seconds", "training_loss", "counts",
    }  # fmt: skip
    assert published.NAME in found.verdict


def test_un_noised_metrics_need_an_infinite_epsilon_for_their_reader(copied):
    directory = copied("unsafe")
    change_json(directory / "summary.json", lambda summary: summary.update(epsilon_of_reader=summary["epsilon"]))
    assert {published.NAME, promise.NAME} <= set(failed(audit(directory)))


def test_an_epsilon_in_the_metrics_that_its_rows_do_not_cost_is_named(copied):
    directory = copied()
    change_lines(directory / "metrics.jsonl", lambda line: line.update(epsilon=line["epsilon"] * 0.9))
    assert failed(audit(directory)) == [cost.REPLAY]


def test_a_kept_release_with_more_than_noised_arrays_is_named(copied):
    directory = copied("local-release")
    path = directory / "releases/client-1.safetensors"
    save_file({**load_file(path), "features": torch.zeros(3)}, path)
    assert failed(audit(directory)) == [published.NAME]


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.update(snr=line["snr"] * 1.01),
        lambda line: line.update(bytes_up=line["bytes_up"] + 8 * (line["round"] == 3)),
        lambda line: line.update(bytes_up=1000 - line["round"]),
        lambda line: line.update(held_out={"outputs": [0.1, 0.2]}),
    ],
    ids=["a ratio of something else", "sizes of messages", "no totals", "outputs"],
)
def test_numbers_that_tell_more_than_the_noised_release_are_named(copied, change):
    directory = copied()
    change_lines(directory / "metrics.jsonl", change)
    assert failed(audit(directory)) == [published.NAME]


def test_a_checkpoint_with_more_than_released_vectors_is_named(copied):
    directory = copied()
    change_checkpoint(directory, lambda stored: stored.update(batch_key=b"secret"))
    assert failed(audit(directory)) == [published.NAME]


def test_an_edited_row_breaks_the_chain(copied):
    directory = copied()
    edit = "UPDATE rows SET body = replace(body, '\"round\":2', '\"round\":3') WHERE sequence = 2"
    change_ledger(directory / "ledger.sqlite", edit)
    assert model.CHAIN in failed(audit(directory))


@pytest.mark.parametrize("name", ["central", "local-gradient"])
def test_a_row_cut_off_at_the_end_is_missed(copied, name):
    directory = copied(name)
    change_ledger(read_folder(directory).books[-1].path, "DELETE FROM rows WHERE sequence = 4")
    found = audit(directory)
    assert {model.CHAIN, cost.REPLAY} <= set(failed(found))
    assert all(name in found.verdict for name in failed(found))


def test_an_attempt_charged_twice_over_is_named(copied):
    directory = copied()
    forge(directory, lambda row: row.update(round=1))
    assert model.CHAIN in failed(audit(directory))


def test_a_summary_that_tells_of_less_than_the_rows_cost_is_named(copied):
    directory = copied()
    change_json(directory / "summary.json", lambda summary: summary.update(epsilon=0.5, epsilon_spent=0.5))
    assert {cost.REPLAY, cost.INDEPENDENT, promise.NAME} <= set(failed(audit(directory)))


def test_less_noise_is_named_although_every_digest_was_forged(copied):
    directory = copied()
    forge(directory, lambda row: row.update(sigma=row["sigma"] / 2))
    found = audit(directory)
    assert model.CHAIN not in failed(found)
    assert {cost.REPLAY, cost.INDEPENDENT, noise.NAME} <= set(failed(found))


@pytest.mark.parametrize("name", ["sensitivity", "sampling_rate"])
def test_a_sensitivity_or_rate_below_the_settings_is_named_although_all_else_was_forged(copied, name):
    directory = copied()

    def change(row):
        for charge in row["charges"]:
            charge[name] *= 0.97

    forge(directory, change)
    assert noise.NAME in failed(audit(directory))


@pytest.mark.parametrize("name", ["several penalties", "several penalties, iid"])
@pytest.mark.parametrize("stratum", [0, 3])
def test_a_wrong_sensitivity_of_several_penalties_is_named_although_all_else_was_forged(copied, name, stratum):
    directory = copied(name)

    def change(row):
        row["charges"][stratum]["sensitivity"] *= 0.999

    forge(directory, change)
    found = audit(directory)
    assert noise.NAME in failed(found) and model.CHAIN not in failed(found)
    said = {each["name"]: each["found"] for each in found.details["checks"]}[noise.NAME]
    assert "is less than" in said and "by the formula" in said


def test_sensitivity_and_noise_lowered_together_are_named_in_a_clients_ledger(copied):
    directory = copied("local-gradient")
    change_ledger(
        directory / "clients/client-0.sqlite",
        "UPDATE rows SET body = json_set(body, '$.sigma', json_extract(body, '$.sigma') / 2, "
        "'$.charges[0].sensitivity', json_extract(body, '$.charges[0].sensitivity') / 2)",
    )
    assert {model.CHAIN, noise.NAME} <= set(failed(audit(directory)))


def test_another_delta_or_budget_is_named_although_every_digest_was_forged(copied, tmp_path):
    for name, value in (("delta", 1e-3), ("epsilon", 50.0)):
        directory = copied()
        forge(directory, lambda header, name=name, value=value: header.update({name: value}), header=True)
        assert promise.NAME in failed(audit(directory))
        shutil.rmtree(directory)


@pytest.mark.parametrize(
    "change",
    [
        lambda summary: summary.update(nominal=False),
        lambda summary: summary.update(delta=1e-9),
        lambda summary: summary["guarantee"].update(trust="local-gradient"),
        lambda summary: summary["guarantee"].update(statement="(0.1, 1e-9)-differential privacy of everything."),
    ],
    ids=["nominal", "delta", "trust", "statement"],
)
def test_words_that_do_not_fit_the_settings_are_named(copied, change):
    directory = copied()
    change_json(directory / "summary.json", change)
    assert failed(audit(directory)) == [promise.NAME]


def test_a_sentence_that_rounds_down_fails(copied):
    directory = copied()
    summary = json.loads((directory / "summary.json").read_text())
    words = summary["guarantee"]["statement"].replace(upward(summary["delta"]), downward(summary["delta"]))
    assert words != summary["guarantee"]["statement"]
    change_json(directory / "summary.json", lambda found: found["guarantee"].update(statement=words))
    assert failed(audit(directory)) == [promise.NAME]


def test_the_sentence_of_another_version_is_said_to_be_unchecked_and_its_numbers_are_checked(copied):
    directory = copied()
    change_json(directory / "summary.json", lambda summary: summary["versions"].update(fedsw="0.0"))
    found = audit(directory)
    assert found.passed and found.details["not_checked"] == [promise.NAME] and "fedsw 0.0 wrote it" in str(found.rows)
    change_json(directory / "summary.json", lambda summary: summary["guarantee"].update(trust="local-gradient"))
    assert failed(audit(directory)) == [promise.NAME]


def test_a_changed_weight_is_named(copied):
    directory = copied()
    tensors = load_file(directory / "model.safetensors")
    next(iter(tensors.values())).view(-1)[0] += 1e-6
    save_file(tensors, directory / "model.safetensors")
    assert failed(audit(directory)) == [model.NAME]


def test_the_checkpoint_of_another_round_is_named(copied):
    directory = copied()
    change_checkpoint(directory, lambda stored: stored.update(round=3))
    assert failed(audit(directory)) == [model.NAME]


def test_one_file_that_cannot_be_read_stops_no_other_check(copied):
    directory = copied()
    (directory / "ledger.sqlite").write_bytes(b"not a database, " * 100)
    found = audit(directory)
    assert {model.CHAIN, cost.REPLAY, cost.INDEPENDENT, noise.NAME} <= set(failed(found))
    assert published.NAME not in failed(found) and math.isnan(found.shown)


def test_a_run_that_is_going_on_is_refused_and_so_is_a_folder_without_one(copied, tmp_path):
    directory = copied()
    with recovery.held(directory), pytest.raises(ValueError, match="being run by another process"):
        audit(directory)
    with pytest.raises(ValueError, match="is not a run"):
        audit(tmp_path)


def test_a_run_killed_before_its_summary_is_held_to_its_plan(copied):
    directory = copied()
    (directory / "summary.json").unlink()
    (directory / "model.safetensors").unlink()
    lines = (directory / "log.jsonl").read_text().splitlines()
    (directory / "log.jsonl").write_text("\n".join(lines[:-1]) + "\n")
    found = audit(directory)
    assert failed(found) == [] and found.claimed == 1.0
    change_json(directory / "plan.json", lambda plan: plan.update(epsilon=0.5))
    assert {cost.REPLAY, cost.INDEPENDENT, promise.NAME} <= set(failed(audit(directory)))


@pytest.mark.parametrize("trust", ["central", "local-gradient"])
def test_a_run_that_broke_off_passes_and_passes_again_once_it_was_resumed(tmp_path, trust):
    federation, directory, left = Federation(tmp_path), tmp_path / "run", [2]
    chosen = small(f"privacy.trust={trust}", "privacy.epsilon=9.0")

    def crash(message, context):
        if (
            kind_of(message) in (messages.OUTPUTS.kind, messages.TABLES.kind)
            and context.node_config["partition-id"] == 1
        ):
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("broken")

    with pytest.raises(FederationError):
        federation.run(chosen, directory=directory, app=Saboteur(crash))
    broken = audit(directory)
    assert failed(broken) == [] and broken.details["status"].startswith("failed")
    federation.run(chosen, directory=directory, resume=True)
    whole = audit(directory)
    assert failed(whole) == [] and whole.details["status"].startswith(("completed", "stopped"))
    assert broken.shown < whole.shown <= 9.0 * (1 + 1e-5)  # its own upper bound, on another grid


def test_clients_that_dropped_out_leave_larger_rates_and_sensitivities_and_pass(tmp_path):
    def leave(message, context):
        if kind_of(message) == messages.OUTPUTS.kind and context.node_config["partition-id"] == 2:
            raise RuntimeError("gone")

    chosen = small("federation.min_clients=2", "federation.max_attempts=4", "privacy.epsilon=9.0")
    Federation(tmp_path).run(chosen, directory=tmp_path / "run", app=Saboteur(leave))
    assert failed(audit(tmp_path / "run")) == []


def test_ledgers_that_are_elsewhere_are_said_to_be_unchecked(copied):
    directory = copied("local-gradient")
    shutil.rmtree(directory / "clients")
    found = audit(directory)
    assert found.passed
    assert found.details["not_checked"] == [model.CHAIN, cost.REPLAY, cost.INDEPENDENT, noise.NAME]
    assert "not checked" in found.verdict


def test_a_run_that_went_on_with_other_sizes_is_not_said_to_have_passed_the_comparison(copied):
    directory = copied()
    first = next(line for line in (directory / "log.jsonl").read_text().splitlines() if "run begins" in line)
    (directory / "log.jsonl").write_text(first + "\n" + (directory / "log.jsonl").read_text())

    def others(summary):
        rates = summary["guarantee"]["sampling_rates"]
        rates.update({group: rate / 2 for group, rate in rates.items()})

    change_json(directory / "summary.json", others)
    found = audit(directory)
    assert noise.NAME in found.details["not_checked"] and noise.NAME not in found.details["failed"]


def test_without_dp_accounting_the_finding_says_what_was_not_checked(copied, monkeypatch):
    directory = copied()

    def missing(*arguments):
        raise ModuleNotFoundError("No module named 'dp_accounting'", name="dp_accounting")

    monkeypatch.setattr(cost, "recomputed", missing)
    found = audit(directory)
    assert found.passed and found.details["not_checked"] == [cost.INDEPENDENT] and found.draw is None


def test_the_command_keeps_json_and_figure_and_its_exit_code_tells_the_verdict(copied, tmp_path, capsys):
    directory = copied()
    command = ["audit", str(directory), "--output", str(tmp_path / "audits"), "--json"]
    assert invoke(app, command, debug=True) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["audit"] == "record" and printed["passed"] and printed["confidence"] is None
    assert sorted(Path(path).suffix for path in printed["files"]) == [".json", ".png"]
    (directory / "model.safetensors").write_bytes(b"")
    assert invoke(app, command, debug=True) == 1
