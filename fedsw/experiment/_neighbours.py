"""Settings that go with additions and removals of records: what is proven of is named here, and all else is refused."""

from __future__ import annotations

from collections.abc import Iterator

from fedsw.experiment.choices import Settings
from fedsw.experiment.penalty_names import NO_PENALTY
from fedsw.experiment.task_kinds import TASKS, TaskKind

PENALTY = "statistical-parity"
"""The penalty that stands for none, at weight 0: its strata are the groups, of which the data then have one."""

ACCOUNTANT = "pld"


def misfits(settings: Settings, kind: TaskKind | None) -> Iterator[str]:
    """Yield why settings do not go with `privacy.relation`, with the remedy; ``kind`` is None for a task of one's own.

    A sum of clipped terms, one of each record, divided by a declared number, moves by one record's term when it comes
    or goes (docs/guarantees/sampling.md). What compares outputs, counts records, or deals and splits them by their
    number, moves by more.
    """
    privacy = settings.privacy
    if privacy.hides_sizes:
        setting = f"privacy.relation is {privacy.relation!r}, and"
        rows = (*_of_terms(settings, kind), *_of_records(settings))
        yield from (f"{setting} {why}" for misfit, why in rows if misfit)


def _of_terms(settings: Settings, kind: TaskKind | None) -> tuple[tuple[bool, str], ...]:
    """Misfits of the sum: its terms must be of one record each, its releases bounded for additions and removals."""
    goal, privacy = settings.objective, settings.privacy
    able = ", ".join(repr(name) for name, task in TASKS.items() if task.facts.supervised)
    accountant = privacy.model.accountant(settings)
    return (
        (
            bool(goal.alpha or goal.also),
            "a penalty between distributions moves by every record's rank when one goes: set objective.alpha to 0 and "
            "leave objective.also out, or use 'replace-one'",
        ),
        (
            goal.penalty not in (PENALTY, NO_PENALTY),
            f"objective.penalty {goal.penalty!r} draws by more than one stratum: leave it out",
        ),
        (
            kind is None or not kind.facts.supervised,
            f"it is proven of the losses of objective.task {able}, not of {goal.task!r}: use 'replace-one'",
        ),
        (
            bool(privacy.guarantee.unprotected),
            "no noise is added, so that there is nothing to promise: use 'replace-one'",
        ),
        (
            accountant != ACCOUNTANT,
            f"privacy.accountant {accountant!r} is about other steps: use {ACCOUNTANT!r}",
        ),
        (settings.unsafe_metrics, "unsafe_metrics shows how many records a batch has: leave it out"),
        (
            settings.training.batch_size is not None,
            "training.batch_size fixes a batch's size: use training.batch_fraction, a record's probability",
        ),
        (
            settings.data.held_out_released and kind is not None and not kind.facts.classifies,
            "data.held_out_to 'everybody' releases kept records' sums of numbers, which are divided by how many were "
            "kept: set it to 'operator', or use a held-out file",
        ),
    )


def _of_records(settings: Settings) -> tuple[tuple[bool, str], ...]:
    """Which records a run trains on, and where they are, must not follow from how many there are."""
    data, chosen = settings.data, settings.data.changed("most_records", "half", "encoded")
    grouped = data.columns is not None and data.columns.sensitive is not None
    return (
        (bool(data.objects), "data.objects writes down how many records there are: leave it out"),
        (bool(chosen), f"data.{chosen} chooses records by their number: leave it out"),
        (
            grouped and settings.objective.penalty != NO_PENALTY,
            "a penalty's groups are strata, and their sizes are secret: set objective.penalty to 'none'",
        ),
        (bool(data.occurring), f"{data.occurring} among the records is public: declare them"),
        (
            bool(settings.partition.tells),
            f"partition.scheme {settings.partition.scheme!r} deals records by what the guarantee covers: use 'iid'",
        ),
        (
            settings.federation.drop_out > 0,
            "federation.drop_out simulates clients whose records are dealt by their number: leave it out",
        ),
    )
