"""Which settings go together, and which nothing would read: what task, model, data, trust model can do together."""

from __future__ import annotations

from fedsw.accountants import accountant_named
from fedsw.experiment.choices import Settings, TaskKind, shipped_tasks
from fedsw.experiment.kinds import model_kind
from fedsw.experiment.preset import misfit as misfit_of_preset
from fedsw.experiment.registry import is_reference
from fedsw.experiment.sections import SOURCES, Federation, Model, Privacy, Training
from fedsw.experiment.trust import trust_model


def misfit(settings: Settings, kind: TaskKind | None) -> str | None:
    """What does not go together, with what would; None if everything does. Without ``kind``, of an unloaded task."""
    known = None if kind is None else _misfit_of_task(settings, kind) or _misfit_of_trust(settings, kind)
    return (
        known
        or _misfit_of_flow(settings)
        or (None if kind is None else _misfit_of_protection(settings, kind))
        or (None if kind is None else kind.misfit(settings))
        or settings.privacy.model.without_noise(settings.privacy)
        or settings.privacy.model.misfit(settings)
        or _misfit_of_partition(settings)
        or _misfit_of_release(settings)
        or _misfit_of_clip(settings)
        or _misfit_of_batches(settings.privacy, settings.training)
        or misfit_of_preset(settings)
        or (None if kind is None else _unread_by_task(settings, kind))
        or _unread_by_model(settings.model)
        or (_no_losses(settings, kind) if settings.unsafe_metrics else None)
        or _misfit_of_federation(settings.federation, local=settings.privacy.local)
        or _misfit_of_masks(settings.federation, settings.privacy.trust)
    )


def fixed_by_neighbours(settings: Settings) -> tuple[str, ...]:
    """What of a record stays in the neighbours of a guarantee, and so is public: "group", "label", both, or nothing."""
    if settings.privacy.sketch:
        return ()
    goal = settings.objective
    odds = "equality-of-odds" in (goal.penalty, *(each.penalty for each in goal.also))
    return ("group", "label") if odds else ("group",)


def _misfit_of_partition(settings: Settings) -> str | None:
    """A partition of somebody's own records by what the guarantee covers: each client's number of them tells it."""
    tells, scheme = settings.partition.tells, settings.partition.scheme
    if not (settings.data.own and settings.privacy.noisy) or tells is None or tells in fixed_by_neighbours(settings):
        return None
    named = f"'{scheme}' by '{settings.partition.by}'" if scheme == "dirichlet" else f"'{scheme}'"
    return (
        f"partition.scheme {named} chooses a record's client by its {tells}, so every client's number of records would "
        f"tell {tells}s, which the guarantee of trust {settings.privacy.trust!r} with this objective covers: use "
        "'iid', or give each client a table of its own"
    )


def _misfit_of_task(settings: Settings, kind: TaskKind) -> str | None:
    data, task, facts = settings.data, settings.objective.task, kind.facts
    for name, value, known in (
        ("model.kind", settings.model.kind, facts.models),
        ("objective.penalty", settings.objective.penalty, facts.penalties),
    ):
        if value not in known and not is_reference(value):
            return f"{name} {value!r} with objective.task {task!r}: use {_either(known)}"
    source = "files" if data.own else data.source
    also = SOURCES[source].tasks if source in SOURCES else ()
    if source not in facts.sources and task not in also:
        named = (name for name, each in shipped_tasks().items() if source in each.facts.sources)
        tasks = _either((*named, *also))
        fit = _either(facts.sources)
        return f"data.source {data.source!r} serves {tasks}, not objective.task {task!r}; that takes {fit}"
    if data.columns is not None:
        return data.columns.misfit(
            task=task,
            penalty=settings.objective.penalty,
            model=settings.model.kind,
            grouped=facts.grouped,
            target=facts.target,
            unit=facts.unit,
            square=model_kind(settings.model.kind).square,
            table=model_kind(settings.model.kind).table,
        )
    return None


def _misfit_of_trust(settings: Settings, kind: TaskKind) -> str | None:
    trust, task = settings.privacy.trust, settings.objective.task
    if settings.objective.also and settings.privacy.local and not trust_model(trust).masked:
        return f"objective.also has more penalties, and trust {trust!r} takes one: use 'central' or 'distributed'"
    if settings.objective.also and kind.facts.other_side not in (None, "prior"):
        return f"objective.also has more penalties, and objective.task {task!r} takes its own alone: leave it out"
    if kind.facts.sketched and not settings.privacy.sketch and trust in kind.facts.trusts:
        return (
            f"privacy.trust {trust!r} releases sketches for shipped tasks, and objective.task {task!r} is one of your "
            "own: use 'sketch' or 'sketch-local'"
        )
    if trust in kind.facts.trusts:
        return _misfit_of_held_out(settings)
    why, able = trust_model(trust).why_not, _either(kind.facts.trusts)
    return f"privacy.trust {trust!r} cannot run {task!r}: {why}. Trust models that can: {able}"


def _misfit_of_held_out(settings: Settings) -> str | None:
    if settings.data.held_out_released and not trust_model(settings.privacy.trust).gradients:
        return (
            f"data.held_out_to 'everybody' measures a trained model at the clients, and trust "
            f"{settings.privacy.trust!r} asks them once, before there is one: set data.held_out_to to 'operator'"
        )
    return None


def _misfit_of_flow(settings: Settings) -> str | None:
    trust, training = settings.privacy.trust, settings.training
    flows = trust_model(trust).moves_points(settings)
    if flows != model_kind(settings.model.kind).points:
        return (
            f"model.kind {settings.model.kind!r} with trust {trust!r} and {_set_by(settings)}: 'particles' are moved "
            "by the flows of 'local-slices' ('flow', 'flow-one-release') and by nothing else"
        )
    if flows and (training.optimizer != "sgd" or training.momentum or training.scheduler is not None):
        return "a flow takes Euler steps of training.learning_rate: set training.optimizer to 'sgd', without momentum"
    accountant = settings.privacy.accountant
    if not trust_model(trust).slices and accountant_named(accountant).covers == "sliced":
        return f"privacy.accountant {accountant!r} is about random slices, not trust {trust!r}; use 'pld'"
    return None


def _misfit_of_protection(settings: Settings, kind: TaskKind) -> str | None:
    trust = trust_model(settings.privacy.trust)
    generated = kind.facts.other_side == "generator" and trust.noised and not trust.local
    if settings.objective.protected == "both" and not generated:
        return "objective.protected 'both' adds noise for a generator's inputs under trust 'central'; use 'target'"
    return None


def _misfit_of_release(settings: Settings) -> str | None:
    kind, trust = settings.model.kind, settings.privacy.trust
    if trust_model(trust).trains_critic(settings) != (kind == "adversarial-dcgan"):
        return (
            f"model.kind {kind!r} with trust {trust!r} and {_set_by(settings)}: the adversarial losses of "
            "'local-release' train the critic of 'adversarial-dcgan', and nothing else does"
        )
    return None


def _set_by(settings: Settings) -> str:
    """What section [local] says first, for a message."""
    return next((f"local.{name} {value!r}" for name, value in settings.local), "no settings in [local]")


def _misfit_of_clip(settings: Settings) -> str | None:
    if settings.clip.open and trust_model(settings.privacy.trust).noised:
        return (
            f"clip.mode 'none' bounds nothing, and privacy.trust {settings.privacy.trust!r} promises a bound: use "
            "'spectral', or trust 'none' for a reference without clipping"
        )
    return None


def _misfit_of_batches(privacy: Privacy, training: Training) -> str | None:
    if privacy.sketch and privacy.sampling == "stratified":
        return f"privacy.sampling is about batches, and trust {privacy.trust!r} sums all records once: leave it out"
    if training.batch_size is None:
        return None
    if privacy.sketch:
        return (
            f"training.batch_size is a batch of records, and trust {privacy.trust!r} sums all of them once; a "
            "generator's samples of a step are sketch.batch"
        )
    if privacy.local:
        return (
            f"training.batch_size is a number of records of the whole federation; trust {privacy.trust!r} samples at "
            "each client on its own: use training.batch_fraction"
        )
    if privacy.sampling == "stratified":
        return (
            "training.batch_size cannot be split in fixed counts per client; use training.batch_fraction with "
            "privacy.sampling 'stratified'"
        )
    return None


def _unread_by_task(settings: Settings, kind: TaskKind) -> str | None:
    task = settings.objective.task
    if settings.data.public is not None and kind.facts.other_side != "domain":
        return f"data.public is read by objective.task 'adaptation', not by {task!r}: leave it out"
    if settings.data.target != "point" and kind.facts.target != "numbers":
        return f"data.target is what a regression predicts, and objective.task {task!r} has classes: leave it out"
    return None


def _unread_by_model(model: Model) -> str | None:
    name = model.changed("hidden", "activation")
    if name and is_reference(model.kind):
        return f"model.{name} is set, and a model of your own ({model.kind!r}) takes model.arguments: write it there"
    if name and not model_kind(model.kind).layered:
        return f"model.{name} is set, and model.kind {model.kind!r} has no layers to choose: leave it out"
    if model.kind not in ("labelled-images", "blocked-images") and model.changed("code"):
        return f"model.code is for 'labelled-' and 'blocked-images', not model.kind {model.kind!r}: leave it out"
    return None


def _no_losses(settings: Settings, kind: TaskKind | None) -> str | None:
    trust, task = settings.privacy.trust, settings.objective.task
    if settings.privacy.local:
        return f"unsafe_metrics asks for training losses; under trust {trust!r} clients send none: leave it out"
    if kind is not None and kind.facts.other_side == "generator":
        return f"unsafe_metrics asks for training losses, and objective.task {task!r} has none: leave it out"
    return None


def _misfit_of_federation(federation: Federation, *, local: bool) -> str | None:
    clients = federation.clients
    for name, most in (("min_clients", federation.min_clients), ("sites", federation.sites)):
        if most is not None and most > clients:
            return f"federation.{name} is {most}, above federation.clients = {clients}; lower it"
    if federation.drop_out and local:
        return (
            "federation.drop_out simulates clients that are lost between the two exchanges of trust 'central'; leave "
            "it out under a local trust model"
        )
    if federation.drop_out and federation.min_clients is None:
        return (
            f"federation.drop_out is {federation.drop_out:g}, and without federation.min_clients a round needs all "
            f"{clients} clients; set it to the number that is enough"
        )
    return None


def _misfit_of_masks(federation: Federation, trust: str) -> str | None:
    masks, sites = federation.masks, federation.sites
    if masks is not None and not trust_model(trust).masked:
        return f"federation.masks is {masks!r}, and trust {trust!r} has no masked sums; leave it out"
    if masks == "simulated" and (sites or 1) > 1:
        return f"federation.masks is 'simulated', and {sites} sites always have masks; leave out federation.sites"
    if masks == "real" and sites == 1:
        return "federation.masks is 'real', and one site has nobody to hide its sum from; leave out federation.sites"
    return None


def _either(names: tuple[str, ...]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
