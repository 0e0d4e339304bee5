"""Trust models by name: `TrustModel`, the type of them all, and the registry `TRUSTS`, in which settings find one.

What a run under one promises is a `RunGuarantee`, or `NoGuarantee` without noise.

Settings are checked by the objects only. What computes is in `fedsw.federation.trust`: an object names its part there,
which is imported when a plan, a server or a client asks for it.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from fedsw._tools.registry import Registry, Unknown
from fedsw._tools.settings import ExperimentError
from fedsw.privacy.accountants import GAUSSIAN

if TYPE_CHECKING:
    from pydantic import BaseModel

    from fedsw._tools.registry import Word
    from fedsw.privacy.accountants import Accountant

SHIPPED = "fedsw.federation.trust"
"""The package of the shipped trust models, a folder for each; its `FOLDERS` has them in order."""

ENTRY_POINTS = "fedsw.trust"
"""The group of entry points by which an installed package brings trust models of its own, in every process."""

Comparison = Literal["groups", "prior", "generator", "domain", "sketch"]
"""The other side of a task's comparison: private outputs themselves, something public, or, as a sketch, nothing yet."""

Law = Literal["clipped sum", "masked sum", "clipped contribution", "random slices", "whole records", "sum of waves"]
"""Quantity that is noised: a round's clipped sum, under masks too, a contribution, slices, records, a sketch."""

BESIDE_ROUNDS = frozenset(("histograms", "moments", "tally", "scores"))
"""Parts of the sums that leave once beside rounds that release gradients."""

T = TypeVar("T")


class RunGuarantee:
    """Guarantee of a run that adds noise.

    Attributes:
        unprotected: why nothing is promised, in words; None if something is.
        deviations: standard deviations of noise, least and largest, that a message may state: their squares, and those
            of sums over them, stay finite.
        epsilons: what a client's ledger may have spent, least and most.
    """

    unprotected: ClassVar[str | None] = None
    deviations: ClassVar[tuple[float, float]] = (1e-30, 1e30)
    epsilons: ClassVar[tuple[float, float]] = (0.0, sys.float_info.max)

    def against(self, experiment: Any) -> str:
        """Whom the noise protects from, in words."""
        return str(experiment.privacy.model.against(experiment))

    def paying(self, clients: Sequence[T]) -> Sequence[T]:
        """Those of these clients, who account for themselves, who pay for what leaves: all of them, or none."""
        return clients


class NoGuarantee(RunGuarantee):
    """Guarantee of a run without noise: epsilon is infinite, no ledger has a row that means anything for a person."""

    unprotected = "no noise would be added (privacy.trust 'none' or epsilon inf)"

    deviations = (0.0, 0.0)
    epsilons = (0.0, math.inf)

    def against(self, experiment: Any) -> str:
        """See `RunGuarantee`."""
        return "nobody: no noise was added"

    def paying(self, clients: Sequence[T]) -> Sequence[T]:
        """See `RunGuarantee`."""
        return ()


class TrustModel:
    """Who is trusted with what, and who adds the noise: all that differs from one trust model to another.

    An object is asked for a value, a text or what to do; it has no flags, so that no caller decides what follows from
    one. Experiments and their sections are given to its methods as they are (`fedsw.experiment`), which this file, that
    the sections stand on, cannot name; so are problems, sites, nodes and contexts of a federation.

    A trust model of one's own derives from this class or from a shipped one. By default the server has the one ledger,
    noise is added, and what leaves is neither a gradient nor a sketch.

    Attributes:
        name: what `privacy.trust` says, and what its words are found under.
        compares: sides that a task may compare its private outputs with.
        serves: where its part in a federation is, "module:NAME" of `fedsw.federation.trust.Sides`.
        runs: the kind of its runs, "module:NAME" of a `fedsw.federation.server.federation.FederatedRun`: of rounds, or
            of a sketch that is released once.
        reserves: who reserves a run's cost in its data set's account, "module:NAME" of a function of
            `fedsw.federation.server.owed`: the server before its ledger exists, or the clients at the greeting.
        law: quantity that a line of its ledgers accounts for, from which `fedsw audit` recomputes noise and sensitivity
            of the settings; None if that cannot be recomputed from a run's folder.
        fixed_epsilon: the epsilon of every experiment under it, where that is not a choice: infinite without noise.
        with_noise: name of the trust model that stands for it at a finite epsilon; "" for itself.
        needs_noise: why it cannot run as a reference without noise, with the remedy; None if it can.
        why_not: why a task that compares something else cannot be run, after "cannot run 'task': ".
        protectable: values of `objective.protected` that it has noise for.
        most_penalties: penalties of an objective, at most.
        most_order: the largest order of a penalty: 2 where noised tables of outputs give slot means and nothing more.
        own_bounds: the assertions on a custom penalty's bound that it accepts; none if it takes no such penalty.
        held_out_to: values of `data.held_out_to` that it can do.
        relations: values of `privacy.relation` that its releases are bounded for.
        masks: values of `federation.masks` that it takes; none if no sum is masked.
        sites_code: whether sites must have the "same" fedsw installed, or "any": the same where each client's guarantee
            rests on what every site's code does. `federation.code` and a client's own `code` say otherwise.
        sections: classes of its sections of an experiment, by name, where it has settings of its own: derived from
            those of `fedsw.experiment.sections`, `privacy` from `Privacy`, `local` from `Local`, `sketch` from
            `Sketch`. A setting that is in none of its classes is refused under it.
        sketching: the object of the same name for a task on a sketch of records; None if it is the same for
            every task.
        beside: parts of the sums that may leave once beside its rounds, where these release gradients.
        once: name of the trust model under which records leave once, as a sketch, with the same trust in all parties;
            None if there is none.
        unread: settings of [privacy] that have no meaning under it, since every client plans for itself.
        seeds: sections with a seed of public randomness that it draws beside those of every run.
        product, registered: words: what comes out, and its model of privacy, in a registry of deployments.
        rank: its place in a comparison: those of a trusted server come before those of none.
        hides_groups, assumes: words: what a plan assumes of groups of unknown sizes, and of clients.
        trusted_with, leaves, adds_noise, protects: words: who is trusted and with what, what leaves a client, who adds
            the noise, and who is protected against whom.
        guarded: what protects a record where clients have ledgers of their own; "" where they have none.
    """

    name: ClassVar[str]
    compares: ClassVar[frozenset[Comparison]]
    serves: ClassVar[str] = ""
    runs: ClassVar[str] = "fedsw.federation.server.federation:RoundRun"
    reserves: ClassVar[str] = "fedsw.federation.server.owed:reserved_by_server"
    law: ClassVar[Law | None] = None
    fixed_epsilon: ClassVar[float | None] = None
    with_noise: ClassVar[str] = ""
    needs_noise: ClassVar[str | None] = None
    why_not: ClassVar[str] = "the task does not go with it"
    protectable: ClassVar[frozenset[str]] = frozenset(("target", "both"))
    most_penalties: ClassVar[float] = math.inf
    most_order: ClassVar[float] = 2.0
    own_bounds: ClassVar[frozenset[Word]] = frozenset()
    held_out_to: ClassVar[frozenset[str]] = frozenset(("operator",))
    relations: ClassVar[frozenset[str]] = frozenset(("replace-one",))
    masks: ClassVar[frozenset[str]] = frozenset()
    sites_code: ClassVar[Literal["same", "any"]] = "any"
    sections: ClassVar[Mapping[str, type[BaseModel]]] = {}
    sketching: ClassVar[TrustModel | None] = None
    beside: ClassVar[frozenset[str]] = frozenset()
    once: ClassVar[str | None] = None
    unread: ClassVar[tuple[str, ...]] = ()
    seeds: ClassVar[tuple[str, ...]] = ()
    product: ClassVar[str] = "Machine learning model"
    registered: ClassVar[str] = "Central"
    rank: ClassVar[int] = 0
    hides_groups: ClassVar[str] = ""
    assumes: ClassVar[str] = ""
    trusted_with: ClassVar[str]
    leaves: ClassVar[str]
    adds_noise: ClassVar[str]
    protects: ClassVar[str]
    guarded: ClassVar[str] = ""

    def accounting(self, clients: Sequence[T]) -> Sequence[T]:
        """Those of these clients who account in ledgers of their own: none, where the server has one for all."""
        return ()

    def accounted(self) -> str:
        """The ledger that accounts for a run, to a client who finds none of its own, in words; "" where it has one."""
        return f"the server's ledger accounts for it: under {self.name!r} the noise is the server's"

    def sees_sums(self, against: str) -> str:
        """Say in words who saw the exact sum of all records; the promise holds against ``against``."""
        return "the server saw the sum of all records without noise, and is trusted not to tell"

    def in_sum(self, experiment: Any) -> str:
        """Noise of all clients' sum beside that of a plan, to go on with in words; "" where it is the same."""
        return ""

    def of_batch(self, plan: Any) -> float | None:
        """Sensitivity of a batch's sum that one ledger is charged for; None if there is no such number."""
        return float(plan.sensitivity.value)

    def reserved(self, plan: Any) -> Any:
        """Steps that an account reserves for what a plan trains by."""
        return plan.steps_of_rounds()

    def shared(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """The parts of a record that neighbours share, of those by which it is drawn."""
        return parts

    def public_groups(self, by_group: Mapping[str, int]) -> Mapping[str, int]:
        """The public sizes of groups; empty if their sum alone is."""
        return by_group

    def meets_no_record(self, kind: Any, other_side: str | None) -> bool:
        """True if no private record passes through a model of that kind, so that nothing of it is clipped."""
        return bool(kind.points)

    def hides_records(self) -> bool:
        """True if the server may learn nothing of a record but what is noised: errors quote none."""
        return False

    def against(self, experiment: Any) -> str:
        """Whom its noise protects from, in words."""
        counts = "" if experiment.privacy.sampling == "stratified" else ", not of counts per client and round"
        return (
            f"readers of the models and of this record{counts}; server and clients are trusted to follow the protocol"
        )

    def sampling(self, experiment: Any) -> str:
        """How records are drawn for a release, in a word."""
        return str(experiment.privacy.sampling)

    def summed(self, experiment: Any) -> float:
        """Noise in the sum over all clients, in units of what one plan has."""
        return 1.0

    def releases(self, experiment: Any) -> int:
        """How often a run releases something of a record."""
        return int(experiment.training.rounds)

    def stages(self, experiment: Any) -> int:
        """Stages in which sketches of all records leave; 0 if none leaves."""
        return 0

    def attempts(self, experiment: Any) -> int:
        """Attempts at one release that its part of the budget is divided over; 1 where only one is charged."""
        return 1

    def accountant(self, experiment: Any) -> str:
        """The accountant of its plans, ledgers and sentences: nothing else says which that is."""
        return str(experiment.privacy.accountant)

    def accounts(self, accountant: Accountant) -> bool:
        """True if an accountant is about what it releases."""
        return accountant.covers != "sliced"

    def mechanism(self, experiment: Any) -> str:
        """The noise of its releases, one that its accountant takes (`fedsw.privacy.mechanisms.MECHANISMS`)."""
        return GAUSSIAN

    def misfit(self, settings: Any) -> str | None:
        """Return why an experiment's settings do not go with it, with the remedy, or None."""
        return None

    def moves_points(self, settings: Any) -> bool:
        """True if its releases move points, which no record passes through."""
        return False

    def trains_critic(self, settings: Any) -> bool:
        """True if a critic is trained beside the generator."""
        return False

    def guarantee(self, *, epsilon: float | None, multiplier: float | None) -> RunGuarantee:
        """Guarantee of a run with that budget: none if it adds no noise."""
        finite = (epsilon is not None and math.isfinite(epsilon)) or multiplier is not None
        return RunGuarantee() if finite and self.fixed_epsilon is None else NoGuarantee()

    def without_noise(self, privacy: Any) -> str | None:
        """Return why it cannot run as a reference without noise, with the remedy, or None if it can."""
        return self.needs_noise if privacy.guarantee.unprotected else None

    def without_clipping(self) -> str | None:
        """Return why gradients cannot be left unclipped under it, with the remedy, or None."""
        return (
            f"clip.mode 'none' bounds nothing, and privacy.trust {self.name!r} promises a bound: use 'spectral', or "
            "trust 'none' for a reference without clipping"
        )

    @property
    def sides(self) -> Any:
        """Its part in a federation, `Sides`; imported when it is asked for."""
        if not self.serves:
            raise ExperimentError(
                f"privacy.trust {self.name!r} says what it is and not what it does: set `serves`, or derive it from a "
                "shipped trust model"
            )
        return pkgutil.resolve_name(self.serves)

    def exchanges(self) -> tuple[str, ...]:
        """The types of its messages; a client answers no others, but for the greeting."""
        return tuple(exchange.kind for exchange in self.sides.handlers) if self.serves else ()

    def plan(self, task: Any, sites: Sequence[Any]) -> Any:
        """Make the plan of a problem with these sites, see `Sides`."""
        return self.sides.plan(task, sites)

    def tables(self, problem: Any, batch: Sequence[int], multiplier: float) -> tuple[float, int]:
        """The tables' share of the budget, and their bins, where ranks come from noised tables of outputs."""
        raise TypeError(f"trust {self.name!r} has no tables of outputs")


def _ship() -> None:
    """Register the shipped trust models, in their order."""
    for folder in importlib.import_module(SHIPPED).FOLDERS:  # their files import what computes where they use it
        for model in importlib.import_module(f"{SHIPPED}.{folder}").TRUST_MODELS:
            TRUSTS.register(model.name, model)


TRUSTS: Registry[TrustModel] = Registry("privacy.trust", TrustModel, group=ENTRY_POINTS, shipped=_ship)
"""All trust models: the shipped ones, those of installed packages, and those that were registered."""


def trust_models() -> Mapping[str, TrustModel]:
    """All trust models by name; ExperimentError, naming it, for an installed one that cannot be loaded."""
    try:
        models = dict(TRUSTS.items())
    except (TypeError, ValueError) as fault:
        raise ExperimentError(str(fault)) from fault
    for name, model in models.items():
        if model.name != name:
            raise ExperimentError(f"the entry point {name!r} brings the trust model {model.name!r}: give both one name")
    return models


def register(model: TrustModel) -> TrustModel:
    """Make a trust model of one's own known by its name, in this process.

    A package makes its own known in every process, those of `fedsw deploy local` and of real clients, by an entry point
    of the group "fedsw.trust" of the same name that names the object: who installed the package allowed its code.

    ExperimentError if another one has the name.
    """
    try:
        return TRUSTS.register(model.name, model)
    except ValueError as fault:
        raise ExperimentError(str(fault)) from fault


def trust_model(name: str, *, sketch: bool = False) -> TrustModel:
    """A trust model by its name, for a task that sketches or not; an experiment's is `privacy.model`."""
    try:
        model = TRUSTS.get(name)
    except Unknown as fault:
        raise ExperimentError(str(fault)) from fault
    return model.sketching if sketch and model.sketching is not None else model


def answering(exchange: str) -> tuple[str, ...]:
    """The names of trust models under which clients answer a type of message, for whatever task."""
    return tuple(
        name
        for name, model in trust_models().items()
        if any(exchange in variant.exchanges() for variant in (model, model.sketching) if variant is not None)
    )


def comparing(comparison: Comparison) -> tuple[str, ...]:
    """The names of trust models that can compare private outputs with that."""
    return tuple(name for name, model in trust_models().items() if comparison in model.compares)


def releasing_gradients() -> tuple[str, ...]:
    """The names of trust models with rounds that release gradients: moments before them and presets go with these."""
    return tuple(n for n, model in trust_models().items() if model.beside)


def accounting_at_server() -> tuple[str, ...]:
    """The names of trust models under which the server has the one ledger."""
    return tuple(name for name, model in trust_models().items() if not model.accounting((name,)))
