"""Trust models by name: what must be known of one to check an experiment. Each is an object, found in one registry."""

from __future__ import annotations

import importlib
import importlib.metadata
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fedsw._tools.settings import ExperimentError
from fedsw.privacy.accountants import GAUSSIAN

if TYPE_CHECKING:
    from pydantic import BaseModel

SHIPPED = "fedsw.federation.trust"
"""The package of the shipped trust models, a folder for each; its `NAMES` has them in order."""

ENTRY_POINTS = "fedsw.trust"
"""The group of entry points by which an installed package brings trust models of its own, in every process."""

Comparison = Literal["groups", "prior", "generator", "domain", "sketch"]
"""The other side of a task's comparison: private outputs themselves, something public, or, as a sketch, nothing yet."""

Law = Literal["clipped sum", "masked sum", "clipped contribution", "random slices", "whole records", "sum of waves"]
"""Quantity that is noised: a round's clipped sum, under masks too, a contribution, slices, records, a sketch."""


class TrustModel:
    """Who is trusted with what, and who adds the noise: the facts that settings are checked against.

    Experiments and their sections are given to its methods as they are (`fedsw.experiment`), which this file, that the
    sections stand on, cannot name.

    What a trust model does in a federation is in `fedsw.federation.trust.trust_model.Served`, which its object is, too.

    Attributes:
        name: what `privacy.trust` says, and what its words are found under.
        compares: what a task may compare its private outputs with.
        local: whether every client protects its own records, from the server too, and keeps its own ledger.
        noised: whether a run with a finite epsilon adds noise; it does under all but `none`.
        sketched: whether records leave once, as a sum of cosines and sines, for a generator to learn from.
        gradients: whether rounds release gradients: moments before them, presets, and counts of kept records go with
            these alone.
        slices: whether what leaves are noised random slices, which have accountants of their own.
        masked: whether sites add up under masks, so that each of them needs the keys of the others (a roster).
        needs_noise: why it cannot run as a reference without noise, with the remedy; None if it can.
        why_not: why a task that compares something else cannot be run, after "cannot run 'task': ".
        law: what a line of its ledgers accounts for, which says how `fedsw audit` recomputes noise and sensitivity from
            settings; None if that cannot be recomputed from a run's folder.
        sections: what its sections of an experiment are, by name, where it has settings of its own: classes derived
            from those of `fedsw.experiment.sections`, `privacy` from `Privacy`, `local` from `Local`, `sketch` from
            `Sketch`. A setting that is in none of its classes is refused under it.
        sketching: what it is, under the same name, for a task whose records leave as a sketch; None where it is the
            same for every task.
        once: the trust model under which records leave once, as a sketch, with the same trust in everybody; None where
            there is none.
    """

    name: ClassVar[str]
    compares: ClassVar[frozenset[Comparison]]
    local: ClassVar[bool] = False
    noised: ClassVar[bool] = True
    sketched: ClassVar[bool] = False
    gradients: ClassVar[bool] = False
    slices: ClassVar[bool] = False
    law: ClassVar[Law | None] = None
    masked: ClassVar[bool] = False
    why_not: ClassVar[str] = "the task does not go with it"
    needs_noise: ClassVar[str | None] = None
    sections: ClassVar[Mapping[str, type[BaseModel]]] = {}
    sketching: ClassVar[TrustModel | None] = None
    once: ClassVar[str | None] = None
    trusted_with: ClassVar[str]
    """Who is trusted, and with what."""
    leaves: ClassVar[str]
    """Messages that leave a client, in words."""
    adds_noise: ClassVar[str]
    """Who adds the noise."""
    protects: ClassVar[str]
    """Who is protected, against whom."""

    guarded: ClassVar[str] = "by its own client's noise and ledger"
    """Protection of a record where clients have ledgers of their own."""

    def against(self, experiment: Any) -> str | None:
        """Whom its noise protects from, in words; None for what follows from who has the ledgers."""
        return None

    def summed(self, experiment: Any) -> float:
        """Noise in the sum over all clients, in units of what a client's own plan has, where clients add noise."""
        return math.sqrt(experiment.federation.clients)

    def releases(self, experiment: Any) -> int:
        """How often a run releases something of a record."""
        return int(experiment.training.rounds)

    def attempts(self, experiment: Any) -> int:
        """Attempts at one release that its part of the budget is divided over; 1 where only one is charged."""
        return 1

    def accountant(self, experiment: Any) -> str:
        """The accountant of its plans, ledgers and sentences: nothing else says which that is."""
        return str(experiment.privacy.accountant)

    def mechanism(self, experiment: Any) -> str:
        """The noise of its releases, one that its accountant takes (`fedsw.privacy.mechanisms.MECHANISMS`)."""
        return GAUSSIAN

    def exchanges(self) -> tuple[str, ...]:
        """The types of its messages; a client answers no others, but for the greeting."""
        return ()

    def misfit(self, settings: Any) -> str | None:
        """Return why an experiment's settings do not go with it, with the remedy, or None."""
        return None

    def moves_points(self, settings: Any) -> bool:
        """True if its releases move points, which no record passes through."""
        return False

    def trains_critic(self, settings: Any) -> bool:
        """True if a critic is trained beside the generator."""
        return False

    def without_noise(self, privacy: Any) -> str | None:
        """Why it cannot run as a reference without noise, with the remedy; None if it can, or if there is noise."""
        return None if privacy.noisy else self.needs_noise


_known: dict[str, TrustModel] = {}


def trust_models() -> Mapping[str, TrustModel]:
    """All trust models by name: the shipped ones, those of installed packages, and those that were registered."""
    if not _known:
        _load()
    return _known


def _load() -> None:
    """Load the shipped trust models, in their order, then those of other packages of this environment."""
    for folder in importlib.import_module(SHIPPED).FOLDERS:  # their files import what computes where they use it
        _known.update({model.name: model for model in importlib.import_module(f"{SHIPPED}.{folder}").TRUST_MODELS})
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            model = point.load()
        except Exception as fault:  # its code runs here, and may raise anything
            _known.clear()
            raise ExperimentError(
                f"the trust model {point.value!r} of an installed package cannot be loaded ({type(fault).__name__}: "
                f"{fault}); mend or uninstall the package"
            ) from fault
        register(model)


def register(model: TrustModel) -> TrustModel:
    """Make a trust model of one's own known by its name, in this process.

    A package makes its own known in every process, those of `fedsw deploy local` and of real clients, by an entry point
    of the group "fedsw.trust" that names the object: who installed the package allowed its code.

    ExperimentError if another one has the name.
    """
    if trust_models().get(model.name, model) is not model:
        raise ExperimentError(f"there is a trust model {model.name!r}; give yours another name")
    _known[model.name] = model
    return model


def trust_model(name: str, *, sketch: bool = False) -> TrustModel:
    """A trust model by its name, for a task that sketches or not; an experiment's is `privacy.model`."""
    model = trust_models().get(name)
    if model is None:
        raise ExperimentError(f"privacy.trust is {name!r}; there are {', '.join(map(repr, trust_models()))}")
    return model.sketching if sketch and model.sketching is not None else model


def answering(exchange: str) -> tuple[str, ...]:
    """The names of trust models under which clients answer a type of message, for whatever task."""
    return tuple(
        name
        for name, model in trust_models().items()
        if any(exchange in variant.exchanges() for variant in (model, model.sketching) if variant is not None)
    )


def names_of(
    *, gradients: bool | None = None, local: bool | None = None, comparison: Comparison | None = None
) -> tuple[str, ...]:
    """The names of trust models whose rounds release gradients, that are local, or that compare what a task does."""
    return tuple(
        name
        for name, model in trust_models().items()
        if (gradients is None or model.gradients == gradients)
        and (local is None or model.local == local)
        and (comparison is None or comparison in model.compares)
    )
