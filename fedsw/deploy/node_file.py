"""A node's configuration in a file that its operator edits: `fedsw client --config node.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from fedsw.settings import ExperimentError, explain_all

_PATHS = ("certs", "key", "data-dir", "data-path", "schema", "state-dir", "accounts")


class NodeFile(BaseModel):
    """What `fedsw client` can be given, by the names of its options; a key that is left out has the option's default.

    `trust` and `modules` are lists of names. Every other value is that of the option.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=lambda name: name.replace("_", "-"), strict=True
    )

    superlink: str | None = None
    certs: Path | None = None
    key: Path | None = None
    partition_id: Annotated[int, Field(ge=0)] | None = None
    num_partitions: Annotated[int, Field(ge=1)] | None = None
    num_clients: Annotated[int, Field(ge=1)] | None = None
    data_dir: Path | None = None
    data_path: Path | None = None
    schema_: Annotated[Path | None, Field(alias="schema")] = None
    state_dir: Path | None = None
    trust: tuple[str, ...] | None = None
    max_epsilon: float | None = None
    bundle: str | None = None
    modules: tuple[str, ...] | None = None
    stock: bool | None = None
    account: str | None = None
    accounts: Path | None = None

    @field_validator("trust", "modules", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return tuple(value) if isinstance(value, list) else value


def read_node_file(path: Path) -> NodeFile:
    """The configuration in a TOML file. A path in it that is not absolute is looked for beside the file.

    Raises:
        ExperimentError: naming the file, and the key with its value and what it must be.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise ExperimentError(f"the node's configuration {path} cannot be read: {fault.strerror}") from None
    except ValueError as fault:
        raise ExperimentError(f"the node's configuration {path} is not valid TOML: {fault}") from None
    here = path.resolve().parent
    raw |= {name: here / raw[name] for name in _PATHS if isinstance(raw.get(name), str)}
    try:
        return NodeFile.model_validate(raw)
    except ValidationError as fault:
        faults = "; ".join(explain_all(fault.errors(), NodeFile))
        raise ExperimentError(f"the node's configuration {path}: {faults}") from None
