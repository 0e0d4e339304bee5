"""Trust model `local-gradient` at a client: its two exchanges, for a node of one client and for a site of many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flwr.app import Context, Message
from torch import Tensor

from fedsw.federation import messages
from fedsw.federation.node.answers import Up, ledger_of, ledgers_of, released, state_of_client, state_of_site
from fedsw.federation.node.node import Node
from fedsw.federation.trust.local_gradient import client as local_gradient
from fedsw.federation.trust.local_gradient import site as local_gradient_site


def noised_tables(message: Message, context: Context) -> Message:
    """`local-gradient`, first exchange: a fresh batch, charged to each client's ledger; its noised histograms."""

    def release(node: Node, asked: messages.TableAsked) -> messages.NoisedTable:
        request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
        place, theta = ledger_of(node, context), asked.theta.tensor()
        answer = local_gradient.noised_table(node, place, theta, request, state_of_client(node, context))
        return messages.NoisedTable(answer.epsilon, answer.values, answer.sigma)

    def together(
        site: Node, asked: messages.TableAsked, positions: Sequence[int]
    ) -> Mapping[int, messages.NoisedTable | Exception]:
        request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
        places, theta = ledgers_of(site, context, positions), asked.theta.tensor()
        found = local_gradient_site.noised_tables(site, places, theta, request, state_of_site(context))
        return _as(messages.NoisedTable, found)

    return released(messages.TABLES, message, context, release, together)


def local_gradients(message: Message, context: Context) -> Message:
    """`local-gradient`, second exchange: the same batch's clipped contribution, noised for the client's guarantee."""

    def release(node: Node, asked: messages.LocalGradientAsked) -> messages.NoisedContribution:
        request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
        place, theta = ledger_of(node, context), asked.theta.tensor()
        table = None if asked.tables is None else asked.tables.tensor()
        answer = local_gradient.noised_contribution(node, place, theta, request, table, state_of_client(node, context))
        return messages.NoisedContribution(answer.epsilon, answer.values, answer.sigma)

    def together(
        site: Node, asked: messages.LocalGradientAsked, positions: Sequence[int]
    ) -> Mapping[int, messages.NoisedContribution | Exception]:
        request = local_gradient.Request(asked.round, asked.attempt, asked.sizes, asked.records)
        places, theta = ledgers_of(site, context, positions), asked.theta.tensor()
        table = None if asked.tables is None else asked.tables.tensor()
        state = state_of_site(context)
        found = local_gradient_site.noised_contributions(site, places, theta, request, table, state)
        return _as(messages.NoisedContribution, found)

    return released(messages.LOCAL_GRADIENTS, message, context, release, together)


def _as(
    kind: Callable[[float, Tensor, float], Up], found: Mapping[int, local_gradient.Answer | Exception]
) -> dict[int, Up | Exception]:
    """What clients of a site noised, as messages."""
    return {
        position: each if isinstance(each, Exception) else kind(each.epsilon, each.values, each.sigma)
        for position, each in found.items()
    }
