"""What a node answers a server that nobody trusts: releases that each client noised, charged to its own ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from flwr.app import Context, Message
from torch import Tensor

from fedsw.federation import messages
from fedsw.federation.client.answers import (
    Up,
    each_pays,
    ledger_of,
    ledgers_of,
    released,
    state_of_client,
    state_of_site,
)
from fedsw.federation.node.account import Due
from fedsw.federation.node.node import Node
from fedsw.federation.trust.held_out import client as held_out
from fedsw.federation.trust.local_gradient import client as local_gradient
from fedsw.federation.trust.local_gradient import site as local_gradient_site
from fedsw.federation.trust.local_slices import client as local_slices
from fedsw.federation.trust.moments import client as moments
from fedsw.federation.trust.sketch import client as sketch
from fedsw.privacy.release import Paid


def noised_moments(message: Message, context: Context) -> Message:
    """`local-gradient`, before the first round: sums over a client's records, noised by itself, charged to it."""

    def release(node: Node, asked: messages.NoisyMomentsAsked, paid: Paid | None = None) -> messages.NoisyMoments:
        found = moments.noised_moments(node, ledger_of(node, context), asked.attempt, asked.records, paid)
        return messages.NoisyMoments(found.spent, found.value, found.sigma)

    def due(node: Node, asked: messages.NoisyMomentsAsked) -> Due:
        return moments.moments_due(node, ledger_of(node, context), asked.attempt, asked.records)

    return released(messages.NOISY_MOMENTS, message, context, release, each_pays(due, release))


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


def noised_slices(message: Message, context: Context) -> Message:
    """`local-slices`: random slices of a fresh secret batch's features, charged to each client's ledger."""

    def release(node: Node, asked: messages.SlicesAsked, paid: Paid | None = None) -> messages.NoisedSlices:
        theta = torch.zeros(0) if asked.theta is None else asked.theta.tensor()
        place = ledger_of(node, context) if node.task.experiment.privacy.noisy else None
        request = (asked.round, asked.attempt, asked.records)
        slices, spent = local_slices.noised_slices(node, place, theta, *request, paid)
        public = torch.equal(slices.directions, node.task.directions(asked.round, asked.attempt))
        directions = None if public else slices.directions
        return messages.NoisedSlices(spent, slices.projections, directions, slices.sigma)

    def due(node: Node, asked: messages.SlicesAsked) -> Due | None:
        if not node.task.experiment.privacy.noisy:
            return None
        return local_slices.slices_due(node, ledger_of(node, context), asked.round, asked.attempt, asked.records)

    return released(messages.SLICES, message, context, release, each_pays(due, release))


def released_records(message: Message, context: Context) -> Message:
    """`local-release`: all of a client's records, privatised once, charged to its ledger."""

    def release(node: Node, asked: messages.ReleaseAsked, paid: Paid | None = None) -> messages.ReleasedRecords:
        request = (asked.round, asked.attempt, asked.records)
        released, spent = local_slices.released_records(node, ledger_of(node, context), *request, paid)
        return messages.ReleasedRecords(spent, released)

    def due(node: Node, asked: messages.ReleaseAsked) -> Due:
        return local_slices.release_due(node, ledger_of(node, context), asked.round, asked.attempt, asked.records)

    return released(messages.RELEASE, message, context, release, each_pays(due, release))


def noised_sketch(message: Message, context: Context) -> Message:
    """`sketch-local`: the sketch of all of a client's records, noised by itself, charged to its ledger."""

    def release(node: Node, asked: messages.SketchAsked, paid: Paid | None = None) -> messages.NoisySketch:
        place = ledger_of(node, context)
        found = sketch.noised_sketch(node, place, asked.round, asked.attempt, asked.records, paid)
        return messages.NoisySketch(found.spent, found.value, found.sigma)

    def due(node: Node, asked: messages.SketchAsked) -> Due:
        return sketch.sketch_due(node, ledger_of(node, context), asked.round, asked.attempt, asked.records)

    return released(messages.SKETCH, message, context, release, each_pays(due, release))


def noised_tally(message: Message, context: Context) -> Message:
    """`local-gradient`, after the last round: sums over a client's kept records, noised by itself, charged to it."""

    def release(node: Node, asked: messages.NoisyTallyAsked, paid: Paid | None = None) -> messages.NoisyTally:
        place, theta = ledger_of(node, context), asked.theta.tensor()
        found = held_out.noised_tally(node, place, theta, asked.round, asked.attempt, asked.records, paid)
        return messages.NoisyTally(found.spent, found.value, found.sigma)

    def due(node: Node, asked: messages.NoisyTallyAsked) -> Due:
        return held_out.tally_due(node, ledger_of(node, context), asked.round, asked.attempt, asked.records)

    return released(messages.NOISY_TALLY, message, context, release, each_pays(due, release))


def _as(
    kind: Callable[[float, Tensor, float], Up], found: Mapping[int, local_gradient.Answer | Exception]
) -> dict[int, Up | Exception]:
    """What clients of a site noised, as messages."""
    return {
        position: each if isinstance(each, Exception) else kind(each.epsilon, each.values, each.sigma)
        for position, each in found.items()
    }
