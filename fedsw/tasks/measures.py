"""What a model is worth on held-out records, task by task: metrics, and arrays that the figures are drawn from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsw import metrics
from fedsw.data import Records
from fedsw.randomness import Stream
from fedsw.tasks.generation import sliced_w2_to, uniform_ball
from fedsw.tasks.heads import Raw
from fedsw.tasks.task import Task

_RIDGE = 1e-3
_SLICES = 100
_MOST_IMAGES = 64
_MOST_POINTS = 10_000


@dataclass(frozen=True)
class Measured:
    """Metrics by name, and arrays for the figures; `outputs` (n, d) is always among them."""

    report: dict[str, float]
    arrays: dict[str, Tensor]


def measure(task: Task, records: Records, model: nn.Module) -> Measured:
    """Metrics of a model on held-out records, which the run's guarantee does not protect."""
    with torch.no_grad():
        return _MEASURES[task.experiment.objective.task](task, records, model)


def _outputs_and_loss(task: Task, records: Records, model: nn.Module) -> tuple[Raw, Tensor, float]:
    """Raw outputs, centred back outputs, and the mean loss."""
    parts = [model(task.inputs(chunk)) for chunk in task.chunks(records)]
    if isinstance(parts[0], tuple):
        raw: Raw = tuple(torch.cat(each) for each in zip(*parts, strict=True))
    else:
        raw = torch.cat(parts)
    outputs = (task.outputs(raw) + task.experiment.clip.centre).cpu()
    return raw, outputs, float(task.losses(raw, records).double().mean())


def _classification(task: Task, records: Records, model: nn.Module) -> Measured:
    _, outputs, loss = _outputs_and_loss(task, records, model)
    report = metrics.classification(
        outputs,
        predictions(task, outputs),
        records.target,
        records.sensitive,
        groups=len(task.groups),
        classes=task.classes,
        directions=None if task.dimension == 1 else task.directions(0, 0),
    )
    return Measured({"loss": loss, **report}, _by_group(outputs, records))


def predictions(task: Task, outputs: Tensor) -> Tensor:
    """The classes (n,) that a classifier's outputs (n, d) stand for."""
    return (outputs[:, 0] > 0.5).long() if task.dimension == 1 else outputs.argmax(dim=1)


def _regression(task: Task, records: Records, model: nn.Module) -> Measured:
    _, outputs, loss = _outputs_and_loss(task, records, model)
    error = metrics.mean_squared_error(outputs, records.target)
    report = {"loss": loss, "w2_squared": _gap(task, outputs, records), "mean_squared_error": error}
    return Measured(report, _by_group(outputs, records))


def _representation(task: Task, records: Records, model: nn.Module) -> Measured:
    _, outputs, loss = _outputs_and_loss(task, records, model)
    report = {"loss": loss, "w2_squared": _gap(task, outputs, records)}
    for name, labels in (("label", records.target), ("group", records.sensitive)):
        report[f"linear_probe_{name}"] = _probe(outputs, labels, int(labels.max()) + 1)
    return Measured(report, _by_group(outputs, records))


def _autoencoder(task: Task, records: Records, model: nn.Module) -> Measured:
    raw, outputs, loss = _outputs_and_loss(task, records, model)
    assert isinstance(raw, tuple)
    radius = task.experiment.objective.prior_radius
    prior = uniform_ball(len(outputs), task.dimension, radius, Stream.seeded(0, "held-out prior"))
    distance = sliced_w2_to(outputs, prior, directions=_SLICES)
    arrays = _by_group(outputs, records)
    arrays["images"] = task.inputs(records)[:_MOST_IMAGES].cpu()
    arrays["reconstructions"] = torch.sigmoid(raw[1][:_MOST_IMAGES]).cpu()
    decoder = getattr(model, "decode", None)
    if decoder is not None:
        arrays["samples"] = torch.sigmoid(decoder(prior[:_MOST_IMAGES].to(task.device, task.dtype))).cpu()
    return Measured({"loss": loss, "sw2_to_prior": distance}, arrays)


def _generation(task: Task, records: Records, model: nn.Module) -> Measured:
    generated = samples(task, model, min(_MOST_POINTS, len(records)))
    target = task.inputs(records).cpu()
    arrays = {"outputs": generated, "reference": target[:_MOST_POINTS]}
    return Measured({"sw2": sliced_w2_to(generated, target, directions=_SLICES)}, arrays)


def _adaptation(task: Task, records: Records, model: nn.Module) -> Measured:
    raw, outputs, loss = _outputs_and_loss(task, records, model)
    assert isinstance(raw, tuple)
    accuracy = metrics.accuracy(raw[1].argmax(dim=1).cpu(), records.target)
    return Measured({"loss": loss, "accuracy": accuracy}, _by_group(outputs, records))


def samples(task: Task, model: nn.Module, count: int) -> Tensor:
    """What a generator makes of `count` inputs of its own (the same at every call), or where particles are."""
    particles = task.experiment.model.kind == "particles"
    found: Tensor = model() if particles else model(task.latents(count, "held-out"))
    return found.detach().cpu()


def _by_group(outputs: Tensor, records: Records) -> dict[str, Tensor]:
    return {"outputs": outputs, "sensitive": records.sensitive, "target": records.target}


def _gap(task: Task, outputs: Tensor, records: Records) -> float:
    of = {"groups": len(task.groups)}
    slices = None if task.dimension == 1 else task.directions(0, 0)
    return metrics.w2_squared(outputs, records.sensitive, directions=slices, **of)


def _probe(latent: Tensor, labels: Tensor, classes: int) -> float:
    """Accuracy of a ridge classifier on the latent: fitted on half of the records, measured on the other."""
    design = torch.cat([latent.double(), torch.ones((len(latent), 1), dtype=torch.float64)], dim=1)
    fit, held = design[::2], design[1::2]
    targets = torch.nn.functional.one_hot(labels[::2], classes).double()
    penalty = _RIDGE * torch.eye(design.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(fit.T @ fit / len(fit) + penalty, fit.T @ targets / len(fit))
    return metrics.accuracy((held @ weights).argmax(dim=1), labels[1::2])


_MEASURES: Mapping[str, Callable[[Task, Records, nn.Module], Measured]] = {
    "classification": _classification,
    "regression": _regression,
    "representation": _representation,
    "autoencoder": _autoencoder,
    "generation": _generation,
    "adaptation": _adaptation,
}
