"""What a generator of tables draws rows along: made once more from the released sketches, and compared."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedsw.audit.record.folder import Folder

_OF_TREE = ("drawn", "parents", "order", "chances", "proportions")
_ROOM = 1e-5
"""What other processors may make of the same sums."""


def not_of_sketches(folder: Folder, kept: Mapping[str, Tensor], released: Mapping[str, Tensor]) -> list[str] | None:
    """Which tensors of a generator of tables are neither its training's nor read off the released sketches.

    Args:
        kept: of the last checkpoint, of any shape, by name.
        released: of model.safetensors.

    Returns:
        Their names; None for a generator of another kind.
    """
    from fedsw.experiment import parse_experiment
    from fedsw.models.tables import TableGenerator
    from fedsw.runs.directory import RunDirectory
    from fedsw.runs.releases import stored_classifier, stored_sketch
    from fedsw.sketches.learnt import flat_bytes
    from fedsw.sketches.noised import independent_proportions
    from fedsw.sketches.trees import choose
    from fedsw.tasks.measures import law_of_problem, sketcher_of
    from fedsw.tasks.problem import Problem
    from fedsw.tasks.sketched import Stage

    if folder.experiment["model"]["kind"] != "table-generator":
        return None
    experiment, run = parse_experiment(folder.experiment), RunDirectory(folder.directory)
    problem = Problem.from_experiment(experiment)
    network = problem.build_model()
    assert isinstance(network, TableGenerator)
    network.load_state_dict(dict(kept))
    sketches, sketchers = [], []
    for number in range(1, 1 + len(experiment.sketch.shares)):
        marks = stored_classifier(run, number) if number > 1 else None
        stage = Stage(number, b"" if marks is None else flat_bytes(marks))
        stored = stored_sketch(run, law_of_problem(problem, stage), number)
        if stored is None:
            break
        sketches.append(stored.sketch)
        sketchers.append(sketcher_of(problem, stage))
    proportions = None
    if experiment.sketch.independent:
        law = sketches[0].law
        proportions = independent_proportions(sketches[0].proportions.reshape(law.classes, law.groups)).reshape(-1)
    wanted = experiment.sketch.generator
    choose(sketches, network.eval(), wanted=wanted, sketchers=sketchers, proportions=proportions)
    return [name for name, tensor in network.state_dict().items() if not _agree(name, tensor, released.get(name))] + [
        name for name in released if name not in kept
    ]


def _agree(name: str, made: Tensor, released: Tensor | None) -> bool:
    if released is None or released.shape != made.shape:
        return False
    if name in _OF_TREE and made.is_floating_point():
        return torch.allclose(made, released, rtol=0, atol=_ROOM)
    return torch.equal(made, released)
