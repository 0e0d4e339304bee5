"""Which records a node holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsw.data import Records
from fedsw.sources import load_dataset, split
from fedsw.task import Task


def node_records(task: Task, node_config: Mapping[str, Any]) -> Records:
    """This node's private records, validated; its part of the experiment's data set.

    The node's own configuration says which part (`partition-id` of `num-partitions`) and, optionally, where files
    are (`data-dir`).

    Raises:
        ValueError: naming the client, for a missing key, NaN or infinite values, or a part without records.
    """
    try:
        part, parts = int(node_config["partition-id"]), int(node_config["num-partitions"])
    except KeyError as missing:
        raise ValueError(
            f"this node's configuration has no {missing}; start it with --node-config 'partition-id=0 num-partitions=4'"
        ) from None
    dataset = load_dataset(task.experiment, node_config.get("data-dir"))
    parts_of = split(dataset, task.experiment.partition, parts)
    records = dataset.train.take(parts_of[part])
    task.validate(records, name=f"client {part}")
    return records
