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
        yield from (f"{setting} {why}" for why in (*_of_terms(settings, kind), *_of_records(settings)))


def _of_terms(settings: Settings, kind: TaskKind | None) -> Iterator[str]:
    """Misfits of the sum: its terms must be of one record each, its releases bounded for additions and removals."""
    goal, privacy = settings.objective, settings.privacy
    if goal.alpha or goal.also:
        yield (
            "a penalty between distributions moves by every record's rank when one goes: set objective.alpha to 0 and "
            "leave objective.also out, or use 'replace-one'"
        )
    if goal.penalty not in (PENALTY, NO_PENALTY):
        yield f"objective.penalty {goal.penalty!r} draws by more than one stratum: leave it out"
    if kind is None or not kind.facts.supervised:
        able = ", ".join(repr(name) for name, task in TASKS.items() if task.facts.supervised)
        yield f"it is proven of the losses of objective.task {able}, not of {goal.task!r}: use 'replace-one'"
    if privacy.guarantee.unprotected:
        yield "no noise is added, so that there is nothing to promise: use 'replace-one'"
    if (accountant := privacy.model.accountant(settings)) != ACCOUNTANT:
        yield f"privacy.accountant {accountant!r} is about other steps: use {ACCOUNTANT!r}"
    if settings.thresholds.share:
        yield "counts of scores are bounded for a replacement: leave [thresholds] out"
    if settings.unsafe_metrics:
        yield "unsafe_metrics shows how many records a batch has: leave it out"
    if settings.training.batch_size is not None:
        yield "training.batch_size fixes a batch's size: use training.batch_fraction, a record's probability"


def _of_records(settings: Settings) -> Iterator[str]:
    """Which records a run trains on, and where they are, must not follow from how many there are."""
    data, federation = settings.data, settings.federation
    if data.objects:
        yield "data.objects writes down how many records there are: leave it out"
    if data.unit is not None:
        yield f"a unit ({data.unit!r}) has no bound for its addition: leave data.unit out, or use 'replace-one'"
    if data.held_out_fraction:
        yield "data.held_out_fraction keeps a part of the records by their number: leave it out, or use a held-out file"
    if name := data.changed("most_records", "half", "encoded"):
        yield f"data.{name} chooses records by their number: leave it out"
    if data.columns is not None and data.columns.sensitive is not None:
        yield "groups are strata, whose sizes nobody declares: leave data.columns.sensitive out"
    if data.occurring:
        yield f"{data.occurring} among the records is public: declare them"
    if settings.partition.tells:
        yield f"partition.scheme {settings.partition.scheme!r} deals records by what the guarantee covers: use 'iid'"
    if federation.drop_out:
        yield "federation.drop_out simulates clients whose records are dealt by their number: leave it out"
