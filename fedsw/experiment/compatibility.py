"""Refuse settings of two sections that do not go together: task, model, data, trust model."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fedsw._tools.own_objects import is_reference
from fedsw.data.columns.declaration import Columns
from fedsw.data.columns.declared_kinds import Number
from fedsw.data.settings import SOURCES
from fedsw.experiment import _neighbours
from fedsw.experiment.choices import Settings
from fedsw.experiment.penalty_names import PENALTIES, kinds_of, penalties_of
from fedsw.experiment.preset_rules import left_open
from fedsw.experiment.preset_rules import misfit as misfit_of_preset
from fedsw.experiment.sections import Federation, Privacy, Training
from fedsw.experiment.sections.tagged import unread
from fedsw.experiment.task_kinds import MODELS, TASKS, TaskKind
from fedsw.experiment.trust import TrustModel, releasing_gradients, trust_model
from fedsw.privacy.accountants import accountant_named
from fedsw.privacy.relations import ADD_OR_REMOVE, RELATIONS, REPLACE_ANY, REPLACE_ONE, Sampling


def misfit(settings: Settings, kind: TaskKind | None) -> str | None:
    """Return the first misfit of two settings, with the remedy, or None. ``kind`` is None for a task not loaded yet."""
    return next(filter(None, _misfits(settings, kind)), None)


def _misfits(settings: Settings, kind: TaskKind | None) -> Iterator[str | None]:
    """Yield all misfits lazily, and None for checks that pass: later checks rest on the first ones."""
    privacy = settings.privacy
    yield from _neighbours.misfits(settings, kind)
    if kind is not None:
        yield unread(settings, kind.facts)
        yield from _of_task(settings, kind)
        if settings.data.columns is not None:
            yield from _of_columns(settings, settings.data.columns, kind)
        yield from _of_coding(settings)
        yield from _of_inputs_by_noise(settings, kind)
        yield from _of_trust(settings, kind)
        yield from _of_histograms(settings)
        yield from _of_scores(settings, kind)
    yield from _of_flow(settings)
    if kind is not None:
        yield from _of_protection(settings)
        yield kind.misfit(settings)
        yield MODELS.get(settings.model.kind).misfit(settings)
    yield privacy.model.without_noise(privacy)
    yield privacy.model.misfit(settings)
    yield from _of_partition(settings)
    yield from _of_release_and_clip(settings)
    yield from _of_batches(privacy, settings.training)
    yield misfit_of_preset(settings)
    if settings.unsafe_metrics:
        yield from _without_losses(settings, kind)
    yield from _of_federation(settings.federation, privacy.model)
    yield from _of_masks(settings.federation, privacy.trust)


def fixed_by_neighbours(settings: Settings) -> tuple[str, ...]:
    """Return the parts of a record that neighbours share and that are so public: "group", "label", both, or none.

    Of a penalty of one's own only what is known before it is loaded (`PenaltyKind.fixed`).
    """
    if settings.privacy.hides_sizes:
        return ()
    shared = sorted({name for kind in kinds_of(settings) for name in kind.fixed})
    return settings.privacy.model.by_release(rounds=tuple(shared), once=())


def relation_of(settings: Settings) -> str:
    """The neighbours of a run's guarantee: a sketch's may differ in label and group unless their client tells these."""
    if settings.privacy.hides_sizes:
        return ADD_OR_REMOVE
    return REPLACE_ONE if fixed_by_neighbours(settings) or settings.partition.tells else REPLACE_ANY


def sampling_of(settings: Settings) -> Sampling:
    """How a run's steps are sampled, as its accountant has them: by the neighbours of its guarantee."""
    return RELATIONS.get(relation_of(settings)).sampling


def _of_partition(settings: Settings) -> Iterator[str | None]:
    """A partition of somebody's own records by what the guarantee covers: each client's number of them tells it."""
    tells, scheme = settings.partition.tells, settings.partition.scheme
    if not settings.data.own or tells is None or tells in fixed_by_neighbours(settings):
        return
    named = f"'{scheme}' by '{settings.partition.by}'" if scheme == "dirichlet" else f"'{scheme}'"
    why = (
        f"partition.scheme {named} chooses a record's client by its {tells}, so every client's number of records would "
        f"tell {tells}s, which the guarantee of trust {settings.privacy.trust!r} with this objective covers: use "
        "'iid', or give each client a table of its own"
    )
    yield settings.privacy.guarantee.by_noise(noised=why, none=None)


def _of_task(settings: Settings, kind: TaskKind) -> Iterator[str]:
    data, task, facts = settings.data, settings.objective.task, kind.facts
    for name, value, known in (
        ("model.kind", settings.model.kind, facts.models),
        ("objective.penalty", settings.objective.penalty, facts.penalties),
    ):
        if value not in known and not is_reference(value):
            yield f"{name} {value!r} with objective.task {task!r}: use {_either(known)}"
    source = "files" if data.own else data.source
    also = SOURCES.get(source).tasks if source in SOURCES else ()
    if source not in facts.sources and task not in also:
        named = (name for name, task_kind in TASKS.items() if source in task_kind.facts.sources)
        tasks = _either((*named, *also))
        fit = _either(facts.sources)
        yield f"data.source {data.source!r} serves {tasks}, not objective.task {task!r}; that takes {fit}"


def _of_columns(settings: Settings, columns: Columns, kind: TaskKind) -> Iterator[str]:
    goal, facts, model = settings.objective, kind.facts, MODELS.get(settings.model.kind)
    if facts.grouped and columns.sensitive is None and (goal.alpha or goal.also):
        yield (
            f"objective.task {goal.task!r} compares groups with weight {goal.alpha:g}: declare data.columns.sensitive, "
            "or set objective.alpha to 0"
        )
    if facts.target == "numbers" and not columns.targets:
        yield f"objective.task {goal.task!r} predicts numbers: declare one or more of them in data.columns.targets"
    if facts.target != "numbers" and columns.targets and not model.table:
        yield f"data.columns.targets are for a regression; objective.task {goal.task!r} takes a target with values"
    labelled = "label" in PENALTIES.get(goal.penalty).fixed
    if (facts.target == "class" or labelled) and columns.target is None:
        yield (f"objective.task {goal.task!r} with penalty {goal.penalty!r} needs classes: declare data.columns.target")
    if model.square and math.isqrt(columns.inputs) ** 2 != columns.inputs:
        yield (
            f"model.kind {settings.model.kind!r} takes square images; data.columns.features add up to "
            f"{columns.inputs} inputs"
        )
    compared: tuple[Number, ...] = columns.targets if facts.unit == "targets" else ()
    if facts.unit == "features":
        compared = tuple(feature for feature in columns.features if not feature.categories)
    for column in compared:
        if not column.in_unit:
            yield (
                f"objective.task {goal.task!r} predicts numbers in [0, 1]; column {column.name!r} needs public bounds "
                "low and high, and scale 'unit'"
            )


def _of_coding(settings: Settings) -> Iterator[str | None]:
    """Refuse models of declared columns where none are declared, or where the inputs are not these columns."""
    spec, data = settings.model, settings.data
    if MODELS.get(spec.kind).columns:
        reason = f"model.kind {spec.kind!r} is a sum of functions of declared columns"
    elif spec.inputs not in ("plain", "by-noise"):
        reason = f"model.inputs {spec.inputs!r} takes columns about the middle of their declared bounds"
    else:
        return
    untrained = f"{reason}, and privacy.trust {settings.privacy.trust!r} trains no such model: leave it out"
    yield settings.privacy.model.by_release(rounds=None, once=untrained)
    if not data.own:
        yield f"{reason}, and the inputs of data.source {data.source!r} are not declared: use your own tables"
    if data.row_norm is not None:
        yield f"{reason}, and data.row_norm scales a record by all of them together: leave data.row_norm out"
    if MODELS.get(spec.kind).columns and data.columns is not None:
        for feature in data.columns.features:
            if not feature.categories and feature.reader.bounds(feature) is None:
                yield f"{reason}; column {feature.name!r} needs public bounds: declare low and high"


def _of_inputs_by_noise(settings: Settings, kind: TaskKind) -> Iterator[str]:
    """Refuse inputs as long as noise allows where no moments tell it, or no linear model learns numbers."""
    if settings.model.inputs != "by-noise":
        return
    if not MODELS.get(settings.model.kind).linear or kind.facts.target != "numbers":
        yield (
            f"model.inputs 'by-noise' is for a linear model of numbers, not for model.kind {settings.model.kind!r} and "
            f"objective.task {settings.objective.task!r}: leave it out"
        )
    if not settings.privacy.moments and "moments" not in left_open(settings).get("privacy", ()):
        yield "model.inputs 'by-noise' follows from released moments, and privacy.moments is 0: set a share, as in 0.2"


def _of_trust(settings: Settings, kind: TaskKind) -> Iterator[str | None]:
    name, task = settings.privacy.trust, settings.objective.task
    trust, able = trust_model(name), kind.facts.trusts
    yield from _of_own_penalties(settings, kind)
    if settings.objective.also and 1 + len(settings.objective.also) > trust.most_penalties:
        yield f"objective.also has more penalties, and trust {name!r} takes one: use 'central' or 'distributed'"
    if kind.facts.sketched and name in able:
        why = (
            f"privacy.trust {name!r} releases sketches for shipped tasks, and objective.task {task!r} is one of your "
            "own: use 'sketch' or 'sketch-local'"
        )
        yield settings.privacy.model.by_release(rounds=why, once=None)
    if name not in able:
        yield f"privacy.trust {name!r} cannot run {task!r}: {trust.why_not}. Trust models that can: {_either(able)}"
    if settings.data.held_out_released and "everybody" not in trust.held_out_to:
        yield (
            f"data.held_out_to 'everybody' measures a trained model at the clients, and trust {name!r} asks them once, "
            "before there is one: set data.held_out_to to 'operator'"
        )


def _of_histograms(settings: Settings) -> Iterator[str]:
    """Histograms give bins to an additive model, which then starts from moments; bins are of its columns of numbers."""
    privacy, model, columns = settings.privacy, settings.model, settings.data.columns
    if privacy.histograms:
        subject = f"privacy.histograms is {privacy.histograms:g}, and histograms"
        if privacy.trust not in (able := releasing_gradients()):
            yield f"{subject} are released before rounds under {_either(able)}, not {privacy.trust!r}: set it to 0"
        if not MODELS.get(model.kind).columns and "kind" not in left_open(settings).get("model", ()):
            yield f"{subject} give bins to model.kind 'additive', not to {model.kind!r}: set it to 0"
        if not privacy.moments and "moments" not in left_open(settings).get("privacy", ()):
            yield f"{subject} go before moments, and privacy.moments is 0: set a share of these, as in 0.2"
        if privacy.moments != "auto" and settings.left_to_rounds < _LEAST_TO_ROUNDS:
            yield f"{subject} with moments and scores leave less than {_LEAST_TO_ROUNDS:g} of the budget to the rounds"
    numbers = {
        name: feature
        for feature in (() if columns is None else columns.features)
        for name in (() if feature.categories else feature.columns)
    }
    for binned in model.bins:
        subject = f"model.bins has column {binned.column!r}"
        if binned.column not in numbers:
            yield f"{subject}, which is no declared column of numbers: leave it out"
        else:
            feature = numbers[binned.column]
            low, high = feature.reader.bounds(feature) or (-math.inf, math.inf)
            last = binned.edges[-1] > high if feature.reader.whole else binned.edges[-1] >= high
            if binned.edges[0] <= low or last:
                yield f"{subject} with an edge out of its bounds, {low:g} to {high:g}: put edges between them"
    if len({binned.column for binned in model.bins}) < len(model.bins):
        yield "model.bins has a column twice: keep one of its entries"


def _of_scores(settings: Settings, kind: TaskKind) -> Iterator[str]:
    """Counts of scores are of a classifier's answers, after rounds; thresholds of two classes, and by group.

    What is known once the data are is in `fedsw.learning.moments.beside_rounds.require_scorable`.
    """
    columns, moments = settings.data.columns, settings.privacy.moments
    trust, task = settings.privacy.trust, settings.objective.task
    for name, share in (("calibration", settings.calibration.share), ("thresholds", settings.thresholds.share)):
        if not share:
            continue
        subject = f"{name}.share is {share:g}, and"
        if trust not in (able := releasing_gradients()):
            use = f"use {_either(able)}, or leave it out"
            yield f"{subject} trust {trust!r} has no rounds that a model comes out of: {use}"
        if not (kind.facts.classifies and kind.facts.supervised):
            fit = _either(tuple(n for n, k in TASKS.items() if k.facts.classifies and k.facts.supervised))
            yield f"{subject} objective.task {task!r} is no classification of records: use {fit}, or leave it out"
        if moments != "auto" and settings.left_to_rounds < _LEAST_TO_ROUNDS:
            yield (
                f"{subject} privacy.moments is {moments:g}: less than {_LEAST_TO_ROUNDS:g} of the budget would be left "
                "to the rounds; lower one of them"
            )
    if settings.thresholds.share and columns is not None:
        subject = f"thresholds.share is {settings.thresholds.share:g}, and thresholds are"
        if columns.sensitive is None:
            yield f"{subject} by group: declare data.columns.sensitive, or leave it out"
        if len(columns.classes) != 2:
            yield f"{subject} of two classes, and {len(columns.classes)} are declared: leave it out"


_LEAST_TO_ROUNDS = 0.05
"""Least part of the budget that is left to the rounds by what is released before and after them."""


def _of_own_penalties(settings: Settings, kind: TaskKind) -> Iterator[str]:
    """A penalty of one's own compares groups, where somebody holds outputs or all of its parts are proven."""
    name, trust = settings.privacy.trust, trust_model(settings.privacy.trust)
    for key, penalty in penalties_of(settings):
        if not PENALTIES.get(penalty).custom:
            continue
        if kind.facts.comparison != "groups":
            task = settings.objective.task
            yield f"{key} {penalty!r} compares groups, and objective.task {task!r} has none: use 'classification'"
        if not trust.own_bounds:
            yield f"{key} {penalty!r} is of your own, and trust {name!r} takes none: use 'central' or 'distributed'"


def _of_flow(settings: Settings) -> Iterator[str]:
    trust, training = settings.privacy.trust, settings.training
    flows = trust_model(trust).moves_points(settings)
    if flows != MODELS.get(settings.model.kind).points:
        yield (
            f"model.kind {settings.model.kind!r} with trust {trust!r} and {_set_by(settings)}: 'particles' are moved "
            "by the flows of 'local-slices' ('flow', 'flow-one-release') and by nothing else"
        )
    if flows and (training.optimizer != "sgd" or training.momentum or training.scheduler is not None):
        yield "a flow takes Euler steps of training.learning_rate: set training.optimizer to 'sgd', without momentum"
    accountant, mechanism = settings.privacy.model.accountant(settings), settings.privacy.model.mechanism(settings)
    if not trust_model(trust).accounts(accountant_named(accountant)):
        yield f"privacy.accountant {accountant!r} is about random slices, not trust {trust!r}; use 'pld'"
    if mechanism not in accountant_named(accountant).takes:
        yield (
            f"the accountant {accountant!r} takes {' and '.join(accountant_named(accountant).takes)} noise, and what "
            f"trust {trust!r} releases has {mechanism!r} noise, which costs another epsilon: choose one that takes it"
        )


def _of_protection(settings: Settings) -> Iterator[str]:
    trust = trust_model(settings.privacy.trust)
    if settings.objective.protected == "both" and "both" not in trust.protectable:
        yield "objective.protected 'both' adds noise for a generator's inputs under trust 'central'; use 'target'"


def _of_release_and_clip(settings: Settings) -> Iterator[str]:
    kind, name = settings.model.kind, settings.privacy.trust
    if trust_model(name).trains_critic(settings) != MODELS.get(kind).critic:
        yield (
            f"model.kind {kind!r} with trust {name!r} and {_set_by(settings)}: the adversarial losses of "
            "'local-release' train the critic of 'adversarial-dcgan', and nothing else does"
        )
    if settings.clip.open and (why := trust_model(name).without_clipping()) is not None:
        yield why


def _set_by(settings: Settings) -> str:
    return next((f"local.{name} {value!r}" for name, value in settings.local), "no settings in [local]")


def _of_batches(privacy: Privacy, training: Training) -> Iterator[str | None]:
    if privacy.sampling == "stratified":
        whole = f"privacy.sampling is about batches, and trust {privacy.trust!r} sums all records once: leave it out"
        yield privacy.model.by_release(rounds=None, once=whole)
    if training.batch_size is None:
        return
    alone = (
        f"training.batch_size is a number of records of the whole federation; trust {privacy.trust!r} samples at "
        "each client on its own: use training.batch_fraction"
    )
    yield from privacy.model.by_ledgers(server=[], clients=[alone])
    if privacy.sampling == "stratified":
        yield (
            "training.batch_size cannot be split in fixed counts per client; use training.batch_fraction with "
            "privacy.sampling 'stratified'"
        )


def _without_losses(settings: Settings, kind: TaskKind | None) -> Iterator[str]:
    trust, task = settings.privacy.trust, settings.objective.task
    none = f"unsafe_metrics asks for training losses; under trust {trust!r} clients send none: leave it out"
    yield from settings.privacy.model.by_ledgers(server=[], clients=[none])
    if kind is not None and kind.facts.other_side == "generator":
        yield f"unsafe_metrics asks for training losses, and objective.task {task!r} has none: leave it out"


def _of_federation(federation: Federation, trust: TrustModel) -> Iterator[str]:
    clients = federation.clients
    for name, most in (("min_clients", federation.min_clients), ("sites", federation.sites)):
        if most is not None and most > clients:
            yield f"federation.{name} is {most}, above federation.clients = {clients}; lower it"
    if federation.drop_out:
        alone = (
            "federation.drop_out simulates clients that are lost between the two exchanges of trust 'central'; leave "
            "it out under a local trust model"
        )
        yield from trust.by_ledgers(server=[], clients=[alone])
    if federation.drop_out and federation.min_clients is None:
        yield (
            f"federation.drop_out is {federation.drop_out:g}, and without federation.min_clients a round needs all "
            f"{clients} clients; set it to the number that is enough"
        )


def _of_masks(federation: Federation, trust: str) -> Iterator[str]:
    masks, sites = federation.masks, federation.sites
    if masks is not None and masks not in trust_model(trust).masks:
        yield f"federation.masks is {masks!r}, and trust {trust!r} has no masked sums; leave it out"
    if masks == "simulated" and (sites or 1) > 1:
        yield f"federation.masks is 'simulated', and {sites} sites always have masks; leave out federation.sites"
    if masks == "real" and sites == 1:
        yield "federation.masks is 'real', and one site has nobody to hide its sum from; leave out federation.sites"


def _either(names: tuple[str, ...]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
