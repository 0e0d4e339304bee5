"""Settings of a client's node: one table of options, for the command, its node file and the ClientApp's configuration.

The fields of `NodeSettings` are the table. `read_node_file` reads them from a file that the client's operator edits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from fedsw._tools.files import opened
from fedsw._tools.settings import read_toml, require_data_set, validated
from fedsw.data.columns.declaration import read_columns
from fedsw.experiment.load import SHIPPED
from fedsw.federation import SERVER_KEY
from fedsw.federation.deploy.bundle import read_bundle
from fedsw.federation.deploy.certificates import read_signing_key
from fedsw.federation.node.limits import ANY_TRUST, CHOICE, read_codes, read_limit, read_modules, read_trust, room_of
from fedsw.federation.node.roster import KEY, KEY_FILE, read_mask_key, read_roster
from fedsw.federation.node.simulated import ANY_MODULE, SHARED


@dataclass(frozen=True)
class NodeSettings:
    """Settings of a client's SuperNode: the options of `fedsw client`; its help explains each.

    They reach the ClientApp as `context.node_config`, and nothing of them leaves the node. `own_data` says that a
    folder named by the experiment is not read. Without `modules` (None) an experiment may name any, at processes of who
    wrote it. The node's own key for masked sums is in `state_dir`.

    Raises:
        ValueError, FileNotFoundError: for settings that can't be right, naming the setting and its value.
    """

    superlink: str
    authority: Path
    key: Path
    client: Annotated[int, Field(ge=0)]
    clients: Annotated[int, Field(ge=1)]
    data_dir: Path | None = None
    state_dir: Path | None = None
    data_path: Path | None = None
    schema: Path | None = None
    trust: str | None = None
    max_epsilon: float | None = None
    max_memory: float | None = None
    max_seconds: float | None = None
    own_data: bool = False
    bundle: str | None = None
    modules: tuple[str, ...] | None = ()
    num_clients: Annotated[int, Field(ge=1)] | None = None
    roster: Path | None = None
    colluding: Annotated[int, Field(ge=0)] | None = None
    account: str | None = None
    accounts: Path | None = None
    server_key: Path | None = None
    code: str | None = None

    def __post_init__(self) -> None:
        read_address(self.superlink)
        if not 0 <= self.client < self.clients:
            raise ValueError(
                f"partition-id {self.client} is not below num-partitions {self.clients}; clients are numbered from 0"
            )
        if self.num_clients is not None and self.num_clients < self.clients:
            raise ValueError(
                f"num-clients {self.num_clients} is below num-partitions {self.clients}; every node holds at least one "
                "client"
            )
        for path, what in ((self.authority, "certificate of the authority"), (self.key, "node key")):
            if not path.is_file():
                raise FileNotFoundError(f"no {what} at {path}; `fedsw certs` makes it for this machine")
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise FileNotFoundError(f"no data directory at {self.data_dir}")
        for file, what in ((self.data_path, "data file"), (self.schema, "schema")):
            if file is not None and not file.is_file():
                raise FileNotFoundError(f"no {what} at {file}")
        if self.schema is not None:
            read_columns(self.schema)  # at a greeting it would be the server that learns of a fault
        if self.server_key is not None:
            read_signing_key(self.server_key)
        if self.trust is not None:
            read_trust(self.trust)
        if self.max_epsilon is not None:
            read_limit(self.max_epsilon)
        if self.own_data and self.trust is None and self.max_epsilon is None:
            raise ValueError(f"this client's operator has not said what it takes part in; {CHOICE}")
        if (self.roster is None) != (self.colluding is None):
            raise ValueError("--roster and --colluding go together: the keys of all sites, and how many may be false")
        if self.roster is not None:
            read_roster(self.roster)
            read_mask_key(Path(str(self.node_config[KEY])))
        room_of(self.node_config)
        if self.bundle is not None:
            object.__setattr__(self, "bundle", read_bundle(self.bundle))
        if self.code is not None:
            read_codes(self.code)
        read_modules(",".join(self.modules or ()))
        if self.own_data and self.account == SHARED:
            raise ValueError(
                f"account is {SHARED!r}, which takes the data set's name from each experiment: the server would choose "
                "the account that a run counts in, and so its limit; give the data set a name of this machine's own"
            )
        if self.account not in (None, SHARED):
            require_data_set(str(self.account))

    @classmethod
    def of(cls, options: Mapping[str, Any], **settled: Any) -> NodeSettings:
        """Make settings of options by key, as `read_node_file` has them, and of what is settled otherwise, by field."""
        options_by_field = {
            field.name: options[key_of(field.name)] for field in fields(cls) if key_of(field.name) in options
        }
        return cls(**options_by_field | settled)

    @property
    def node_config(self) -> dict[str, int | str]:
        """The configuration the ClientApp sees: whole numbers and texts, paths absolute."""
        config = {key_of(field.name): getattr(self, field.name) for field in fields(self)}
        for name in _OF_CONNECTION:
            del config[name]
        config |= {
            "own-data": 1 if self.own_data else None,
            "modules": ANY_MODULE if self.modules is None else ",".join(self.modules),
            SERVER_KEY: None if self.server_key is None else read_signing_key(self.server_key),
            KEY: None if self.roster is None or self.state_dir is None else self.state_dir / KEY_FILE,
        }
        return {name: _plain(value) for name, value in config.items() if value is not None}


def key_of(field: str) -> str:
    """The key of a field of `NodeSettings` in a node file, in options and in the ClientApp's configuration."""
    return {"client": "partition-id", "clients": "num-partitions"}.get(field, field.replace("_", "-"))


_OF_CONNECTION = ("superlink", "authority", "key")
"""What only the process of the SuperNode needs."""


def _plain(value: int | float | str | Path) -> int | str:
    if isinstance(value, Path):
        return str(value.resolve())
    return str(value) if isinstance(value, float) else value


def read_address(address: str) -> tuple[str, int]:
    """Host and port of a SuperLink; ValueError for anything but HOST:PORT, a URL among them."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"{address!r} is no address of a SuperLink; it is HOST:PORT, without http:// or https://")
    return host, int(port)


def _listed(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _listed_or_any(value: object) -> object:
    return (ANY_TRUST,) if value == ANY_TRUST else _listed(value)


_Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
_MADE = ("authority", "own_data")
"""Fields of the settings without an option: a file in the folder of `certs`, and true of a client with records."""
_TYPES: dict[str, Any] = {
    **{
        key_of(name): kind
        for name, kind in get_type_hints(NodeSettings, include_extras=True).items()
        if name not in _MADE
    },
    "modules": _Names,
    "trust": Annotated[tuple[str, ...], BeforeValidator(_listed_or_any)],
    "certs": Path,
    "stock": bool,
}
OPTIONS = tuple(_TYPES)
"""Keys of a node file, each an option of `fedsw client`: the settings', `certs` and `stock`."""

_fields: dict[str, Any] = {  # pydantic has a method `schema`
    {"schema": "schema_"}.get(key, key): (kind | None, Field(None, alias=key)) for key, kind in _TYPES.items()
}
NodeFile: type[BaseModel] = create_model(
    "NodeFile", __config__=ConfigDict(extra="forbid", frozen=True, strict=True), **_fields
)


def read_node_file(path: Path) -> dict[str, Any]:
    """The options in a TOML file, by key, those that are given. A relative path is looked for beside the file.

    `trust` and `modules` are lists of names there, and `trust` may be "any"; every other value is that of the option.
    """
    raw, here = read_toml(path, "the node's configuration"), path.resolve().parent
    for key in [key for key, kind in _TYPES.items() if Path in (kind, *get_args(kind))]:
        if isinstance(raw.get(key), str):
            raw[key] = here / raw[key]
    read = validated(NodeFile, raw, where=f"the node's configuration {path}: ")
    options = read.model_dump(by_alias=True, exclude_unset=True)
    return options | ({"trust": ",".join(options["trust"])} if "trust" in options else {})


def write_node_file(path: Path) -> None:
    """Write the commented node file that is shipped, for a client's operator only; none is written over."""
    try:
        with opened(path, "xb") as file:
            file.write((SHIPPED / "node.toml").read_bytes())
    except FileExistsError:
        raise FileExistsError(f"{path} is there already; -o names another file") from None
