"""Joining a run: the operator's limits are checked, then the records are read, once per process."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch

from fedsw.data import BadRecords
from fedsw.data.downloads import without_downloads
from fedsw.data.units import repeats_of_records
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.preset_rules import same_but_for_chosen
from fedsw.federation.node.held_records import held_out_records, held_records, require_agreement
from fedsw.federation.node.limits import (
    require_delta,
    require_limits,
    require_modules,
    require_own_folder,
    require_proven,
    require_room,
    withholds_records,
)
from fedsw.federation.node.node import Node
from fedsw.federation.node.sample import require_units
from fedsw.federation.node.simulated import is_simulated
from fedsw.federation.node.telling import may_be_reported
from fedsw.learning.moments.beside_rounds import require_histograms, require_moments, require_scorable
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.clipping import UnsupportedModule

_log = logging.getLogger("fedsw.clients")

_MOST_NODES_KEPT = 256
_nodes: OrderedDict[int, dict[int, Node]] = OrderedDict()
"""Nodes of this process, by run and number; those of the latest run stay, however many they are."""


def join(experiment_json: str, run: str, run_id: int, node_config: Mapping[str, Any]) -> Node:
    """This node in a run: loaded and validated on the first message, remembered while the process runs.

    Flower's number `run_id` is another one when the run is resumed.
    """
    part = int(node_config.get("partition-id", 0))
    of_run = _nodes.setdefault(run_id, {})
    _nodes.move_to_end(run_id)
    while len(_nodes) > 1 and sum(map(len, _nodes.values())) > _MOST_NODES_KEPT:
        _nodes.popitem(last=False)
    known = of_run.get(part)
    if known is None or known.settings != experiment_json:
        of_run[part] = _load(experiment_json, run, node_config, client=part, known=known)
    return of_run[part]


def _load(experiment_json: str, run: str, node_config: Mapping[str, Any], *, client: int, known: Node | None) -> Node:
    """Load the node; records are not read again if only preset settings differ from the `known` one's experiment.

    The operator's limits are checked before a file is opened. An untrusted server does not learn what is wrong with a
    record: errors that quote one go to the log.
    """
    experiment = Experiment.model_validate_json(experiment_json)
    require_limits(experiment, node_config)
    require_own_folder(experiment, node_config)
    require_agreement(experiment.data.columns, node_config)
    require_modules(experiment, node_config)
    require_room(experiment, node_config)
    torch.set_num_threads(experiment.federation.cores)
    try:
        with nullcontext() if is_simulated(node_config) else without_downloads():
            task = Problem.from_json(experiment_json, node_config.get("data-dir"))
            require_histograms(task)
            require_moments(task)
            require_scorable(task)
            require_proven(task, node_config)
            if known is not None and same_but_for_chosen(known.task.experiment, experiment):
                node = known.under(task)
            else:
                node = _read(task, run, node_config)
    except Exception as fault:
        of_settings = isinstance(fault, ExperimentError | UnsupportedModule | FileNotFoundError)
        if (of_settings and may_be_reported(fault)) or not withholds_records(experiment, node_config):
            raise
        _log.error("%s", fault)
        unfit = isinstance(fault, BadRecords)
        why = "do not fit the declared columns; its own log says where" if unfit else "cannot be used; see its own log"
        raise ValueError(f"client {client}'s records {why}") from None
    require_delta(experiment, node_config, records=len(node.units))
    require_room(experiment, node_config, task=node.task, records=len(node.units))
    node.settings = experiment_json
    return node


def _read(task: Problem, run: str, node_config: Mapping[str, Any]) -> Node:
    held = held_records(task, node_config)
    require_units(task.experiment, held.records)
    if task.experiment.data.own and repeats_of_records(held.records) is not None:
        # Without their number: a simulation's log is the run's screen, and no count of private records leaves unnoised.
        _log.warning(
            "rows equal others exactly, and epsilon is for one row: larger for a person with several. Name the column "
            "that says whose a row is (unit in [data]); fedsw check counts equal rows"
        )
    node = Node.of(task, held, run)
    if task.experiment.data.held_out_released:
        node.held_out = Node.of(task, held_out_records(task, node_config), run)
    return node
