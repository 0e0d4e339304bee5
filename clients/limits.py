"""What the operator of a node agrees to, whatever the server asks: trust models, and an epsilon that protects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from fedsw.accounting import ACCOUNTANTS
from fedsw.experiment import Experiment, ExperimentError, Privacy, resolve_delta
from fedsw.local.plans import local_accountant


def require_limits(experiment: Experiment, node_config: Mapping[str, Any], *, records: int) -> None:
    """Refuse an experiment beyond this node's own `trust` (names, separated by commas) and `max-epsilon`.

    The experiment comes from the server, and under the local trust models the server is not trusted: it could ask for
    no noise, for noise from a seed that it knows, or for a delta that protects nobody. A node with `max-epsilon` takes
    part only where its records have that guarantee; without either key it takes part in whatever it is asked to.

    Args:
        records: this node's own number of records.

    Raises:
        ExperimentError: naming the setting, its value and the limit.
    """
    privacy = experiment.privacy
    if "trust" in node_config:
        agreed = read_trust(str(node_config["trust"]))
        if privacy.trust not in agreed:
            raise ExperimentError(
                f"privacy.trust is {privacy.trust!r}; this node takes part in {', '.join(agreed)} only"
            )
    if "max-epsilon" not in node_config:
        return
    limit = read_limit(node_config["max-epsilon"])
    if found := _beyond(experiment, limit, records):
        raise ExperimentError(f"{found}; this node takes part up to a guaranteed epsilon of {limit:g} only")


def read_trust(names: str) -> tuple[str, ...]:
    """The trust models of a node's `trust`.

    Raises:
        ExperimentError: naming one that there is not, since such a node would never take part.
    """
    known = get_args(Privacy.model_fields["trust"].annotation)
    agreed = tuple(name.strip() for name in names.split(","))
    for name in agreed:
        if name not in known:
            raise ExperimentError(f"this node's trust names {name!r}; known are {', '.join(known)}")
    return agreed


def read_limit(epsilon: float | str) -> float:
    """The epsilon of a node's `max-epsilon`.

    Raises:
        ExperimentError: if it is not positive and finite.
    """
    limit = float(epsilon)
    if not 0 < limit < math.inf:
        raise ExperimentError(f"this node's max-epsilon is {limit:g}; it must be positive and finite")
    return limit


def require_own_folder(experiment: Experiment, node_config: Mapping[str, Any]) -> None:
    """Refuse to read from a folder that the server chose, on a node whose configuration says `own-data`.

    A simulation's clients find their data where the experiment says. On a client's machine that path would be the
    server's word, and could name anything there: what is read is for the node's operator to say.

    Raises:
        ExperimentError: naming the folder, and what to start the node with.
    """
    if not node_config.get("own-data") or node_config.get("data-dir"):
        return
    folder, files = experiment.data.data_dir, experiment.data.source == "files"
    if files and node_config.get("data-path"):
        return  # of named data sets a file is not looked at, and the folder would be
    if folder is not None or files:
        raise ExperimentError(
            f"this node reads only what it was started with, and data.data_dir is {folder!r}, the server's word; start "
            "the node with --data-path FILE or --data-dir DIR (`fedsw client`)"
        )


def _beyond(experiment: Experiment, limit: float, records: int) -> str | None:
    privacy = experiment.privacy
    if not privacy.noisy:
        return "no noise would be added (privacy.trust 'none' or epsilon inf)"
    if experiment.seed is not None:
        return f"seed is {experiment.seed}: whoever knows it can undo sampling and noise"
    if experiment.unsafe_metrics:
        return "unsafe_metrics asks for un-noised training losses"
    if privacy.epsilon is None:
        return "privacy.noise_multiplier is given and no privacy.epsilon"
    if not privacy.epsilon <= limit:
        return f"privacy.epsilon is {privacy.epsilon:g}"
    if not ACCOUNTANTS[local_accountant(experiment)].guarantee:
        return f"privacy.accountant {privacy.accountant!r} is not a guarantee"
    if privacy.trust == "local-release" and experiment.local.diameter == "paper":
        return "local.diameter 'paper' is not a guarantee"
    if not resolve_delta(privacy.delta, records=records) * records < 1:
        return f"privacy.delta {privacy.delta!r} is not below 1/n of this node's {records} records"
    return None
