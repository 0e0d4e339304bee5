"""Limits that a node's operator sets and no server can change: trust models, epsilon, columns, folders, modules."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedsw._tools.installed import GIB, code_digest, machine_memory
from fedsw._tools.later import imported_later
from fedsw._tools.own_objects import load_object, require_allowed
from fedsw._tools.text import upward
from fedsw.data.sources import stated_shape
from fedsw.experiment import Experiment, ExperimentError, resolve_delta
from fedsw.experiment.choices import references
from fedsw.experiment.load import unprotected
from fedsw.experiment.trust import trust_model, trust_models
from fedsw.federation.node.roster import said_of_roster
from fedsw.federation.node.simulated import of_one_person
from fedsw.privacy.accountants import is_proven

if TYPE_CHECKING:
    from fedsw.learning.tasks import needs as needs
    from fedsw.learning.tasks import own_task as own_task
    from fedsw.learning.tasks.problem import Problem

globals().update(imported_later(__spec__))  # a client that waits for a run holds no torch

ANY_TRUST = "any"
"""The `trust` of a node that takes part in whatever the server asks."""
OWN_CODE, ANY_CODE = "own", "any"
"""The `code` of a node that takes part with the fedsw that it has installed only, and of one that takes any."""
CHOICE = (
    "`fedsw client --init` writes a node file that explains the choice; or give --trust NAMES (trust models), "
    "--max-epsilon E, or --trust any: whatever the server asks"
)
_DAY = 86_400.0
_log = logging.getLogger("fedsw.clients")


def require_limits(experiment: Experiment, node_config: Mapping[str, Any]) -> None:
    """Refuse an experiment beyond this node's own `trust` (names, separated by commas) and `max-epsilon`.

    The experiment comes from the server, and under the local trust models the server is not trusted: it could ask for
    no noise, for noise from a seed that it knows, or for a delta that protects no record. With `max-epsilon` it takes
    part only if its records have that guarantee. On a node outside simulations one of the two is set: `trust` may be
    "any", which its operator writes to take part in whatever the server asks.

    Nothing of this needs a record, so that it is settled before a file is opened; `require_delta` is the rest.

    Raises:
        ExperimentError: naming the setting, its value and the limit.
    """
    if "bundle" in node_config:
        raise ExperimentError(
            f"this node demands the bundle {node_config['bundle']}, and Flower's own SuperNode does not look at the "
            "hash of what it loads; start the node with `fedsw client` and without --stock"
        )
    if node_config.get("own-data") and not {"trust", "max-epsilon"} & set(node_config):
        raise ExperimentError(f"this node's operator has not said what it takes part in; {CHOICE}")
    privacy, agreed = experiment.privacy, _agreed(node_config)
    if agreed and privacy.trust not in agreed:
        raise ExperimentError(f"privacy.trust is {privacy.trust!r}; this node takes part in {', '.join(agreed)} only")
    privacy.model.sides.require_node(node_config)
    if (limit := _limit(node_config)) is not None and (excess := _beyond(experiment, limit)):
        raise ExperimentError(f"{excess}; this node takes part up to a guaranteed epsilon of {upward(limit, 6)} only")
    untrusting = limit is not None or (agreed and all(trust_model(name).hides_records() for name in agreed))
    if untrusting and experiment.data.own and not node_config.get("schema"):
        raise ExperimentError(
            "this node sets a limit (max-epsilon, or a local trust) and has no schema: the server would choose which "
            "column is the public group and which bounds the records must keep, and read records off the answers; "
            "start the node with --schema FILE (`fedsw client`), the columns that it agrees to"
        )


def require_code(experiment: Experiment, stated: str | None, node_config: Mapping[str, Any]) -> None:
    """Refuse a server if its installed fedsw, by the digest that it stated, is not in this node's `code`.

    Without one any is taken, but where each site's guarantee rests on the code of all: there it must be this node's.
    It is the server's own word, against versions that were mixed up, and not against one that lies.
    """
    codes = codes_of(experiment, node_config)
    if codes is not None and stated not in codes:
        raise ExperimentError(
            f"the server's fedsw has the code {stated or '(it states none)'}, and this node takes part with "
            f"{' or '.join(sorted(codes))}{' (its own)' if codes == {code_digest()} else ''} only: install the same "
            f"fedsw on both, or this client's operator allows the other (--code)"
        )


def codes_of(experiment: Experiment, node_config: Mapping[str, Any]) -> frozenset[str] | None:
    """The digests of installed code that a node takes part with; None for any."""
    named = node_config.get("code", OWN_CODE if experiment.privacy.model.sites_code == "same" else ANY_CODE)
    return read_codes(str(named))


def read_codes(text: str) -> frozenset[str] | None:
    """The digests of a node's `code`, separated by commas, with its own for "own"; None for "any" only."""
    names = [name.strip().lower() for name in text.split(",")]
    if names == [ANY_CODE]:
        return None
    for name in names:
        if name != OWN_CODE and re.fullmatch("[0-9a-f]{64}", name) is None:
            raise ExperimentError(
                f"this node's code names {name!r}, which is no SHA-256 in 64 hexadecimal digits; `fedsw bundle --json` "
                f"prints that of a machine's fedsw. {OWN_CODE!r} stands for this one's, {ANY_CODE!r} alone for any"
            )
    return frozenset(code_digest() if name == OWN_CODE else name for name in names)


def require_room(
    experiment: Experiment, node_config: Mapping[str, Any], *, task: Problem | None = None, records: int = 1
) -> None:
    """Refuse what would take more of this machine than its operator gives: `max-memory` in GiB and `max-seconds`.

    The estimate takes public numbers only: before a network is made or a file is read, it is that of one record;
    afterwards, that of this node's batches. On an operator's node the limits are half of the machine's memory and a
    day, unless they are set; on one that the experiment's author started, all of it and a year.

    Raises:
        ExperimentError: naming the setting, its value and what it takes; and the limit, but not to another's server,
            which would learn how large this machine is: that is in the client's own log.
    """
    memory, seconds = room_of(node_config)
    made = own_task.task_of(experiment) if task is None else task.task
    shape = stated_shape(experiment.record_source) if task is None else task.shape
    rows = 1 if task is None else _batch(experiment, records, len(task.objective.cells))
    holder, remedy, one_person = "this machine", (", or use one with more memory", ""), of_one_person(node_config)
    if not one_person:
        more = ", or this client's operator raises {} (`fedsw client`)"
        holder, remedy = "this client", (more.format("max-memory"), more.format("max-seconds"))
    parts = needs.parts_of(experiment, made, shape, rows=rows)
    try:
        needs.require_within(parts, bytes_=memory, seconds=seconds, holder=holder, remedy=remedy, limit_said=one_person)
    except ExperimentError:
        if not one_person:
            _log.error("this client gives a run %.3g GiB of memory and %g s at most", memory / GIB, seconds)
        raise


def room_of(node_config: Mapping[str, Any]) -> tuple[float, float]:
    """The bytes of memory and the seconds of computing that a node gives to a run at most, positive and finite."""
    memory, seconds = (machine_memory(), needs.YEAR) if of_one_person(node_config) else (machine_memory() / 2, _DAY)
    if "max-memory" in node_config:
        memory = GIB * _positive(node_config["max-memory"], "max-memory")
    if "max-seconds" in node_config:
        seconds = _positive(node_config["max-seconds"], "max-seconds")
    return memory, seconds


def _batch(experiment: Experiment, records: int, cells: int) -> int:
    """Rows of a node's batch, about."""
    training = experiment.training
    if experiment.releases == 1:
        return records
    wanted = training.batch_fraction * records if training.batch_size is None else training.batch_size * cells
    return max(1, math.ceil(min(records, wanted)))


def choice_of(node_config: Mapping[str, Any]) -> str:
    """Describe in words what a node's operator chose to take part in."""
    agreed, limit, keys = _agreed(node_config), _limit(node_config), said_of_roster(node_config)
    known = [f"trust {', '.join(agreed)}"] if agreed else []
    known += [] if limit is None else [f"up to a guaranteed epsilon of {upward(limit, 6)}"]
    chosen = " ".join(known) or "whatever the server asks (trust any)"
    return f"{chosen}, with the {keys}" if keys else chosen


def require_proven(task: Problem, node_config: Mapping[str, Any]) -> None:
    """Refuse, on a node with `max-epsilon`, a bound that the experiment's author asserts without proof."""
    limit, word = _limit(node_config), task.objective.word
    if limit is not None and word != "proven":
        raise ExperimentError(
            f"the bound of objective.penalty {task.experiment.objective.penalty!r} is {word} by its author, and not "
            f"proven; this node takes part up to a guaranteed epsilon of {upward(limit, 6)} only"
        )


def require_delta(experiment: Experiment, node_config: Mapping[str, Any], *, records: int) -> None:
    """Refuse, on a node with `max-epsilon`, a delta of 1/n or more of its own n records: it would protect none."""
    delta, limit = experiment.privacy.delta, _limit(node_config)
    if limit is not None and not resolve_delta(delta, records=records) * records < 1:
        raise ExperimentError(
            f"privacy.delta {delta!r} is not below 1/n of this node's {records} records; this node takes part up to a "
            f"guaranteed epsilon of {upward(limit, 6)} only"
        )


def withholds_records(experiment: Experiment | None, node_config: Mapping[str, Any]) -> bool:
    """True if errors hide from the server what is wrong with a record: under local trust, or on a node with limits.

    Without an `experiment` no record was read.
    """
    local = experiment is not None and experiment.privacy.model.hides_records()
    return local or str(node_config.get("trust", ANY_TRUST)).strip() != ANY_TRUST or "max-epsilon" in node_config


def read_trust(names: str) -> tuple[str, ...]:
    """The trust models of a node's `trust`, of which each is known; none for "any", which restricts nothing."""
    if names.strip() == ANY_TRUST:
        return ()
    known = tuple(trust_models())
    agreed = tuple(name.strip() for name in names.split(","))
    for name in agreed:
        if name not in known:
            raise ExperimentError(
                f"this node's trust names {name!r}; known are {', '.join(known)}, or {ANY_TRUST} alone"
            )
    return agreed


def read_limit(epsilon: float | str) -> float:
    """The epsilon of a node's `max-epsilon`, positive and finite."""
    return _positive(epsilon, "max-epsilon")


def allowed_modules(node_config: Mapping[str, Any]) -> frozenset[str] | None:
    """Modules that an experiment may name on this node, and that are then imported there.

    The names are whole: `hospital` allows `hospital` and not `hospital.models`. None for any module where the clients
    are processes of the experiment's author: in a simulation, and under `fedsw deploy local`.
    """
    return None if of_one_person(node_config) else read_modules(str(node_config.get("modules", "")))


def read_modules(names: str) -> frozenset[str]:
    """The modules of a node's `modules`: full names, separated by commas; none in an empty text."""
    modules = frozenset(name.strip() for name in names.split(",") if name.strip())
    for name in sorted(modules):
        if not all(part.isidentifier() for part in name.split(".")):
            raise ExperimentError(
                f"this node's modules name {name!r}, which is no module; write full names, as in hospital.models"
            )
    return modules


def require_own_folder(experiment: Experiment, node_config: Mapping[str, Any]) -> None:
    """Refuse to read from a folder that the server chose, on a node configured with `own-data`.

    On a client's machine that path could name anything: only the node's operator says what is read.
    """
    folder, files = experiment.data.data_dir, experiment.data.own_files is not None
    if not node_config.get("own-data") or node_config.get("data-dir") or (files and node_config.get("data-path")):
        return  # a file is looked at where records are files; of named data sets the folder would be
    if folder is not None or files:
        raise ExperimentError(
            f"this node reads only what it was started with, and data.data_dir is {folder!r}, the server's word; start "
            "the node with --data-path FILE or --data-dir DIR (`fedsw client`)"
        )


def require_modules(experiment: Experiment, node_config: Mapping[str, Any]) -> None:
    """Refuse an experiment that names code which this node's operator has not allowed; none of it is imported.

    It would run beside the records, with all that the node's process may do. What is named of an allowed module must
    be its own: not what it has imported.
    """
    allowed, named = allowed_modules(node_config), [*references(experiment)]
    for what, reference in named:
        require_allowed(reference, what=what, allowed=allowed)
    for what, reference in named if allowed is not None else ():
        load_object(reference, what=what, allowed=allowed)


def _agreed(node_config: Mapping[str, Any]) -> tuple[str, ...]:
    return read_trust(str(node_config["trust"])) if "trust" in node_config else ()


def _positive(value: Any, name: str) -> float:
    limit = float(value)
    if not 0 < limit < math.inf:
        raise ExperimentError(f"this node's {name} is {upward(limit, 6)}; it must be positive and finite")
    return limit


def _limit(node_config: Mapping[str, Any]) -> float | None:
    return read_limit(node_config["max-epsilon"]) if "max-epsilon" in node_config else None


def _beyond(experiment: Experiment, limit: float) -> str | None:
    privacy = experiment.privacy
    if (reason := unprotected(experiment)) is not None:
        return reason
    if privacy.epsilon is None:
        return "privacy.noise_multiplier is given and no privacy.epsilon"
    if privacy.hides_sizes:
        return f"privacy.relation is {privacy.relation!r}, a weaker promise at the same epsilon than a replacement's"
    if not privacy.epsilon <= limit:
        return f"privacy.epsilon is {upward(privacy.epsilon, 6)}"
    accountant, mechanism = experiment.accountant, experiment.mechanism
    if not is_proven(accountant, mechanism):
        return f"accountant {accountant!r} of {mechanism!r} noise is not a guarantee"
    if not experiment.local.guaranteed:
        return "local.diameter 'paper' is not a guarantee"
    return None
