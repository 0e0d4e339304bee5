"""A node's configuration in a file that its operator edits: `fedsw client --config node.toml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from fedsw._tools.files import opened
from fedsw._tools.settings import read_toml, validated
from fedsw.experiment.load import SHIPPED
from fedsw.federation.node.limits import ANY_TRUST

_PATHS = ("certs", "key", "server-key", "data-dir", "data-path", "schema", "state-dir", "accounts", "roster")


class NodeFile(BaseModel):
    """The options of `fedsw client` by name; a key that is left out has the option's default.

    `trust` and `modules` are lists of names, and `trust` may be "any". Every other value is that of the option.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"), strict=True
    )

    superlink: str | None = None
    certs: Path | None = None
    key: Path | None = None
    server_key: Path | None = None
    partition_id: Annotated[int, Field(ge=0)] | None = None
    num_partitions: Annotated[int, Field(ge=1)] | None = None
    num_clients: Annotated[int, Field(ge=1)] | None = None
    data_dir: Path | None = None
    data_path: Path | None = None
    schema_: Annotated[Path | None, Field(alias="schema")] = None
    state_dir: Path | None = None
    trust: tuple[str, ...] | None = None
    max_epsilon: float | None = None
    max_memory: float | None = None
    max_seconds: float | None = None
    bundle: str | None = None
    code: str | None = None
    modules: tuple[str, ...] | None = None
    stock: bool | None = None
    roster: Path | None = None
    colluding: Annotated[int, Field(ge=0)] | None = None
    account: str | None = None
    accounts: Path | None = None

    @field_validator("trust", "modules", mode="before")
    @classmethod
    def _names(cls, value: object, about: ValidationInfo) -> object:
        if about.field_name == "trust" and value == ANY_TRUST:
            return (ANY_TRUST,)
        return tuple(value) if isinstance(value, list) else value


def write_node_file(path: Path) -> None:
    """Write the commented node file that is shipped, for a client's operator only; none is written over."""
    try:
        with opened(path, "xb") as file:
            file.write((SHIPPED / "node.toml").read_bytes())
    except FileExistsError:
        raise FileExistsError(f"{path} is there already; -o names another file") from None


def read_node_file(path: Path) -> NodeFile:
    """The configuration in a TOML file. A path in it that is not absolute is looked for beside the file."""
    raw = read_toml(path, "the node's configuration")
    here = path.resolve().parent
    raw |= {name: here / raw[name] for name in _PATHS if isinstance(raw.get(name), str)}
    return validated(NodeFile, raw, where=f"the node's configuration {path}: ")
