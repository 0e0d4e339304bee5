"""Trust model `local-release` at a client: all of its records are charged, privatised, and only then sent, once."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from torch import Tensor

from fedsw.accounting import Step, lifetime
from fedsw.accounting.lifetime import Counts
from fedsw.accounting.profiles import stated_step
from fedsw.accounting.stated import Pure
from fedsw.experiment.sections import ReleaseSettings
from fedsw.federation import messages
from fedsw.federation.budgets.local import local_accountant, release_charge, release_epsilon, release_of
from fedsw.federation.node import account
from fedsw.federation.node.answers import each_pays, ledger_of, released
from fedsw.federation.node.node import Node
from fedsw.privacy.release import Paid, pay, release_paid
from fedsw.subnormal import flushing_to_zero


def require_ready(node: Node) -> None:
    """Refuse, at the greeting, a run whose guarantee this client could not give.

    Raises:
        ValueError: naming the setting.
    """
    release_of(node.task.experiment, node.delta(0))


def release_due(node: Node, place: Path, round_: int, attempt: int, federation: int) -> account.Due:
    """What this client pays for the release of its records, for a payment together with others."""
    delta = node.delta(federation)
    release = release_of(node.task.experiment, delta)
    charges = [release_charge(release)]
    return account.Due(place, promise(node, delta), round_, attempt, charges, release.scale, [release.part])


def released_records(
    node: Node, place: Path, round_: int, attempt: int, federation: int, paid: Paid | None = None
) -> tuple[Tensor, float]:
    """All of this client's records, privatised once: rows (N_c, p) in the released space, about the public centre.

    Where a unit is declared, one row of each unit is released, drawn at random.

    Guarantee: that of `fedsw.privacy.records.Release`, charged on disk before the noise is drawn.

    Args:
        paid: the payment, where the clients of a site paid together (`release_due`).

    Raises:
        BudgetExhausted, AlreadySpent: before anything is computed; a second release would be paid for again.
    """
    delta = node.delta(federation)
    release = release_of(node.task.experiment, delta)
    if paid is None:
        with account.opened(place, promise(node, delta)) as ledger:
            paid = pay(ledger, round_, attempt, [release_charge(release)], release.scale, [release.part])
    records = node.everybody(node.own_stream(round_, attempt, "release rows"))
    features = flushing_to_zero(node.task.inputs)(records).cpu() - node.task.experiment.clip.centre
    noise = node.own_stream(round_, attempt, "release noise")
    found = release_paid(release.bounded(features), paid, release.part.name, noise)
    return release.released(found), found.spent


def promise(node: Node, delta: float) -> account.Promise:
    """What this client's ledger accounts for in this run, at that delta."""
    experiment = node.task.experiment
    epsilon = release_epsilon(experiment, delta)
    return account.Promise(node.run, epsilon, delta, local_accountant(experiment), experiment.seed is not None)


def planned(node: Node, delta: float) -> Counts:
    """What the one release costs this client's records at that delta, or a smaller one."""
    experiment = node.task.experiment
    release = release_of(experiment, delta)
    mu = release_charge(release).sensitivity / release.scale
    pure = experiment.own(ReleaseSettings).mechanism == "laplace"
    return lifetime.planned(stated_step(Pure(mu)) if pure else Step(1.0, mu), 1)


def answer_release(message: Message, context: Context) -> Message:
    """`local-release`: all of a client's records, privatised once, charged to its ledger."""

    def release(node: Node, asked: messages.ReleaseAsked, paid: Paid | None = None) -> messages.ReleasedRecords:
        request = (asked.round, asked.attempt, asked.records)
        values, spent = released_records(node, ledger_of(node, context), *request, paid)
        return messages.ReleasedRecords(spent, values)

    def due(node: Node, asked: messages.ReleaseAsked) -> account.Due:
        return release_due(node, ledger_of(node, context), asked.round, asked.attempt, asked.records)

    return released(messages.RELEASE, message, context, release, each_pays(due, release))
