"""What an option means does not depend on the verb, and a run is named the same way everywhere."""

from __future__ import annotations

import functools

import click
import pytest
import typer

from fedsw.cli.app import app, main
from fedsw.cli.options import changes_of

WITHOUT_JSON = {"init", "certs", "client", "bundle", "certs roster add", "certs roster digest"}
"""Verbs whose answer is a file, or that serve until they are stopped, or one hash."""


@functools.cache
def whole():
    """The whole command, whose many options take long to make."""
    return typer.main.get_command(app)


def verbs():
    def walk(command, path=()):
        if isinstance(command, click.Group):
            for name, below in command.commands.items():
                yield from walk(below, (*path, name))
        else:
            yield " ".join(path), command

    return dict(walk(whole()))


def groups():
    """Verbs that have verbs of their own, which take options, too."""
    return {name: command for name, command in whole().commands.items() if isinstance(command, click.Group)}


def options(command, kind=click.Option):
    return {name: each for each in command.params if isinstance(each, kind) for name in each.opts}


def test_where_settings_follow_an_experiment_they_may_be_given_by_set_too():
    taken = {name for name, command in verbs().items() if "settings" in options(command, click.Argument)}
    assert taken == {"check", "describe", "plan", "tune", "run", "synthesize", "audit", "server", "deploy local"}
    for name in taken:
        assert {"--set", "--epsilon"} <= options(verbs()[name]).keys(), name


@pytest.mark.parametrize("option", ["--set", "--data-dir", "--json", "--runs", "--seed", "--allow-module"])
def test_an_option_has_one_meaning(option):
    """The same type and words, whatever the verb; `client` says whose folder it is."""
    found = {name: options(command)[option] for name, command in verbs().items() if option in options(command)}
    meant = {
        (type(each.type).__name__, each.multiple, each.is_flag, each.help)
        for name, each in found.items()
        if name != "client"
    }
    assert len(found) > 2 and len(meant) == 1, meant


COMMANDS = {"": whole(), **verbs(), **groups()}
VALUED = [
    pytest.param(verb, max(option.opts, key=len), id=f"{verb or 'fedsw'} {option.name}")
    for verb, command in COMMANDS.items()
    for option in {id(each): each for each in options(command).values()}.values()
    if not option.multiple and (not option.is_flag or option.secondary_opts)
]
"""Every option of the whole command line that has one value, with its verb."""


@pytest.mark.parametrize(("verb", "option"), VALUED)
def test_an_option_that_takes_one_value_is_given_once(verb, option, capsys):
    words = verb.split()
    valued = not options(COMMANDS[verb])[option].is_flag
    twice = [option, "1", f"{option}=2"] if valued else [option, option]
    assert main([*words, *twice]) == 2
    said = capsys.readouterr().err
    assert option in said and "is given 2 times and takes one value" in said


def test_more_than_a_hundred_options_are_tried():
    assert len(VALUED) > 100 and {"certs", "account"} <= {case.values[0] for case in VALUED}


def test_a_list_takes_many_and_a_flag_says_the_same_twice(capsys):
    assert main(["list", "--json", "--json"]) == 0
    assert main(["run", "fair-classification", "--set", "a.b=1", "--set", "c=2"]) == 2
    assert "given 2 times" not in capsys.readouterr().err


def test_every_verb_that_answers_has_json():
    assert {name for name, command in verbs().items() if "--json" not in options(command)} <= WITHOUT_JSON


def test_settings_are_put_together_alike_and_an_option_wins(tmp_path):
    changes = changes_of(["a.b=2"], ["a.b=1"], epsilon=3.0, clients=2, seed=0, data_dir=tmp_path / "x")
    assert changes[:5] == ["a.b=1", "a.b=2", "privacy.epsilon=3.0", "federation.clients=2", "seed=0"]
    assert changes[5] == f'data.data_dir="{tmp_path.resolve() / "x"}"' and changes_of(None) == []


@pytest.mark.parametrize(
    "line",
    [
        "show nobody", "resume nobody", "predict nobody table.csv", "export nobody -o model.pt", "evaluate nobody",
        "audit nobody", "distance nobody", "plan --after-moments nobody", "server --certs . --resume nobody",
    ],
)  # fmt: skip
def test_a_run_is_named_by_its_path_its_name_or_its_experiment_wherever_one_is_asked_for(line, tmp_path, capsys):
    (tmp_path / "table.csv").touch()
    assert (
        main(
            [word.replace("table.csv", str(tmp_path / "table.csv")) for word in line.split()]
            + ["--runs", str(tmp_path)]
        )
        == 2
    )
    assert "no run at 'nobody'" in capsys.readouterr().err


def test_every_line_of_help_fits_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name in ["", *verbs()]:
        assert main([*name.split(), "--help"]) == 0
        assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
