"""Which records a node holds: a part of the experiment's data set, a file of its own, or what a module gives it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsw.columns import Columns, difference, read_columns
from fedsw.data import Records, find_table, read_table, same_file, tables_in
from fedsw.experiment import ExperimentError
from fedsw.experiment.sources import client_records, declared_columns, load_dataset, shared_table, split
from fedsw.federation.node.substitution import with_substitutes
from fedsw.tasks.problem import Problem


def node_records(task: Problem, node_config: Mapping[str, Any]) -> Records:
    """This node's private records, validated.

    The node's own configuration says which part it is (`partition-id` of `num-partitions`) and where its files are:
    `data-dir`, a folder, or `data-path`, the file itself.

    Raises:
        ExperimentError: for a missing key of its configuration.
        ValueError: naming the client, for NaN or infinite values, or a part without records.
        BadRecords, FileNotFoundError: for a file of its own, naming the file, row and column of the first fault.
    """
    try:
        part, parts = int(node_config["partition-id"]), int(node_config["num-partitions"])
    except KeyError as missing:
        raise ExperimentError(
            f"this node's configuration has no {missing}; start it with --node-config 'partition-id=0 num-partitions=4'"
        ) from None
    experiment = task.experiment
    if experiment.data.source == "files":
        columns = declared_columns(experiment)
        return with_substitutes(own_records(task, columns, node_config, part, parts))
    if experiment.data.own:
        records = client_records(experiment, part, parts, alone=bool(node_config.get("own-data")))
        return with_substitutes(records)
    dataset = load_dataset(task.experiment, node_config.get("data-dir"))
    records = with_substitutes(dataset.train.take(split(dataset.train, task.experiment.partition, parts)[part]))
    task.validate(records, name=f"client {part}")
    return records


def own_records(task: Problem, columns: Columns, node_config: Mapping[str, Any], part: int, parts: int) -> Records:
    """Records of a file that this node brings.

    `data-path` and `data-dir` of the node's configuration name what is its own, and nothing else is then looked at.
    A simulation has neither: there the experiment's data.data_dir holds one file that is split among the clients, or
    a folder for each of them, named by its number.

    Ids interleave those of all clients, so that no two records of a federation share one.
    """
    if named := node_config.get("data-path"):
        return _own_table(Path(str(named)), task, columns, part, parts)
    if folder := node_config.get("data-dir"):
        return _own_table(find_table(Path(str(folder))), task, columns, part, parts)
    if task.experiment.data.data_dir is None:
        raise ExperimentError(
            "data.source 'files' needs to know where: start the node with --node-config 'data-dir=\"/its/folder\"' or "
            "'data-path=\"/its/file\"', or set data.data_dir for a simulation"
        )
    shared = Path(task.experiment.data.data_dir).expanduser()
    if not tables_in(shared):
        return read_table(find_table(shared / str(part)), columns, first_id=part, step=parts)
    table = find_table(shared)
    records = shared_table(table, columns)
    return records.take(split(records, task.experiment.partition, parts)[part])


def _own_table(path: Path, task: Problem, columns: Columns, part: int, parts: int) -> Records:
    """A file that only this node has; not the one that the server measures on, if both are on one machine.

    The server's file is not opened: which of a client's rows are in a file of the server's choice is nobody's business.

    Raises:
        ExperimentError: naming the file.
    """
    held_out = task.experiment.data.held_out
    if held_out is not None and same_file(Path(held_out).expanduser(), path):
        raise ExperimentError(
            f"data.held_out {held_out} is client {part}'s own file: metrics of private records would be published "
            "without noise. Name a file of other records, or leave data.held_out out"
        )
    return read_table(path, columns, first_id=part, step=parts)


def require_agreement(columns: Columns | None, node_config: Mapping[str, Any]) -> None:
    """Refuse an experiment that declares other columns than this node's `schema`, a TOML file; without one, nothing.

    Raises:
        ExperimentError: naming the first difference.
    """
    named = node_config.get("schema")
    if named is None:
        return
    own = read_columns(Path(str(named)))
    if columns is None:
        raise ExperimentError(f"this node takes part with the columns of {named}; the experiment has no data.columns")
    if found := difference(own, columns):
        raise ExperimentError(f"this node takes part with the columns of {named}; in the experiment, {found}")
