"""Which settings go together: what a task, a model, a data set and a trust model can do with one another."""

from __future__ import annotations

from collections.abc import Mapping

from fedsw.experiment.sections import Clip, Data, Local, Model, Objective, Privacy, Training

_FAIR = ("classification", "regression", "representation")

# What each source's records are: groups and labels, labels alone, or points.
_TASKS_OF_SOURCE: Mapping[str, tuple[str, ...]] = {
    "synthetic": _FAIR,
    "adult": ("classification", "representation"),
    "ring": ("generation",),
    "gaussians": ("generation",),
    "digits": ("generation", "autoencoder"),
    "mnist": ("generation", "autoencoder", "adaptation"),
    "fashion-mnist": ("generation", "autoencoder"),
    "usps": ("generation", "autoencoder", "adaptation"),
    "files": (*_FAIR, "generation", "autoencoder", "adaptation"),
}
_MODELS_OF_TASK: Mapping[str, tuple[str, ...]] = {
    "classification": ("logistic", "mlp"),
    "regression": ("logistic", "mlp"),
    "representation": ("encoder-decoder",),
    "autoencoder": ("image-autoencoder", "encoder-decoder"),
    "generation": ("generator", "particles"),
    "adaptation": ("adaptor",),
}
_PENALTIES_OF_TASK: Mapping[str, tuple[str, ...]] = {
    "classification": ("statistical-parity", "equality-of-odds"),
    "regression": ("statistical-parity",),
    "representation": ("statistical-parity", "equality-of-odds"),
    "autoencoder": ("prior-matching",),
    "generation": ("distribution-matching",),
    "adaptation": ("distribution-matching",),
}
_TASKS_OF_TRUST: Mapping[str, tuple[str, ...]] = {
    "none": tuple(_MODELS_OF_TASK),
    "central": tuple(_MODELS_OF_TASK),
    "local-gradient": _FAIR,
    "local-slices": ("generation", "adaptation"),
    "local-release": ("generation",),
}
_ACCOUNTANTS_OF_SLICES = ("bernstein", "bernstein-published", "clt")
_WHY_NOT: Mapping[str, str] = {
    "local-gradient": "its noised tables rank the outputs of private groups against each other",
    "local-slices": "it matches private features that no parameter moves, by their noised projections",
    "local-release": "it releases records once, for a generator to learn from",
}


def misfit(
    data: Data, model: Model, objective: Objective, clip: Clip, privacy: Privacy, local: Local, training: Training
) -> str | None:
    """What does not go together, with what would; None if everything does."""
    return (
        _misfit_of_task(data, model, objective, clip)
        or _misfit_of_trust(model, objective, privacy, local, training)
        or _misfit_of_noise(objective, privacy)
        or _misfit_of_batches(privacy, training)
    )


def _misfit_of_task(data: Data, model: Model, objective: Objective, clip: Clip) -> str | None:
    task = objective.task
    for name, value, known in (
        ("model.kind", model.kind, _MODELS_OF_TASK),
        ("objective.penalty", objective.penalty, _PENALTIES_OF_TASK),
    ):
        if value not in known[task]:
            return f"{name} {value!r} with objective.task {task!r}: use {_either(known[task])}"
    if task not in (able := _TASKS_OF_SOURCE["files" if data.own else data.source]):
        tasks = _either(able)
        fit = _either(tuple(source for source, fits in _TASKS_OF_SOURCE.items() if task in fits))
        return f"data.source {data.source!r} serves {tasks}, not objective.task {task!r}; that takes {fit}"
    if data.columns is not None:
        found = data.columns.misfit(task=task, penalty=objective.penalty, model=model.kind)
        if found is not None:
            return found
    if task == "adaptation" and data.public in (None, data.source):
        return f"objective.task 'adaptation' learns from another, public data set; data.public is {data.public!r}"
    if task == "generation" and objective.alpha != 1:
        return f"objective.alpha is {objective.alpha}; a generator has no loss but the distance: set it to 1"
    if task == "autoencoder" and data.row_norm is not None and data.row_norm > 1:
        return f"data.row_norm is {data.row_norm}; an autoencoder predicts numbers in [0, 1]: set it to 1 or less"
    if objective.penalty == "prior-matching" and clip.centre != 0:
        return f"clip.centre is {clip.centre}; latent codes are matched to a prior about 0: leave it at 0"
    return None


def _misfit_of_trust(
    model: Model, objective: Objective, privacy: Privacy, local: Local, training: Training
) -> str | None:
    trust, task = privacy.trust, objective.task
    if task not in _TASKS_OF_TRUST[trust]:
        able = _either(tuple(name for name, tasks in _TASKS_OF_TRUST.items() if task in tasks))
        return f"privacy.trust {trust!r} cannot run {task!r}: {_WHY_NOT[trust]}. Trust models that can: {able}"
    flows = trust == "local-slices" and local.algorithm != "dp-swd"
    if flows != (model.kind == "particles"):
        return (
            f"model.kind {model.kind!r} with trust {trust!r} and local.algorithm {local.algorithm!r}: 'particles' are "
            "moved by the flows of 'local-slices' ('flow', 'flow-one-release') and by nothing else"
        )
    if flows and (training.optimizer != "sgd" or training.momentum):
        return "a flow takes Euler steps of training.learning_rate: set training.optimizer to 'sgd', without momentum"
    if trust != "local-slices" and privacy.accountant in _ACCOUNTANTS_OF_SLICES:
        return f"privacy.accountant {privacy.accountant!r} is about random slices, not trust {trust!r}; use 'pld'"
    if objective.protected == "both" and (task != "generation" or trust != "central"):
        return "objective.protected 'both' adds noise for a generator's inputs under trust 'central'; use 'target'"
    return None


def _misfit_of_noise(objective: Objective, privacy: Privacy) -> str | None:
    trust = privacy.trust
    if objective.task == "adaptation" and objective.alpha == 0 and privacy.noisy:
        return (
            "objective.alpha is 0: adaptation then reads public records alone and there is nothing to noise; set it "
            "above 0, or use privacy.trust 'none' for the baseline"
        )
    if trust == "local-gradient" and not privacy.noisy:
        return (
            "privacy.epsilon is inf: without noise trust 'local-gradient' would send counts of outputs as they are; "
            "set a finite epsilon or a noise_multiplier, or use trust 'none' for the non-private reference"
        )
    if trust == "local-release" and (not privacy.noisy or privacy.epsilon is None):
        return (
            "trust 'local-release' needs a finite privacy.epsilon to calibrate its noise; use trust 'none' for the "
            "non-private reference"
        )
    return None


def _misfit_of_batches(privacy: Privacy, training: Training) -> str | None:
    if training.batch_size is None:
        return None
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


def _either(names: tuple[str, ...]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
