"""Settings that nothing of a run would look at: who set one asked for something that it would not get."""

from __future__ import annotations

from fedsw.experiment.sections import Data, Local, Model, Objective, Privacy, Section

_DRAWN = ("synthetic", "ring", "gaussians")
_LAW = ("correlation", "core_features", "spurious_features", "core_variance", "spurious_variance")
_FIXED_MODELS = ("logistic", "image-autoencoder", "adaptor")


def ignored(
    data: Data, model: Model, objective: Objective, privacy: Privacy, local: Local, *, unsafe_metrics: bool
) -> str | None:
    """The first setting that is not its default and would have no effect, with the remedy; None if there is none."""
    return (
        _of_data(data, objective)
        or _of_model(model)
        or _of_trust(privacy, local)
        or (_of_metrics(objective, privacy) if unsafe_metrics else None)
    )


def _of_data(data: Data, objective: Objective) -> str | None:
    source = f"of data.source {data.source!r}"
    if data.source not in _DRAWN and (name := _changed(data, ("records", "test_records"))):
        return f"data.{name} is for records drawn from a law, and those {source} are what they are: leave it out"
    if data.source != "synthetic" and (name := _changed(data, _LAW)):
        return f"data.{name} is about the law of data.source 'synthetic', not {source}: leave it out"
    if data.family in ("object", "module") and data.data_dir is not None:
        return f"data.data_dir is where files are, and records {source} come from Python: leave it out"
    if data.public is not None and objective.task != "adaptation":
        return f"data.public is read by objective.task 'adaptation', not by {objective.task!r}: leave it out"
    return None


def _of_model(model: Model) -> str | None:
    if model.kind in _FIXED_MODELS and (name := _changed(model, ("hidden", "activation"))):
        return f"model.{name} is set, and model.kind {model.kind!r} has no layers to choose: leave it out"
    return None


def _of_trust(privacy: Privacy, local: Local) -> str | None:
    if not privacy.local:
        return None
    if name := _changed(privacy, ("bound", "sampling")):
        return (
            f"privacy.{name} is about trust 'central'; under {privacy.trust!r} every client plans its own noise and "
            "batches: leave it out"
        )
    slices = privacy.trust == "local-slices" and local.algorithm == "dp-swd"
    if not slices and (name := _changed(local, ("order",))):
        return f"local.{name} is for local.algorithm 'dp-swd' of trust 'local-slices' alone: leave it out"
    return None


def _of_metrics(objective: Objective, privacy: Privacy) -> str | None:
    if privacy.local:
        return f"unsafe_metrics asks for training losses; under trust {privacy.trust!r} clients send none: leave it out"
    if objective.task == "generation":
        return "unsafe_metrics asks for training losses, and objective.task 'generation' has none: leave it out"
    return None


def _changed(section: Section, names: tuple[str, ...]) -> str | None:
    fields = type(section).model_fields
    return next((name for name in names if getattr(section, name) != fields[name].default), None)
