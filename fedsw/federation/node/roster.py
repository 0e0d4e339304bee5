"""The roster: the public keys of all sites, exchanged by their operators; and a node's own key for masks."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fedsw._tools import files
from fedsw._tools.settings import ExperimentError, read_toml, validated
from fedsw.federation.node.simulated import of_one_person
from fedsw.privacy.masks import BadKey, MaskKey

ROSTER, COLLUDING, KEY = "roster", "colluding", "mask-key"
"""Keys of a node's configuration: files of the roster and of its own key, and how many clients may collude."""

KEY_FILE = "mask.key"
"""Name of a site's private key in its own folder."""


class RosterSite(BaseModel):
    """A site of the roster: its operator's name, its public key in 64 hexadecimal digits, and its clients at most."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Annotated[str, Field(min_length=1, max_length=200)]
    key: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    clients: Annotated[int, Field(ge=1)] = 1

    @field_validator("name")
    @classmethod
    def _read_as_it_stands(cls, name: str) -> str:
        """The name in one spelling; what turns the order of letters about, or is not seen, is refused."""
        hidden = next((letter for letter in name if not letter.isprintable()), None)
        if hidden is not None or name != name.strip():
            what = "begins or ends with a space" if hidden is None else f"holds U+{ord(hidden):04X}, which is not seen"
            raise ValueError(f"the name {name!r} {what}; operators compare names by eye: leave it out")
        return unicodedata.normalize("NFC", name)


class Roster(BaseModel):
    """The sites with keys that the operators exchanged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    member: tuple[RosterSite, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the sorted members in 64 hexadecimal digits, for operators to compare by voice."""
        lines = sorted(json.dumps([member.name, member.key, member.clients]) for member in self.member)
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def refusal(self, site: int, key: str, clients: int) -> str | None:
        """Reason why a site (named by its first client) is not in this roster with this key and size; None if it is."""
        member = next((entry for entry in self.member if entry.key == key), None)
        if member is None:
            return f"the key {key[:16]} is not in this client's roster {self.digest[:16]}"
        if clients > member.clients:
            return f"{member.name} is said to have {clients} clients, and has {member.clients} in this client's roster"
        return None

    def with_member(self, member: RosterSite) -> Roster:
        """The roster with one member more, if neither its name nor its key is there."""
        for known in self.member:
            if member.name == known.name or member.key == known.key:
                raise ExperimentError(
                    f"{known.name} ({known.key[:16]}) is in the roster already; remove its lines first"
                )
        try:
            MaskKey.fresh().shared(bytes.fromhex(member.key))
        except BadKey as fault:
            raise ExperimentError(str(fault)) from None
        return Roster(member=(*self.member, member))

    def text(self) -> str:
        """As TOML."""
        return "".join(
            f"[[member]]\nname = {json.dumps(member.name, ensure_ascii=False)}\nkey = {json.dumps(member.key)}\n"
            f"clients = {member.clients}\n\n"
            for member in self.member
        )


class NotInRoster(ExperimentError):
    """A masked sum includes a site that is not in this one's roster, or differs from it; nothing was charged."""

    def __init__(self, site: int, why: str) -> None:
        super().__init__(f"site {site}: {why}; nothing was charged")


def site_declined(reason: str) -> int | None:
    """The site, by its first client, that a reason of `NotInRoster` names; None if it names none."""
    match = re.search(r"\bsite (\d{1,9}): ", reason)
    return None if match is None else int(match[1])


class _Simulated:
    """The roster of simulated sites: all keys follow from the run's name and the site's number."""

    def __init__(self, run: str) -> None:
        self._run = run

    def refusal(self, site: int, key: str, clients: int) -> str | None:
        """See `Roster`."""
        if key == simulated_key(self._run, site).public.hex():
            return None
        return f"the key {key[:16]} is not that of the simulated site of client {site}"


@dataclass(frozen=True)
class Keyring:
    """A node's settings for masked sums: who may take part, its own key, and how many clients may collude.

    `codes` are the digests of installed fedsw of which every site must have one; None for any.
    """

    roster: Roster | _Simulated
    key: MaskKey
    colluding: int
    codes: frozenset[str] | None = None


def read_roster(path: Path) -> Roster:
    """The roster in a TOML file, with every name and every key once."""
    roster = validated(Roster, read_toml(path, "the roster"), where=f"the roster {path}: ")
    for what in ("name", "key"):
        values = [getattr(member, what) for member in roster.member]
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise ExperimentError(f"the roster {path} has the {what} {twice[0]!r} twice")
    return roster


def write_mask_key(folder: Path) -> Path:
    """A site's private key, made now in its own folder, which its owner alone may read, and never replaced."""
    path = files.private_folder(folder) / KEY_FILE
    try:
        with files.opened(path, "xb") as file:
            file.write(MaskKey.fresh().private.private_bytes_raw())
    except FileExistsError:
        raise FileExistsError(f"{path} is there already; a key is never replaced: choose another folder") from None
    return path


def read_mask_key(path: Path) -> MaskKey:
    """A site's key pair, in a file that only its owner may read."""
    try:
        content, mode = path.read_bytes(), path.stat().st_mode
    except OSError as fault:
        made = "`fedsw certs roster key` makes it on this machine"
        raise ExperimentError(f"no key for masks at {path} ({fault.strerror}); {made}") from None
    if len(content) != 32:
        raise ExperimentError(f"{path} is no key for masks: it has {len(content)} bytes, not 32")
    if mode & 0o077:
        raise ExperimentError(f"others may read the key for masks {path}: set its mode to 600")
    return MaskKey.of_bytes(content)


def simulated_key(run: str, site: int) -> MaskKey:
    """The key pair of a simulated site: the experiment's author runs all of them, and can know it."""
    digest = hashlib.blake2b(f"{run}/{site}".encode(), digest_size=32, person=b"fedsw simulated")
    return MaskKey.of_bytes(digest.digest())


def keyring_of(node_config: Mapping[str, Any], run: str, site: int) -> Keyring:
    """The keyring of a node, named by its first client, for the masked sums of a run."""
    require_keys(node_config)
    if of_one_person(node_config):
        return Keyring(_Simulated(run), simulated_key(run, site), 0)
    roster = read_roster(Path(str(node_config[ROSTER])))
    return Keyring(roster, read_mask_key(Path(str(node_config[KEY]))), int(node_config[COLLUDING]))


def require_keys(node_config: Mapping[str, Any]) -> None:
    """Refuse masked sums on a real node that lacks its roster, its key, or the number of colluding clients."""
    missing = [name for name in (ROSTER, COLLUDING, KEY) if name not in node_config]
    if missing and not of_one_person(node_config):
        raise ExperimentError(
            f"this client was started without {missing[0]}, and masked sums need the keys of all sites: start it with "
            "--roster FILE and --colluding C (`fedsw certs roster`)"
        )


def said_of_roster(node_config: Mapping[str, Any]) -> str:
    """The roster's digest and how many may collude, in words; empty on a node without one."""
    if ROSTER not in node_config:
        return ""
    roster = read_roster(Path(str(node_config[ROSTER])))
    return f"roster {grouped(roster.digest)} of {len(roster.member)} sites, {node_config[COLLUDING]} colluding"


def grouped(digest: str) -> str:
    """A digest in groups of eight digits, to be read aloud."""
    return " ".join(digest[start : start + 8] for start in range(0, len(digest), 8))
