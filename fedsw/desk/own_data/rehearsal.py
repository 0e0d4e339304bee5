"""A run tried whole on made-up records of the declared form, before anything of private ones is spent."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from fedsw.data import DeclaredRecords
from fedsw.data.columns.declaration import Columns
from fedsw.data.made_up import made_up_inputs, made_up_targets
from fedsw.experiment import Experiment, ExperimentError, parse_experiment
from fedsw.federation.engines import driver
from fedsw.runs.accounts import read_ledger
from fedsw.runs.observer import NoObserver
from fedsw.runs.run_files import RunFile

_LEAST, _MOST, _SPARE = 60, 50_000, 4
"""Made-up records of a group at all clients, at least and at most, and in those of a batch: every batch has some."""
_FEW_CLIENTS = 20
_ROUNDS = 2


def rehearse(experiment: Experiment, *uses: Callable[[Path], None]) -> None:
    """Try a run and what becomes of it on made-up records; what fails there would have failed after a charge.

    The run has the experiment's own settings, two rounds, and records of the declared form; it is in a folder that is
    gone afterwards, and counts in no account. Then each of ``uses`` gets its folder: the card, the table, predictions.
    Nothing is tried of a named data set, or of a run that adds no noise and so spends nothing. What fails before the
    first charge is left to the run itself, which refuses it as early.

    Raises:
        ExperimentError: for what fails once something was charged; nothing private was read or spent.
    """
    columns = experiment.data.columns
    if columns is None or experiment.privacy.guarantee.unprotected:
        return
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clients = experiment.federation.clients
        directory = None
        for count in sorted({min(clients, _FEW_CLIENTS), clients}):  # few are tried first, and suit most settings
            try:
                directory = _run(experiment, columns, Path(folder), count)
            except Exception as fault:
                if _charged(Path(folder)):
                    raise _refusal("the run", fault) from fault
            else:
                break
        if directory is None:
            return
        for use in uses:
            try:
                use(directory)
            except Exception as fault:
                raise _refusal("what becomes of the run", fault) from fault


def _refusal(what: str, fault: Exception) -> ExperimentError:
    words = f"{type(fault).__name__}: {fault}" if not isinstance(fault, ExperimentError) else str(fault)
    return ExperimentError(
        f"{what} fails on made-up records of the declared form, as it would once the budget is spent: {words}. Nothing "
        "was spent; this is a fault of fedsw or of code of your own, so please report it, with the experiment"
    )


def _run(experiment: Experiment, columns: Columns, runs: Path, clients: int) -> Path:
    size = _each(experiment, len(columns.groups), clients)
    records = [
        made_up(
            columns, dict.fromkeys(columns.groups, size), first_unit=client * size * len(columns.groups), seed=client
        )
        for client in range(clients)
    ]
    held_out = None
    if experiment.data.held_out is not None:
        count = dict.fromkeys(columns.groups, _LEAST)
        held_out = made_up(columns, count, first_unit=2**30, seed=clients)
    trial = on_objects(experiment, _ROUNDS, clients, metrics=held_out is not None)
    return driver.run(trial, data=records, held_out=held_out, runs=runs, observer=NoObserver()).directory


def _each(experiment: Experiment, groups: int, clients: int) -> int:
    """Return the number of made-up records of each group at each client, so that every batch has some of all."""
    training = experiment.training
    wanted = max(_LEAST, _SPARE * (training.batch_size or 0))
    if training.batch_fraction:
        wanted = max(wanted, math.ceil(_SPARE * groups / training.batch_fraction))
    return max(_SPARE, math.ceil(min(wanted, _MOST) / clients))


def _charged(runs: Path) -> bool:
    """Say whether a run in a folder has paid for anything; a ledger that cannot be read counts as one that has."""
    for config in runs.glob(f"*/*/{RunFile.CONFIG}"):
        try:
            if read_ledger(config.parent)["entries"]:
                return True
        except FileNotFoundError:
            continue
        except Exception:
            return True
    return False


def made_up(columns: Columns, by_group: Mapping[str, int], *, first_unit: int = 0, seed: int = 0) -> DeclaredRecords:
    """Records of the declared form, a unit each, by the kinds of the columns; so many of every group."""
    groups = torch.repeat_interleave(torch.arange(len(columns.groups)), torch.tensor([*by_group.values()]))
    generator, count = torch.Generator().manual_seed(seed), len(groups)
    features = torch.from_numpy(made_up_inputs(columns, count, seed=seed))
    if columns.targets:
        target = torch.from_numpy(made_up_targets(columns, count, seed=seed))
    else:
        target = torch.randint(0, len(columns.classes), (count,), generator=generator)
    places = torch.arange(count)
    unit = None if columns.unit is None else places + first_unit
    return DeclaredRecords(features, groups, target, places, columns, "made-up", unit=unit)


def on_objects(experiment: Experiment, rounds: int, clients: int, *, metrics: bool = False) -> Experiment:
    """Change an experiment to records that are handed over, to so many rounds, and to no account."""
    raw = experiment.model_dump(mode="json")
    nothing = dict.fromkeys(("data_dir", "held_out", "account"))
    raw["data"] |= {"source": "object", "held_out_overlap": "refuse", **nothing}
    raw["training"]["rounds"] = rounds
    raw["federation"]["clients"] = clients
    raw["metrics"] = raw["metrics"] if metrics else []
    return parse_experiment(raw)
