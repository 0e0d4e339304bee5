"""Rosters and keys: who is in, under which digest, and who may read what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsw._tools.settings import ExperimentError
from fedsw.federation.node.roster import (
    KEY_FILE,
    Roster,
    RosterSite,
    grouped,
    keyring_of,
    read_mask_key,
    read_roster,
    simulated_key,
    write_mask_key,
)
from fedsw.privacy.masks import MaskKey

NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name.isprintable() and name == name.strip())
MEMBERS = st.lists(
    st.builds(
        RosterSite, name=NAMES, key=st.binary(min_size=32, max_size=32).map(bytes.hex), clients=st.integers(1, 9)
    ),
    max_size=5,
    unique_by=(lambda each: each.name, lambda each: each.key),
)


@given(MEMBERS)
def test_a_roster_is_read_as_it_was_written_and_its_order_does_not_matter(tmp_path_factory, members):
    path = tmp_path_factory.mktemp("roster") / "roster.toml"
    path.write_text(Roster(member=tuple(members)).text(), encoding="utf-8")
    found = read_roster(path)
    assert found.member == tuple(members)
    assert found.digest == Roster(member=tuple(reversed(members))).digest


@given(MEMBERS.filter(bool), st.sampled_from(["name", "key", "clients"]))
def test_another_member_has_another_digest(members, what):
    other = {"name": members[0].name + "x", "key": "ab" * 32, "clients": members[0].clients + 1}[what]
    changed = members[0].model_copy(update={what: other})
    assert Roster(member=tuple(members)).digest != Roster(member=(changed, *members[1:])).digest


def test_a_member_is_in_it_once_and_has_a_key():
    key = MaskKey.fresh().public.hex()
    roster = Roster().with_member(RosterSite(name="a", key=key))
    for member in (RosterSite(name="a", key=MaskKey.fresh().public.hex()), RosterSite(name="b", key=key)):
        with pytest.raises(ExperimentError, match="in the roster already"):
            roster.with_member(member)
    with pytest.raises(ExperimentError, match="no public key"):
        roster.with_member(RosterSite(name="c", key="00" * 32))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("member = 3", "member"),
        ("[[member]]\nname = 'a'\nkey = 'ab'", "key"),
        (f"[[member]]\nname = 'a'\nkey = '{'ab' * 32}'\n" * 2, "twice"),
        ("[", "not valid TOML"),
    ],
)
def test_a_roster_that_is_none_is_named(tmp_path, text, match):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ExperimentError, match=match):
        read_roster(tmp_path / "r.toml")


def test_a_private_key_is_made_once_and_its_owner_alone_reads_it(tmp_path):
    path = write_mask_key(tmp_path / "site")
    assert path.stat().st_mode & 0o777 == 0o600 and path.name == KEY_FILE
    with pytest.raises(FileExistsError, match="never replaced"):
        write_mask_key(tmp_path / "site")
    assert read_mask_key(path).public == read_mask_key(path).public
    path.chmod(0o644)
    with pytest.raises(ExperimentError, match="mode to 600"):
        read_mask_key(path)
    path.chmod(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ExperimentError, match="not 32"):
        read_mask_key(path)
    with pytest.raises(ExperimentError, match="fedsw certs roster key"):
        read_mask_key(tmp_path / "none")


def test_a_site_of_somebodys_own_never_uses_a_key_that_others_can_know(tmp_path):
    for config in ({"own-data": 1, "partition-id": 0}, {"partition-id": 0, "data-dir": "x", "modules": ""}):
        with pytest.raises(ExperimentError, match="started without roster"):
            keyring_of(config, "run", 0)
    ring = keyring_of({"partition-id": 0}, "run", 0)
    assert ring.key.public == simulated_key("run", 0).public
    assert ring.roster.refusal(1, simulated_key("run", 1).public.hex(), 9) is None
    assert "simulated" in ring.roster.refusal(1, MaskKey.fresh().public.hex(), 1)


def test_a_digest_is_read_aloud_in_groups():
    assert grouped("0123456789abcdef") == "01234567 89abcdef"
