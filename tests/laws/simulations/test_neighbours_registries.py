"""The law of neighbours side by side for whatever the registries hold: trust models, tasks, models, inputs, releases.

A name that is added to one of them is in here without a line; where it needs what is no default, `NEEDS` has it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, get_args

import pandas as pd
import pytest

from fedsw.experiment import ExperimentError, parse_experiment
from fedsw.experiment.sections import Model, Privacy
from fedsw.experiment.task_kinds import MODELS, TASKS
from fedsw.experiment.trust import trust_models
from fedsw.federation.trust import Sides
from fedsw.learning.sketches.from_settings import PART_KINDS
from fedsw.mathematics.clipping import UnsupportedModule
from tests.laws.simulations.test_neighbours import (
    CLASSES,
    FOUR,
    KEPT,
    MATCHED,
    NUMBERS,
    PERSONS,
    Case,
    leave,  # noqa: F401
    neighbour,
    require_the_same,
    settings,
    table,
)

RELEASES = {
    "moments": ("privacy.moments=0.3",),
    "histograms": ("privacy.histograms=0.1",),
    "tally": KEPT,
    "scores": ("thresholds.share=0.2",),
}
"""What is released beside rounds, by the side of a trust model that makes it, and how an experiment asks for it."""
SAID_OF = {
    "moments": "privacy.moments",
    "histograms": "privacy.histograms",
    "tally": "data.held_out",
    "scores": "thresholds",
}
"""The settings that a refusal of each names."""
CALLED = {"moments": "moments", "histograms": "histograms", "kept records": "tally", "scores": "scores", "sketch": ""}
"""Sums that leave once by what a log calls them, each with its release here; a sketch is a task's only one."""
BESIDE = {"plan", "server", "handlers", "once", "epsilon", "planned", "require_ready", "require_node"}
"""What else a trust model has of sides: nothing of a record leaves by these, but by the rounds of `server`."""

REPLACED, ADDED = get_args(Privacy.model_fields["relation"].annotation)
INPUTS = get_args(Model.model_fields["inputs"].annotation)
SMALL = {"latent": 2, "hidden": [4], "knots": 4, "particles": 6, "orders": 1}
"""Settings that keep models small, for those that read them."""
FLOW = (
    *("local.algorithm=flow-one-release", "slicing.directions=8", "local.per_step=4"),
    *("training.optimizer=sgd", "model.hidden=[]"),
)
NEEDS: dict[str, tuple[str, ...]] = {
    "adaptation": ("data.public=mnist", "data.public_batch=16", "clip.output=1.0", "objective.alpha=0.3"),
    "adversarial-dcgan": ("local.loss=adversarial", "model.hidden=[4,2]"),
    "dcgan": ("model.hidden=[4,2]",),
    "image-generator": ("model.hidden=[4,4]",),
    "particles": FLOW,
    "residual-generator": ("model.hidden=[4,4]",),
    "transported-adaptor": ("model.latent=4",),
}
"""What a task or a kind of model needs that is no default."""
PIXELS = {"image-autoencoder": 256}
"""Pixels of images where 64 are too few."""
LEFT_OUT = {
    "labelled-images": "images beside codes of their classes, which no table of one's own has",
    "blocked-images": "images beside codes of their classes, which no table of one's own has",
    "published-adaptor": "public images of 16 pixels a side, which are downloaded",
}
"""Models that no run on records of one's own, without a download, has; with why."""


UNTRIED = {("scattering", "moments"): "of 784 numbers a record: minutes a run; `test_image_classifiers` has them"}
"""Releases that are left out here, with why."""


def families() -> Iterator[tuple[str, str, str]]:
    """Every trust model with a task that goes with it, and a model of the task."""
    for trust in trust_models():
        for name, task in TASKS.items():
            if trust in task.facts.trusts:
                yield from ((trust, name, model) for model in task.facts.models if model not in LEFT_OUT)


def tried() -> list[tuple[str, str, str]]:
    """Those of trust models that promise something, and the first one of `none`, which does not."""
    first = next(family for family in families() if family[0] == "none")
    return [first, *(family for family in families() if family[0] != "none")]


def plain(trust: str, task: str, model: str) -> Case:
    """The plainest case of a family."""
    facts, kind = TASKS.get(task).facts, MODELS.get(model)
    columns: dict[str, Any] = {**FOUR, **(NUMBERS if facts.target == "numbers" else CLASSES)}
    if kind.square or kind.filtered:
        columns["features"] = [{"name": "x", "count": PIXELS.get(model, 64), "low": 0, "high": 1}]
    if not facts.grouped and not facts.sketched:
        del columns["sensitive"]
    if facts.other_side == "domain":  # public images have ten classes
        columns["target"] = {"name": "digit", "values": [str(digit) for digit in range(10)]}
    matched = facts.penalties[0] == MATCHED["penalty"]
    raw: dict[str, Any] = {
        "model": {"kind": model, **{name: SMALL[name] for name in kind.reads if name in SMALL}},
        "objective": {"task": task, "penalty": facts.penalties[0], "alpha": 1.0 if matched else 0.5},
    }
    if facts.sketched:
        sketch = {"kind": "table", "bins": 3} if kind.table else {"bandwidths": [0.5], "pairs": 6}
        raw["sketch"] = {**sketch, "batch": 20, "generated": 50}
    seeded = trust.startswith("local-") and not facts.grouped or trust == "distributed" and not facts.sketched
    needed = (*NEEDS.get(task, ()), *NEEDS.get(model, ()))
    return Case(trust, raw, columns, ("sex",) if facts.grouped else (), needed, seeded)


def with_(case: Case, *overrides: str, **changes: Any) -> Case:
    return dataclasses.replace(case, overrides=(*case.overrides, *overrides), **changes)


def accepted(case: Case) -> bool:
    """Say whether the settings go together."""
    try:
        parse_experiment(settings(case), case.overrides)
    except ExperimentError:
        return False
    return True


def released(case: Case) -> tuple[str, ...]:
    """All releases beside rounds that go with a case, and with one another."""
    names: tuple[str, ...] = ()
    for name in RELEASES:
        if (case.task["model"]["kind"], name) not in UNTRIED and accepted(
            with_(case, *(override for each in (*names, name) for override in RELEASES[each]))
        ):
            names = (*names, name)
    return names


def variants(trust: str, task: str, model: str) -> Iterator[tuple[str, Case]]:
    """The plain case; one for each penalty, kind of sketch and inputs; persons; each as far as settings go together."""
    case, facts = plain(trust, task, model), TASKS.get(task).facts
    options = {"plain": case}
    for penalty in facts.penalties[1:]:
        fixed = ("income",) if "odds" in penalty else ()
        options[penalty] = with_(case, f"objective.penalty={penalty}", public=(*case.public, *fixed))
    options |= {f"a sketch of {kind}": with_(case, f"sketch.kind={kind}") for kind in PART_KINDS if facts.sketched}
    if "inputs" in MODELS.get(model).reads:
        options |= {inputs: with_(case, f"model.inputs={inputs}") for inputs in INPUTS}
    seeded = case.seeded or trust == "distributed"  # the same row of every person in both runs
    options["persons"] = with_(case, *PERSONS, unit=True, seeded=seeded)
    yield from ((name, option) for name, option in options.items() if accepted_with(option))


def accepted_with(case: Case) -> bool:
    """Say whether the settings go together, as they are or with a release beside them."""
    return accepted(case) or any(accepted(with_(case, *asked)) for asked in RELEASES.values())


def leaves_the_same(leave: Any, case: Case, name: str) -> None:  # noqa: F811
    """Neighbours leave the same, with all releases that go with a case; of these a refusal may name one more.

    A penalty, a kind of sketch and what enters a model change no view of `show`: it is asked of the other cases.
    """
    names, shown = released(case), name in ("plain", "persons", "groups", "")
    while True:
        whole = with_(case, *(override for each in names for override in RELEASES[each]))
        records = table(whole)
        try:
            one = leave(whole, records, shown=shown)
        except ExperimentError as refused:  # of what is known of the model alone
            kept = tuple(each for each in names if SAID_OF[each] not in str(refused))
            if kept == names:
                raise
            names = kept
        except UnsupportedModule:
            assert MODELS.get(case.task["model"]["kind"]).mixes  # refused where gradients of records are clipped
            return
        else:
            require_the_same(whole, one, leave(whole, other_of(whole, records), shown=shown))
            return


def other_of(case: Case, records: pd.DataFrame) -> pd.DataFrame:
    """The neighbour: with another record in its place, or without it, or her; as the relation has it."""
    if f"privacy.relation={ADDED}" not in case.overrides:
        return neighbour(records, case)
    return records.drop(index=[4, 5] if case.unit else [5]).reset_index(drop=True)


@functools.cache
def dealt() -> dict[tuple[str, str, str], dict[str, Case]]:
    """The plain case of every family, and the variants that stand first for its model or for its trust model and task.

    What enters a model does not ask for the task: it stands first for a trust model.
    """
    met: set[tuple[str, ...]] = set()
    cases: dict[tuple[str, str, str], dict[str, Case]] = {}
    for trust, task, model in tried():
        own = cases[trust, task, model] = {}
        for name, case in variants(trust, task, model):
            meetings = {(model, name), (trust, name) if name in INPUTS else (trust, task, name)}
            if name == "plain" or meetings - met:
                own[name] = case
            met |= meetings
    return cases


@pytest.mark.slow
@pytest.mark.parametrize(("trust", "task", "model"), tried())
def test_neighbours_leave_the_same_with_every_penalty_sketch_inputs_and_release(leave, trust, task, model):  # noqa: F811
    for name, case in dealt()[trust, task, model].items():
        leaves_the_same(leave, case, name)


def comings_and_goings() -> Iterator[tuple[str, str]]:
    """Every trust model under which one record's coming or going is bounded, with every predictor."""
    for trust, kind in trust_models().items():
        if ADDED in kind.relations:
            yield from ((trust, model) for model in TASKS.get("classification").facts.models)


@pytest.mark.slow
@pytest.mark.parametrize(("trust", "model"), list(comings_and_goings()))
def test_records_that_come_or_go_leave_the_same(leave, trust, model):  # noqa: F811
    case = plain(trust, "classification", model)
    columns = {name: column for name, column in case.columns.items() if name != "sensitive"}
    relation = (f"privacy.relation={ADDED}", "privacy.sampling=poisson", "privacy.records=60")
    grouped = with_(case, *relation, "objective.penalty=none", public=())  # with thresholds by group
    case = with_(case, *relation, "objective.alpha=0.0", columns=columns, public=())
    first = model == TASKS.get("classification").facts.models[0]  # how records are cut and counted asks for no model
    for overrides in ((), *((("training.micro_batch=7",), ("training.preset=auto",)) if first else ())):
        leaves_the_same(leave, with_(case, *overrides), ", ".join(overrides))
    leaves_the_same(leave, grouped, "groups")
    leaves_the_same(leave, with_(grouped, *PERSONS, unit=True), "persons")
    assert "scores" in released(grouped) and "scores" not in released(case)


def test_every_name_of_the_registries_is_in_a_case_that_settings_accept():
    assert {field.name for field in dataclasses.fields(Sides)} == BESIDE
    variants_of = [kind for model in trust_models().values() for kind in (model, model.sketching) if kind is not None]
    assert {kind.called for model in variants_of for kind in model.sides.once.sums} == CALLED.keys()
    assert {name for name in CALLED.values() if name} == RELEASES.keys()
    assert (REPLACED, ADDED) == ("replace-one", "add-remove")
    seen: set[str] = set()
    for family, cases in dealt().items():
        for name, case in cases.items():
            seen |= {*family, name, *released(case)}
    names = {*trust_models(), *TASKS, *MODELS, *INPUTS, *RELEASES} - LEFT_OUT.keys()
    assert names <= seen
    assert {trust for trust, _ in comings_and_goings()}
