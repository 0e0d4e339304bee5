"""Refuse settings that do not go together, or that nothing reads: tables of rules, asked before a record is read.

A row says ``when`` it is about an experiment, what it then ``requires``, and what is said, with the remedy, where that
does not hold. Rows stand by subject, in the order in which they are asked: later ones rest on earlier ones.

Sections are tagged by trust model, task and kind of model. A trust model declares classes for its sections
(`TrustModel.sections`), a task says what it leaves unread (`Facts.unread`), and a kind of model what it reads
(`ModelKind.reads`). A setting that is unread may be written with its default, since stored runs are written whole; it
is then dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from fedsw._tools.own_objects import is_reference
from fedsw._tools.section import Section, SettingRule, first_misfit
from fedsw.data.settings import SOURCES, Data
from fedsw.experiment.choices import Settings
from fedsw.experiment.penalty_names import NO_PENALTY, PENALTIES, kinds_of, penalties_of
from fedsw.experiment.preset_rules import left_open
from fedsw.experiment.preset_rules import misfit as misfit_of_preset
from fedsw.experiment.sections import (
    ClipSettings,
    Local,
    Model,
    ObjectiveSettings,
    Privacy,
    SlicingSettings,
    Training,
)
from fedsw.experiment.sketch_section import Sketch
from fedsw.experiment.task_kinds import MODELS, TASKS, Facts, TaskKind
from fedsw.experiment.trust import accounting_at_server, releasing_gradients, trust_model, trust_models
from fedsw.privacy.accountants import accountant_named
from fedsw.privacy.relations import ADD_OR_REMOVE, RELATIONS, REPLACE_ANY, REPLACE_ONE, Sampling

_ONE_STRATUM = "statistical-parity"
"""The default penalty, which is none at weight 0: its strata are the groups, of which data of secret size have one."""
_ACCOUNTS_POISSON = "pld"
"""The accountant of additions and removals."""
_LEAST_TO_ROUNDS = 0.05
"""Least part of the budget that is left to the rounds by what is released before and after them."""


def misfit(settings: Settings, kind: TaskKind | None) -> str | None:
    """Return the first misfit of two settings, with the remedy, or None. ``kind`` is None for a task not loaded yet."""
    return first_misfit(_rules(settings, kind))


def _rules(settings: Settings, kind: TaskKind | None) -> Iterator[SettingRule]:
    """All rows in their order; what a task, model, preset or trust model refuses by itself stands among them."""
    trust, model = settings.privacy.model, MODELS.get(settings.model.kind)
    if settings.privacy.hides_sizes:
        yield from _of_secret_sizes(settings, kind)
    if kind is not None:
        yield _refused(unread(settings, kind.facts))
        yield from _of_task(settings, kind)
        yield from _of_inputs(settings, kind)
        yield from _of_trust(settings, kind)
        yield from _of_histograms(settings)
        yield from _of_scores(settings, kind)
    yield from _of_points_and_accountant(settings)
    if kind is not None:
        yield SettingRule(
            when=settings.objective.protected == "both",
            requires="both" in trust_model(settings.privacy.trust).protectable,
            says="objective.protected 'both' adds noise for a generator's inputs under trust 'central'; use 'target'",
        )
        yield _refused(kind.misfit(settings))
        yield _refused(model.misfit(settings))
    yield _refused(trust.without_noise(settings.privacy))
    yield _refused(trust.misfit(settings))
    yield from _of_rounds(settings)
    yield _refused(misfit_of_preset(settings))
    yield from _of_federation(settings, kind)


def _refused(why: str | None) -> SettingRule:
    return SettingRule(when=why is not None, requires=False, says=why or "")


def _of_secret_sizes(settings: Settings, kind: TaskKind | None) -> Iterator[SettingRule]:
    """Refuse what additions and removals of records are not proven of.

    A sum of clipped terms, one of each record, divided by a declared number, moves by one record's term when it comes
    or goes (docs/guarantees/sampling.md). What compares outputs, counts records, or deals and splits them by their
    number, moves by more.
    """
    goal, privacy, data = settings.objective, settings.privacy, settings.data
    able = ", ".join(repr(name) for name, task in TASKS.items() if task.facts.supervised)
    accountant, chosen = privacy.model.accountant(settings), data.changed("most_records", "half", "encoded")
    grouped = data.columns is not None and data.columns.sensitive is not None
    for holds, why in (
        # terms of the sum are of one record each, and its releases are bounded for additions and removals
        (
            not (goal.alpha or goal.also),
            "a penalty between distributions moves by every record's rank when one goes: set objective.alpha to 0 and "
            "leave objective.also out, or use 'replace-one'",
        ),
        (
            goal.penalty in (_ONE_STRATUM, NO_PENALTY),
            f"objective.penalty {goal.penalty!r} draws by more than one stratum: leave it out",
        ),
        (
            kind is not None and kind.facts.supervised,
            f"it is proven of the losses of objective.task {able}, not of {goal.task!r}: use 'replace-one'",
        ),
        (
            not privacy.guarantee.unprotected,
            "no noise is added, so that there is nothing to promise: use 'replace-one'",
        ),
        (
            accountant == _ACCOUNTS_POISSON,
            f"privacy.accountant {accountant!r} is about other steps: use {_ACCOUNTS_POISSON!r}",
        ),
        (not settings.unsafe_metrics, "unsafe_metrics shows how many records a batch has: leave it out"),
        (
            settings.training.batch_size is None,
            "training.batch_size fixes a batch's size: use training.batch_fraction, a record's probability",
        ),
        (
            not data.held_out_released or kind is None or kind.facts.classifies,
            "data.held_out_to 'everybody' releases kept records' sums of numbers, which are divided by how many were "
            "kept: set it to 'operator', or use a held-out file",
        ),
        # which records a run trains on, and where they are, must not follow from how many there are
        (not data.objects, "data.objects writes down how many records there are: leave it out"),
        (not chosen, f"data.{chosen} chooses records by their number: leave it out"),
        (
            not grouped or goal.penalty == NO_PENALTY,
            "a penalty's groups are strata, and their sizes are secret: set objective.penalty to 'none'",
        ),
        (not data.occurring, f"{data.occurring} among the records is public: declare them"),
        (
            not settings.partition.tells,
            f"partition.scheme {settings.partition.scheme!r} deals records by what the guarantee covers: use 'iid'",
        ),
        (
            not settings.federation.drop_out,
            "federation.drop_out simulates clients, and deals records by their number: leave it out",
        ),
    ):
        yield SettingRule(True, requires=holds, says=f"privacy.relation is {privacy.relation!r}, and {why}")


def _of_task(settings: Settings, kind: TaskKind) -> Iterator[SettingRule]:
    """Rules of a task: its models, penalties and sources by name, then columns that must be declared for it."""
    data, goal, facts, model = settings.data, settings.objective, kind.facts, MODELS.get(settings.model.kind)
    task, columns = goal.task, data.columns
    for name, value, known in (
        ("model.kind", settings.model.kind, facts.models),
        ("objective.penalty", settings.objective.penalty, facts.penalties),
    ):
        says = f"{name} {value!r} with objective.task {task!r}: use {_either(known)}"
        yield SettingRule(when=not is_reference(value), requires=value in known, says=says)
    source = "files" if data.own else data.source
    also = SOURCES.get(source).tasks if source in SOURCES else ()
    able = (*(name for name, other in TASKS.items() if source in other.facts.sources), *also)
    yield SettingRule(
        when=task not in also,
        requires=source in facts.sources,
        says=f"data.source {data.source!r} serves {_either(able)}, not objective.task {task!r}; that takes "
        f"{_either(facts.sources)}",
    )
    if columns is None:
        return
    yield SettingRule(
        when=facts.grouped and (goal.alpha or goal.also),
        requires=columns.sensitive is not None,
        says=f"objective.task {goal.task!r} compares groups with weight {goal.alpha:g}: declare "
        "data.columns.sensitive, or set objective.alpha to 0",
    )
    yield SettingRule(
        when=facts.target == "numbers",
        requires=columns.targets,
        says=f"objective.task {goal.task!r} predicts numbers: declare one or more of them in data.columns.targets",
    )
    yield SettingRule(
        when=columns.targets,
        requires=facts.target == "numbers" or model.table,
        says=f"data.columns.targets are for a regression; objective.task {goal.task!r} takes a target with values",
    )
    yield SettingRule(
        when=facts.target == "class" or "label" in PENALTIES.get(goal.penalty).fixed,
        requires=columns.target is not None,
        says=f"objective.task {goal.task!r} with penalty {goal.penalty!r} needs classes: declare data.columns.target",
    )
    yield SettingRule(
        when=model.square,
        requires=math.isqrt(columns.inputs) ** 2 == columns.inputs,
        says=f"model.kind {settings.model.kind!r} takes square images; data.columns.features add up to "
        f"{columns.inputs} inputs",
    )
    numbers = (feature for feature in columns.features if not feature.categories)
    for column in columns.targets if facts.unit == "targets" else numbers if facts.unit == "features" else ():
        yield SettingRule(
            when=True,
            requires=column.in_unit,
            says=f"objective.task {goal.task!r} predicts numbers in [0, 1]; column {column.name!r} needs public bounds "
            "low and high, and scale 'unit'",
        )


def _of_inputs(settings: Settings, kind: TaskKind) -> Iterator[SettingRule]:
    """Refuse models of declared columns where inputs are not these, and inputs by noise where no moments tell it."""
    spec, data = settings.model, settings.data
    additive = MODELS.get(spec.kind).columns
    coded = additive or spec.inputs not in ("plain", "by-noise")
    reason = (
        f"model.kind {spec.kind!r} is a sum of functions of declared columns"
        if additive
        else f"model.inputs {spec.inputs!r} takes columns about the middle of their declared bounds"
    )
    yield SettingRule(
        when=coded,
        requires=not settings.stages,
        says=f"{reason}, and privacy.trust {settings.privacy.trust!r} trains no such model: leave it out",
    )
    yield SettingRule(
        when=coded,
        requires=data.own,
        says=f"{reason}, and the inputs of data.source {data.source!r} are not declared: use your own tables",
    )
    yield SettingRule(
        when=coded,
        requires=data.row_norm is None,
        says=f"{reason}, and data.row_norm scales a record by all of them together: leave data.row_norm out",
    )
    for feature in () if data.columns is None else data.columns.features:
        yield SettingRule(
            when=additive and not feature.categories,
            requires=feature.categories or feature.reader.bounds(feature) is not None,
            says=f"{reason}; column {feature.name!r} needs public bounds: declare low and high",
        )
    by_noise = spec.inputs == "by-noise"
    yield SettingRule(
        when=by_noise,
        requires=MODELS.get(spec.kind).linear and kind.facts.target == "numbers",
        says=f"model.inputs 'by-noise' is for a linear model of numbers, not for model.kind {spec.kind!r} "
        f"and objective.task {settings.objective.task!r}: leave it out",
    )
    yield SettingRule(
        when=by_noise,
        requires=settings.privacy.moments or "moments" in left_open(settings).get("privacy", ()),
        says="model.inputs 'by-noise' follows from released moments, and privacy.moments is 0: set a share, as in 0.2",
    )


def _of_trust(settings: Settings, kind: TaskKind) -> Iterator[SettingRule]:
    name, task, also = settings.privacy.trust, settings.objective.task, settings.objective.also
    trust, able = trust_model(name), kind.facts.trusts
    # a penalty of one's own compares groups, where somebody holds outputs or all of its parts are proven
    for key, penalty in penalties_of(settings):
        custom = PENALTIES.get(penalty).custom
        yield SettingRule(
            when=custom,
            requires=kind.facts.comparison == "groups",
            says=f"{key} {penalty!r} compares groups, and objective.task {task!r} has none: use 'classification'",
        )
        yield SettingRule(
            when=custom,
            requires=trust.own_bounds,
            says=f"{key} {penalty!r} is of your own, and trust {name!r} takes none: use 'central' or 'distributed'",
        )
    yield SettingRule(
        when=also,
        requires=1 + len(also) <= trust.most_penalties,
        says=f"objective.also has more penalties, and trust {name!r} takes one: use 'central' or 'distributed'",
    )
    order = max(settings.objective.order, *(more.order for more in also), 2)
    yield SettingRule(
        when=order != 2,
        requires=order <= trust.most_order,
        says=f"objective.order is {order:g}, and trust {name!r} compares by noised tables, which give order 2 alone: "
        "use order 2, or trust 'central'",
    )
    yield SettingRule(
        when=kind.facts.sketched and name in able,
        requires=settings.stages,
        says=f"privacy.trust {name!r} releases sketches for shipped tasks, and objective.task {task!r} is one of your "
        "own: use 'sketch' or 'sketch-local'",
    )
    yield SettingRule(
        when=True,
        requires=name in able,
        says=f"privacy.trust {name!r} cannot run {task!r}: {trust.why_not}. Trust models that can: {_either(able)}",
    )
    yield SettingRule(
        when=settings.data.held_out_released,
        requires="everybody" in trust.held_out_to,
        says=f"data.held_out_to 'everybody' measures a trained model at the clients, and trust {name!r} asks them "
        "once, before there is one: set data.held_out_to to 'operator'",
    )


def _of_histograms(settings: Settings) -> Iterator[SettingRule]:
    """Histograms give bins to an additive model, which then starts from moments; bins are of its columns of numbers."""
    privacy, model, columns = settings.privacy, settings.model, settings.data.columns
    released, gradients, chosen = privacy.histograms, releasing_gradients(), left_open(settings)
    subject = f"privacy.histograms is {released:g}, and histograms"
    yield SettingRule(
        when=released,
        requires=privacy.trust in gradients,
        says=f"{subject} are released before rounds under {_either(gradients)}, not {privacy.trust!r}: set it to 0",
    )
    yield SettingRule(
        when=released,
        requires=MODELS.get(model.kind).columns or "kind" in chosen.get("model", ()),
        says=f"{subject} give bins to model.kind 'additive', not to {model.kind!r}: set it to 0",
    )
    yield SettingRule(
        when=released,
        requires=privacy.moments or "moments" in chosen.get("privacy", ()),
        says=f"{subject} go before moments, and privacy.moments is 0: set a share of these, as in 0.2",
    )
    yield SettingRule(
        when=released,
        requires=privacy.moments == "auto" or settings.left_to_rounds >= _LEAST_TO_ROUNDS,
        says=f"{subject} with moments and scores leave less than {_LEAST_TO_ROUNDS:g} of the budget to the rounds",
    )
    numbers = {
        name: feature
        for feature in (() if columns is None else columns.features)
        for name in (() if feature.categories else feature.columns)
    }
    # rows are asked one by one until one is broken: behind a column that is none of the declared ones nothing is read
    for binned in model.bins:
        subject = f"model.bins has column {binned.column!r}"
        says = f"{subject}, which is no declared column of numbers: leave it out"
        yield SettingRule(when=True, requires=binned.column in numbers, says=says)
        feature = numbers[binned.column]
        low, high = feature.reader.bounds(feature) or (-math.inf, math.inf)
        last = binned.edges[-1] <= high if feature.reader.whole else binned.edges[-1] < high
        yield SettingRule(
            when=True,
            requires=low < binned.edges[0] and last,
            says=f"{subject} with an edge out of its bounds, {low:g} to {high:g}: put edges between them",
        )
    yield SettingRule(
        when=model.bins,
        requires=len({binned.column for binned in model.bins}) == len(model.bins),
        says="model.bins has a column twice: keep one of its entries",
    )


def _of_scores(settings: Settings, kind: TaskKind) -> Iterator[SettingRule]:
    """Counts of scores are of a classifier's answers, after rounds; thresholds of two classes, and by group.

    What is known once the data are is in `fedsw.learning.moments.beside_rounds.require_scorable`.
    """
    columns, moments = settings.data.columns, settings.privacy.moments
    trust, task, able = settings.privacy.trust, settings.objective.task, releasing_gradients()
    for name, share in (("calibration", settings.calibration.share), ("thresholds", settings.thresholds.share)):
        subject = f"{name}.share is {share:g}, and"
        yield SettingRule(
            when=share,
            requires=trust in able,
            says=f"{subject} trust {trust!r} has no rounds that a model comes out of: use {_either(able)}, or leave it "
            "out",
        )
        fit = tuple(n for n, known in TASKS.items() if known.facts.classifies and known.facts.supervised)
        yield SettingRule(
            when=share,
            requires=kind.facts.classifies and kind.facts.supervised,
            says=f"{subject} objective.task {task!r} is no classification of records: use {_either(fit)}, or leave it "
            "out",
        )
        yield SettingRule(
            when=share,
            requires=moments == "auto" or settings.left_to_rounds >= _LEAST_TO_ROUNDS,
            says=f"{subject} privacy.moments is {moments}: less than {_LEAST_TO_ROUNDS:g} of the budget would be left "
            "to the rounds; lower one of them",
        )
    if columns is not None:
        subject = f"thresholds.share is {settings.thresholds.share:g}, and thresholds are"
        yield SettingRule(
            when=settings.thresholds.share,
            requires=columns.sensitive is not None,
            says=f"{subject} by group: declare data.columns.sensitive, or leave it out",
        )
        yield SettingRule(
            when=settings.thresholds.share,
            requires=len(columns.classes) == 2,
            says=f"{subject} of two classes, and {len(columns.classes)} are declared: leave it out",
        )


def _of_points_and_accountant(settings: Settings) -> Iterator[SettingRule]:
    """Rules of points moved by releases, and of accountant and noise."""
    trust, training, model = settings.privacy.trust, settings.training, settings.privacy.model
    flows = trust_model(trust).moves_points(settings)
    yield SettingRule(
        when=True,
        requires=flows == MODELS.get(settings.model.kind).points,
        says=f"model.kind {settings.model.kind!r} with trust {trust!r} and {_set_by(settings)}: 'particles' are moved "
        "by the flows of 'local-slices' ('flow', 'flow-one-release') and by nothing else",
    )
    yield SettingRule(
        when=flows,
        requires=training.optimizer == "sgd" and not training.momentum and training.scheduler is None,
        says="a flow takes Euler steps of training.learning_rate: set training.optimizer to 'sgd', without momentum",
    )
    accountant, mechanism = model.accountant(settings), model.mechanism(settings)
    yield SettingRule(
        when=True,
        requires=trust_model(trust).accounts(accountant_named(accountant)),
        says=f"privacy.accountant {accountant!r} is about random slices, not trust {trust!r}; use 'pld'",
    )
    takes = accountant_named(accountant).takes
    yield SettingRule(
        when=True,
        requires=mechanism in takes,
        says=f"the accountant {accountant!r} takes {' and '.join(takes)} noise, and what trust {trust!r} releases has "
        f"{mechanism!r} noise, which costs another epsilon: choose one that takes it",
    )


def _of_rounds(settings: Settings) -> Iterator[SettingRule]:
    """How records are dealt and drawn, and how gradients are clipped."""
    # a partition of a user's own records by what the guarantee covers: each client's public size would leak it
    privacy, sized = settings.privacy, settings.training.batch_size is not None
    tells, scheme = settings.partition.tells, settings.partition.scheme
    named = f"'{scheme}' by '{settings.partition.by}'" if scheme == "dirichlet" else f"'{scheme}'"
    yield SettingRule(
        when=settings.data.own and tells and settings.privacy.guarantee.unprotected is None,
        requires=tells in fixed_by_neighbours(settings),
        says=f"partition.scheme {named} chooses a record's client by its {tells}, so every client's number of records "
        f"would tell {tells}s, which the guarantee of trust {settings.privacy.trust!r} with this objective covers: use "
        "'iid', or give each client a table of its own",
    )
    kind, name = settings.model.kind, settings.privacy.trust
    yield SettingRule(
        when=True,
        requires=trust_model(name).trains_critic(settings) == MODELS.get(kind).critic,
        says=f"model.kind {kind!r} with trust {name!r} and {_set_by(settings)}: the adversarial losses of "
        "'local-release' train the critic of 'adversarial-dcgan', and nothing else does",
    )
    unclipped = trust_model(name).without_clipping()
    yield SettingRule(when=settings.clip.open, requires=unclipped is None, says=unclipped or "")
    yield SettingRule(
        when=privacy.sampling == "stratified",
        requires=not settings.stages,
        says=f"privacy.sampling is about batches, and trust {privacy.trust!r} sums all records once: leave it out",
    )
    yield SettingRule(
        when=sized,
        requires=privacy.trust in accounting_at_server(),
        says=f"training.batch_size is a number of records of the whole federation; trust {privacy.trust!r} samples at "
        "each client on its own: use training.batch_fraction",
    )
    yield SettingRule(
        when=sized,
        requires=privacy.sampling != "stratified",
        says="training.batch_size cannot be split in fixed counts per client; use training.batch_fraction with "
        "privacy.sampling 'stratified'",
    )


def _of_federation(settings: Settings, kind: TaskKind | None) -> Iterator[SettingRule]:
    """Rules of a federation under this trust model: losses, clients, sites and masks."""
    federation, trust, task = settings.federation, settings.privacy.trust, settings.objective.task
    yield SettingRule(
        when=settings.unsafe_metrics,
        requires=trust in accounting_at_server(),
        says=f"unsafe_metrics asks for training losses; under trust {trust!r} clients send none: leave it out",
    )
    yield SettingRule(
        when=settings.unsafe_metrics,
        requires=kind is None or kind.facts.other_side != "generator",
        says=f"unsafe_metrics asks for training losses, and objective.task {task!r} has none: leave it out",
    )
    clients, sites, masks = federation.clients, federation.sites, federation.masks
    for name, most in (("min_clients", federation.min_clients), ("sites", sites)):
        says = f"federation.{name} is {most}, above federation.clients = {clients}; lower it"
        yield SettingRule(when=most is not None, requires=(most or 0) <= clients, says=says)
    yield SettingRule(
        when=federation.drop_out,
        requires=trust in accounting_at_server(),
        says="federation.drop_out simulates clients that are lost between the two exchanges of trust 'central'; leave "
        "it out under a local trust model",
    )
    yield SettingRule(
        when=federation.drop_out,
        requires=federation.min_clients is not None,
        says=f"federation.drop_out is {federation.drop_out:g}, and without federation.min_clients a round needs all "
        f"{clients} clients; set it to the number that is enough",
    )
    yield SettingRule(
        when=masks is not None,
        requires=masks in trust_model(trust).masks,
        says=f"federation.masks is {masks!r}, and trust {trust!r} has no masked sums; leave it out",
    )
    yield SettingRule(
        when=masks == "simulated",
        requires=(sites or 1) == 1,
        says=f"federation.masks is 'simulated', and {sites} sites always have masks; leave out federation.sites",
    )
    yield SettingRule(
        when=masks == "real",
        requires=sites != 1,
        says="federation.masks is 'real', and one site has nobody to hide its sum from; leave out federation.sites",
    )


def _set_by(settings: Settings) -> str:
    return next((f"local.{name} {value!r}" for name, value in settings.local), "no settings in [local]")


def _either(names: tuple[str, ...]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


def fixed_by_neighbours(settings: Settings) -> tuple[str, ...]:
    """Return the parts of a record that neighbours share and that are so public: "group", "label", both, or none.

    Of a penalty of one's own only what is known before it is loaded (`PenaltyKind.fixed`).
    """
    if settings.privacy.hides_sizes:
        return ()
    shared = sorted({name for kind in kinds_of(settings) for name in kind.fixed})
    return settings.privacy.model.shared(tuple(shared))


def relation_of(settings: Settings) -> str:
    """The neighbours of a run's guarantee: a sketch's may differ in label and group unless their client tells these."""
    if settings.privacy.hides_sizes:
        return ADD_OR_REMOVE
    return REPLACE_ONE if fixed_by_neighbours(settings) or settings.partition.tells else REPLACE_ANY


def sampling_of(settings: Settings) -> Sampling:
    """How a run's steps are sampled, as its accountant has them: by the neighbours of its guarantee."""
    return RELATIONS.get(relation_of(settings)).sampling


TAGGED: Mapping[str, tuple[type[Section], type[Section]]] = {
    "privacy": (Privacy, Privacy),
    "local": (Local, Local),
    "sketch": (Sketch, Section),
}
"""Sections of an experiment that depend on the trust model: the class if the trust model has none of its own, and
the class with the settings that then apply."""

_BY_TASK: Mapping[str, type[Section]] = {
    "data": Data, "objective": ObjectiveSettings, "clip": ClipSettings, "slicing": SlicingSettings,
    "training": Training,
}  # fmt: skip
_ReaderWords = Callable[[str, str], tuple[str, tuple[str, ...]]]
"""From a section and a setting of it to words for what leaves it unread, and the names of what reads it."""
_BY_MODEL = tuple(name for name in Model.model_fields if name not in ("kind", "seed"))


def only_read(raw: Any) -> Any:
    """Return an experiment's settings without those at their defaults that trust model, task or model leave unread.

    Nothing is checked of what is refused later anyway: a section that is none, or a name that nothing has. ValueError
    names the first unread setting that is not at its default, what leaves it unread, and what reads it.
    """
    if not isinstance(raw, Mapping):
        return raw
    settings = dict(raw)
    trust, task, kind = _named(raw, "privacy", "trust"), _named(raw, "objective", "task"), _named(raw, "model", "kind")
    if trust in trust_models():
        for section in TAGGED.keys() & settings.keys():
            if isinstance(settings[section], Mapping):
                settings[section] = _without_foreign(section, settings[section], trust, prefix=f"{section}.")
    if task in TASKS:
        for section, names in TASKS.get(task).facts.unread.items():
            if section in settings:
                settings[section] = _without(_BY_TASK[section], section, settings[section], names, _task_words(task))
    if "model" in settings and (kind in MODELS or is_reference(kind)):
        names = tuple(name for name in _BY_MODEL if name not in MODELS.get(kind).reads)
        settings["model"] = _without(Model, "model", settings["model"], names, _model_words(kind))
    return settings


def unread(settings: Any, facts: Facts) -> str | None:
    """Return why a setting that a task leaves unread is refused, or None; for tasks loaded after reading settings."""
    for section, names in facts.unread.items():
        if name := getattr(settings, section).changed(*names):
            value = getattr(getattr(settings, section), name)
            return _refusal(section, name, value, *_task_words(settings.objective.task)(section, name))
    return None


def _named(raw: Mapping[str, Any], section: str, name: str) -> str:
    """Return the name that a section gives, or its default; "" where none can be read."""
    written = raw.get(section, {})
    kinds: dict[str, type[Section]] = {"privacy": Privacy, "objective": ObjectiveSettings, "model": Model}
    default = kinds[section].model_fields[name].default
    value = written.get(name, default) if isinstance(written, Mapping) else getattr(written, name, None)
    return value if isinstance(value, str) else ""


def _without(kind: type[Section], section: str, written: Any, names: Iterable[str], words: _ReaderWords) -> Any:
    if isinstance(written, Section):
        if name := written.changed(*names):
            raise ValueError(_refusal(section, name, getattr(written, name), *words(section, name)))
        return written
    if not isinstance(written, Mapping):
        return written
    for name in names:
        # stored runs are written whole, so that a setting which nothing reads may stand at its default
        if name in written and _plain(written[name]) != kind.model_fields[name].get_default(call_default_factory=True):
            raise ValueError(_refusal(section, name, written[name], *words(section, name)))
    return {name: value for name, value in written.items() if name not in names}


def _task_words(task: str) -> _ReaderWords:
    def words(section: str, name: str) -> tuple[str, tuple[str, ...]]:
        able = (known for known, kind in TASKS.items() if name not in kind.facts.unread.get(section, ()))
        return f"objective.task {task!r}", tuple(able)

    return words


def _model_words(kind: str) -> _ReaderWords:
    def words(section: str, name: str) -> tuple[str, tuple[str, ...]]:
        able = (known for known, model in MODELS.items() if name in model.reads)
        return f"model.kind {kind!r}", tuple(able)

    return words


def _refusal(section: str, name: str, value: Any, tag: str, able: tuple[str, ...]) -> str:
    readers = " and ".join(map(repr, able)) or "one of your own, 'module:name'"
    return f"{section}.{name} is {value!r}, which {tag} does not read; it is read by {readers}: leave it out"


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def tagged(section: str, raw: Any, trust: str, *, sketch: bool = False) -> Any:
    """Read a section by the class that a trust model declares for it (`TrustModel.sections`).

    ValueError names the trust models under which a setting has a meaning that has none under this one.
    """
    kind = trust_model(trust, sketch=sketch).sections.get(section, TAGGED[section][0])
    if type(raw) is kind:
        return raw
    settings = raw.model_dump(exclude_unset=True) if isinstance(raw, Section) else raw
    return kind.model_validate(_without_foreign(section, settings, trust)) if isinstance(settings, Mapping) else raw


def _without_foreign(section: str, settings: Mapping[str, Any], trust: str, *, prefix: str = "") -> dict[str, Any]:
    """Return a section's settings without those of other trust models at their defaults; ValueError for others."""
    foreign = meaningless(section, settings, trust)
    for name, fields in foreign.items():
        if _plain(settings[name]) not in [field.default for field in fields.values()]:
            raise ValueError(
                f"{prefix}{name} is {settings[name]!r}, which has no meaning under privacy.trust {trust!r}, and has "
                f"one under {' and '.join(map(repr, fields))}: leave it out, or choose that trust model"
            )
    return {name: value for name, value in settings.items() if name not in foreign}


def meaningless(section: str, names: Iterable[str], trust: str) -> dict[str, dict[str, FieldInfo]]:
    """Return the settings of a section that other trust models alone read, with their fields under each of those."""
    read_here = trust_model(trust).sections.get(section, TAGGED[section][1]).model_fields
    declared = {model.name: model.sections.get(section, Section) for _, model in trust_models().items()}
    fields_by_trust = {reader: kind.model_fields for reader, kind in declared.items()}
    foreign = {
        name: {reader: fields[name] for reader, fields in fields_by_trust.items() if name in fields}
        for name in names
        if name not in read_here
    }
    return {name: fields for name, fields in foreign.items() if fields}


def without_unread(raw: Mapping[str, Any], *, trust: str | None, task: str | None) -> dict[str, Any]:
    """Return settings without those that a newly chosen trust model or task leaves unread, whatever their values."""
    written = {name: section for name, section in raw.items() if isinstance(section, Mapping)}
    dropped: dict[str, set[str]] = {}
    if trust is not None and trust in trust_models():
        dropped |= {name: set(meaningless(name, written[name], trust)) for name in TAGGED.keys() & written.keys()}
    if task is not None and task in TASKS:
        for section, names in TASKS.get(task).facts.unread.items():
            dropped[section] = dropped.get(section, set()) | set(names)
    read = {
        section: {name: value for name, value in written[section].items() if name not in dropped[section]}
        for section in dropped.keys() & written.keys()
    }
    return {**raw, **read}
