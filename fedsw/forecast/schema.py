"""What is public of an experiment's records: their columns, and how many there are of every group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedsw.columns import Columns
from fedsw.columns.group import Group
from fedsw.columns.kinds import Feature, Label, Number
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.sources import declared_columns, load_dataset

_DRAWN = ("synthetic", "ring", "gaussians")


def public_columns(experiment: Experiment) -> Columns:
    """The declared columns; of a named data set those that the names of its inputs tell.

    Inputs named "column=value" are the values of one column. Other inputs of a named data set are numbers from -1 to 1;
    of one that is drawn from a law, numbers without bounds.

    Raises:
        FileNotFoundError: as `load_dataset`, which knows the names.
    """
    if experiment.data.own:
        return declared_columns(experiment)
    dataset = load_dataset(experiment)
    return columns_named(
        dataset.feature_names,
        groups=dataset.groups,
        classes=dataset.classes,
        targets=dataset.targets,
        bounded=experiment.data.source not in _DRAWN,
    )


def columns_named(
    names: Sequence[str], *, groups: Sequence[str], classes: Sequence[str], targets: int, bounded: bool
) -> Columns:
    """Columns behind inputs of these names, see `public_columns`."""
    blocks: dict[str, list[str]] = {}
    for name in names:
        column, sign, value = name.partition("=")
        blocks.setdefault(column if sign else name, []).extend([value] if sign else [])
    features = [_feature(name, tuple(values), bounded=bounded) for name, values in blocks.items()]
    return Columns(
        features=tuple(features),
        sensitive=Group(name="the group", values=tuple(groups)) if len(groups) > 1 else None,
        target=Label(name="the class", values=tuple(classes)) if classes else None,
        targets=tuple(Number(name=f"the target {place}", low=0, high=1) for place in range(targets)),
    )


def _feature(name: str, values: tuple[str, ...], *, bounded: bool) -> Feature:
    if len(values) > 1:
        return Feature(name=name, categories=values)
    return Feature(name=name, low=-1, high=1, scale="signed") if bounded else Feature(name=name)


def spread_evenly(groups: Sequence[str], records: int) -> dict[str, int]:
    """So many records, as evenly over the groups as can be: what is assumed where no sizes are known.

    Raises:
        ExperimentError: for fewer records than 2 of each group.
    """
    if records < 2 * len(groups):
        raise ExperimentError(
            f"--records is {records}, and there are {len(groups)} groups; a plan takes at least 2 records of each"
        )
    return scaled(dict.fromkeys(groups, 1), records)


def scaled(by_group: Mapping[str, int], records: int) -> dict[str, int]:
    """So many records in the same proportions, at least 2 of every group that has any."""
    total = sum(by_group.values())
    return {name: max(2, round(size * records / total)) if size else 0 for name, size in by_group.items()}
