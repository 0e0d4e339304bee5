"""Laws of an entry for the registry of deployments: its shape is the registry's, its numbers the run's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedsw.cli.app import main
from fedsw.runs.run_files import read_json
from fedsw.runs.view import read_run
from fedsw.runs.write import entry, write_entry

yaml = pytest.importorskip("yaml")
SCHEMA = yaml.safe_load(Path(__file__).with_name("deployments-schema.yaml").read_text(encoding="utf-8"))


def faults(found: object) -> list[str]:
    jsonschema = pytest.importorskip("jsonschema")  # takes two seconds of whoever collects this file
    checker = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
    return [fault.message for fault in checker.iter_errors(found)]


@pytest.mark.parametrize("name", ["central", "local", "distributed"])
def test_an_entry_has_the_registry_s_shape_and_the_run_s_numbers(name, request, tmp_path):
    directory = request.getfixturevalue(name)
    summary = read_json(directory / "summary.json")
    found = yaml.safe_load(write_entry(directory, tmp_path / "entry.yaml").read_text())
    assert faults(found) == []
    loss = found["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": summary["epsilon"], "delta": summary["delta"]}
    assert loss["privacy_unit_details"] == summary["guarantee"]["statement"]
    assert found["deployment"]["deployment_model"]["model_name"] == {"central": "Central"}.get(name, "Federated")
    assert found["deployment"]["basic"]["data_curators"][0].startswith("QUESTION")


@pytest.mark.parametrize(
    "broken",
    [
        lambda found: found.pop("tier"),
        lambda found: found["deployment"]["basic"].update(publication_date="yesterday"),
        lambda found: found["deployment"]["basic"].update(data_product_type="A model"),
        lambda found: found["deployment"].update(surprise="x"),
        lambda found: found["deployment"]["privacy_loss"]["privacy_parameters"].update(epsilon="one"),
    ],
)
def test_a_broken_entry_is_seen(central, broken):
    found = yaml.safe_load(entry(read_run(central)))
    broken(found)
    assert faults(found)


def test_what_promises_nothing_is_no_entry(unsafe, without_noise, central, tmp_path):
    for directory in (unsafe, without_noise):
        with pytest.raises(ValueError, match="no guarantee, or shows metrics of private records"):
            entry(read_run(directory))
    seeded = tmp_path / "seeded"
    shutil.copytree(central, seeded)
    summary = read_json(seeded / "summary.json")
    (seeded / "summary.json").write_text(json.dumps({**summary, "nominal": True}))
    with pytest.raises(ValueError, match="nominal"):
        entry(read_run(seeded))


def test_texts_of_strangers_stay_texts(central, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(central, copy)
    config = read_json(copy / "config.json")
    config["experiment"]["title"] = 'x"\nstatus: Approved # {{ 1 }} & <b>'
    (copy / "config.json").write_text(json.dumps(config))
    found = yaml.safe_load(entry(read_run(copy)))
    assert found["status"] == "Draft" and found["deployment"]["basic"]["name"] == config["experiment"]["title"]


def test_letters_beyond_the_first_plane_are_read_again(central, tmp_path):
    """JSON writes them as two halves, which YAML takes for none."""
    copy = tmp_path / "copy"
    shutil.copytree(central, copy)
    config = read_json(copy / "config.json")
    config["experiment"]["title"] = "fair \N{SNAKE} run"
    (copy / "config.json").write_text(json.dumps(config))
    path = write_entry(copy)
    assert yaml.safe_load(path.read_text("utf-8"))["deployment"]["basic"]["name"] == "fair \N{SNAKE} run"


def test_the_command_writes_it(central, tmp_path, capsys):
    assert main(["report", str(central), "--registry", "-o", str(tmp_path / "entry.yaml")]) == 0
    assert "QUESTION" in (tmp_path / "entry.yaml").read_text() and "entry.yaml" in capsys.readouterr().out
    assert main(["report", str(central), str(central), "--registry"]) == 2
