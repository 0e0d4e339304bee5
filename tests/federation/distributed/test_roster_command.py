"""`fedsw certs roster`, and the client that starts with what it makes."""

from __future__ import annotations

import json
import re

import pytest

from fedsw.cli.app import main
from fedsw.experiment import ExperimentError
from fedsw.federation.deploy.certificates import LOOPBACK, write_certificates, write_node_key
from fedsw.federation.deploy.node_settings import NodeSettings
from fedsw.federation.node.limits import choice_of, require_limits
from fedsw.federation.node.roster import COLLUDING, KEY, ROSTER, grouped, read_roster
from tests.federation.distributed.sites import experiment_of


def public_key(folder, capsys) -> str:
    capsys.readouterr()
    assert main(["certs", "roster", "key", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["public"]


@pytest.fixture
def roster(tmp_path, capsys):
    path = tmp_path / "roster.toml"
    for name in ("st mary", "st john"):
        key = public_key(tmp_path / name, capsys)
        assert main(["certs", "roster", "add", str(path), "--name", name, "--key", key, "--clients", "2"]) == 0
    capsys.readouterr()
    return path


def test_a_roster_is_made_of_public_keys_and_shown_with_its_digest(roster, capsys):
    found = read_roster(roster)
    assert [(each.name, each.clients) for each in found.member] == [("st mary", 2), ("st john", 2)]
    assert main(["certs", "roster", "show", str(roster)]) == 0
    shown = capsys.readouterr().out
    assert main(["certs", "roster", "digest", str(roster)]) == 0
    digest = capsys.readouterr().out.strip()
    assert digest == grouped(found.digest) and digest in shown and "st john, 2 clients" in shown
    assert all(each.key in shown for each in found.member)


def test_what_is_no_key_or_there_already_is_refused(roster, capsys):
    key = read_roster(roster).member[0].key
    assert main(["certs", "roster", "add", str(roster), "--name", "other", "--key", key]) == 2
    assert "in the roster already" in capsys.readouterr().err
    assert main(["certs", "roster", "add", str(roster), "--name", "other", "--key", "12"]) == 2
    assert "64 hexadecimal digits" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("st\u202eluap ts", "holds U+202E, which is not seen"),
        ("st\u200bpaul", "holds U+200B"),
        ("st\npaul", "holds U+000A"),
        (" st paul", "begins or ends with a space"),
    ],
)
def test_a_name_that_does_not_read_as_it_stands_is_in_no_roster(roster, name, said, tmp_path, capsys):
    key, before = public_key(tmp_path / "paul", capsys), roster.read_text()
    assert main(["certs", "roster", "add", str(roster), "--name", name, "--key", key]) == 2
    assert said in capsys.readouterr().err and roster.read_text() == before
    roster.write_text(before + f"[[member]]\nname = {json.dumps(name)}\nkey = {json.dumps(key)}\nclients = 1\n")
    with pytest.raises(ExperimentError, match=re.escape(said)):
        read_roster(roster)


def test_a_name_is_one_name_however_its_letters_are_coded(roster, tmp_path, capsys):
    digests = set()
    for name in ("K\u00f6ln", "Ko\u0308ln"):
        copy = tmp_path / f"{len(name)}.toml"
        copy.write_text(roster.read_text())
        key = read_roster(roster).member[0].key.replace("0", "1")
        assert main(["certs", "roster", "add", str(copy), "--name", name, "--key", key]) == 0
        digests.add(read_roster(copy).digest)
    assert len(digests) == 1


def settings(tmp_path, **given) -> NodeSettings:
    files = write_certificates(tmp_path / "certificates", LOOPBACK)
    key = write_node_key(tmp_path / "keys" / "client0").with_suffix("")
    state = tmp_path / "st mary"
    return NodeSettings("localhost:1", files.authority, key, 0, 2, state_dir=state, trust="any", own_data=True, **given)


def test_a_client_says_its_rosters_digest_and_has_what_masked_sums_need(roster, tmp_path):
    config = settings(tmp_path, roster=roster, colluding=1).node_config
    assert (config[ROSTER], config[COLLUDING]) == (str(roster.resolve()), 1)
    assert config[KEY] == str((tmp_path / "st mary" / "mask.key").resolve())
    said = choice_of(config)
    assert grouped(read_roster(roster).digest) in said and "of 2 sites, 1 colluding" in said
    require_limits(experiment_of(), config)


def test_a_client_without_a_roster_refuses_masked_sums_at_the_greeting(tmp_path):
    (tmp_path / "st mary").mkdir()
    with pytest.raises(ExperimentError, match="started without roster"):
        require_limits(experiment_of(), settings(tmp_path).node_config)


def test_a_roster_without_a_number_of_colluding_clients_is_refused(roster, tmp_path):
    with pytest.raises(ValueError, match="go together"):
        settings(tmp_path, roster=roster)
