"""Settings that nothing of a run would look at: who set one asked for something that it would not get."""

from __future__ import annotations

from fedsw.experiment.choices import Settings, TaskKind
from fedsw.experiment.kinds import model_kind
from fedsw.experiment.registry import is_reference
from fedsw.experiment.sections import Data, Local, Model, Privacy, Section, Sketch

_LAW = ("correlation", "core_features", "spurious_features", "core_variance", "spurious_variance", "target")
_RELEASE = ("iterations", "critic", "wavelet", "thresholds", "keep")


def without_effect(settings: Settings, kind: TaskKind | None, *, unsafe_metrics: bool) -> str | None:
    """The first setting that is not its default and would have no effect, with the remedy; None if there is none.

    Args:
        settings: the sections of an experiment.
        kind: its task; None for one of a user's own before it is loaded: what takes its facts is then left out.
        unsafe_metrics: whether training losses are asked for.
    """
    return (
        _of_data(settings.data)
        or (None if kind is None else _of_public(settings, kind))
        or _of_model(settings.model)
        or _of_trust(settings.privacy, settings.local)
        or _of_sketch(settings.privacy, settings.sketch)
        or _of_release(settings.privacy, settings.local)
        or (_of_metrics(settings, kind) if unsafe_metrics else None)
    )


def _of_data(data: Data) -> str | None:
    source = f"of data.source {data.source!r}"
    if not data.drawn and (name := _changed(data, ("records", "test_records"))):
        return f"data.{name} is for records drawn from a law, and those {source} are what they are: leave it out"
    if (data.drawn or data.own) and _changed(data, ("most_records",)):
        return f"data.most_records is for named data sets that are not drawn, not for those {source}: leave it out"
    if data.source != "synthetic" and (name := _changed(data, _LAW)):
        return f"data.{name} is about the law of data.source 'synthetic', not {source}: leave it out"
    if data.encoded is None and (name := _changed(data, ("encoder_epochs",))):
        return f"data.{name} is about the autoencoder of data.encoded, which is not set: leave it out"
    if data.family in ("object", "module") and data.data_dir is not None:
        return f"data.data_dir is where files are, and records {source} come from Python: leave it out"
    return None


def _of_public(settings: Settings, kind: TaskKind) -> str | None:
    task = settings.objective.task
    if settings.data.public is not None and kind.facts.other_side != "domain":
        return f"data.public is read by objective.task 'adaptation', not by {task!r}: leave it out"
    if settings.data.target != "point" and kind.facts.target != "numbers":
        return f"data.target is what a regression predicts, and objective.task {task!r} has classes: leave it out"
    return None


def _of_model(model: Model) -> str | None:
    name = _changed(model, ("hidden", "activation"))
    if name and is_reference(model.kind):
        return f"model.{name} is set, and a model of your own ({model.kind!r}) takes model.arguments: write it there"
    if name and not model_kind(model.kind).layered:
        return f"model.{name} is set, and model.kind {model.kind!r} has no layers to choose: leave it out"
    if model.kind not in ("labelled-images", "blocked-images") and (name := _changed(model, ("code",))):
        return f"model.{name} is for 'labelled-' and 'blocked-images', not model.kind {model.kind!r}: leave it out"
    return None


def _of_trust(privacy: Privacy, local: Local) -> str | None:
    if not privacy.local:
        return None
    if name := _changed(privacy, ("bound", "sampling", "device")):
        return (
            f"privacy.{name} is about trust 'central'; under {privacy.trust!r} every client plans its own noise and "
            "batches, and accounts for them: leave it out"
        )
    slices = privacy.trust == "local-slices" and local.algorithm == "dp-swd"
    if not slices and (name := _changed(local, ("order",))):
        return f"local.{name} is for local.algorithm 'dp-swd' of trust 'local-slices' alone: leave it out"
    stored = privacy.trust == "local-slices" and local.algorithm == "flow-one-release"
    if not stored and (name := _changed(local, ("per_step",))):
        return f"local.{name} is for local.algorithm 'flow-one-release' of trust 'local-slices' alone: leave it out"
    return None


def _of_release(privacy: Privacy, local: Local) -> str | None:
    if privacy.trust != "local-release":
        name = _changed(local, _RELEASE)
        return (
            None if name is None else f"local.{name} is for trust 'local-release', not {privacy.trust!r}: leave it out"
        )
    unread = (
        ("iterations", local.loss in ("entropic", "sinkhorn")),
        ("critic", local.adversarial),
        ("wavelet", local.denoised),
        ("thresholds", local.denoised),
    )
    for name, read in unread:
        if not read and _changed(local, (name,)):
            return f"local.{name} is nothing that local.loss {local.loss!r} reads: leave it out"
    return None


def _of_sketch(privacy: Privacy, sketch: Sketch) -> str | None:
    if not privacy.sketch and (name := _changed(sketch, tuple(Sketch.model_fields))):
        return f"sketch.{name} is about trust 'sketch' and 'sketch-local', not {privacy.trust!r}: leave it out"
    return None


def _of_metrics(settings: Settings, kind: TaskKind | None) -> str | None:
    trust, task = settings.privacy.trust, settings.objective.task
    if settings.privacy.local:
        return f"unsafe_metrics asks for training losses; under trust {trust!r} clients send none: leave it out"
    if kind is not None and kind.facts.other_side == "generator":
        return f"unsafe_metrics asks for training losses, and objective.task {task!r} has none: leave it out"
    return None


def _changed(section: Section, names: tuple[str, ...]) -> str | None:
    fields = type(section).model_fields
    return next((name for name in names if getattr(section, name) != fields[name].default), None)
