"""Which nodes are processes of who wrote the experiment, and not of somebody with records and limits of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ANY_MODULE = "*"
"""The `modules` of a node of `fedsw deploy local`."""
_OF_A_SIMULATION = frozenset({"partition-id", "num-partitions", "state-dir"})


def is_simulated(node_config: Mapping[str, Any]) -> bool:
    """Whether a node is one of a simulation: its configuration says its number and no more."""
    return set(node_config) <= _OF_A_SIMULATION


def of_one_person(node_config: Mapping[str, Any]) -> bool:
    """Whether whoever wrote the experiment started this node: in a simulation, or by `fedsw deploy local`."""
    return is_simulated(node_config) or node_config.get("modules") == ANY_MODULE
