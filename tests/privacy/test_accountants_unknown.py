"""What is unknown raises, in all code that decides about a noise, a relation or an accountant.

The source is walked for the places where something is told apart by a name: comparisons with a text, membership tests,
defaults of a lookup. Each stands in a table below, with an unknown name that it is given and that it refuses, or with
why what it meets there is known. A new place has to be entered.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedsw
from fedsw._tools.randomness import Stream
from fedsw.privacy.accountants import Accountant, accountant_named, doubt, is_proven, let_take, own_noise, word_of
from fedsw.privacy.accounting import Charge, Composition, Ledger, Slicing, Step, epsilon_by, noise_multiplier
from fedsw.privacy.accounting.ledger import Account, counted_as
from fedsw.privacy.accounting.lifetime import of_replacement
from fedsw.privacy.accounting.lifetime.dataset_account import State
from fedsw.privacy.accounting.pld import accounting_device
from fedsw.privacy.local_release import RecordRelease, project_ball
from fedsw.privacy.mechanisms import MECHANISMS, gaussian_sigma
from fedsw.privacy.plan import calibrated
from fedsw.privacy.relations import holds_for, require_sampling
from fedsw.privacy.release import Bounded, Part, pay, release, release_paid
from fedsw.privacy.sensitivity import Sensitivity, Side, swd_sensitivity
from tests.doors import Unaccounted
from tests.privacy.test_release import Fixed

PACKAGE = Path(fedsw.__file__).parent
DECIDING = ("privacy",)
NAMES = {"GAUSSIAN", "LAPLACE", "NO_NOISE", "REPLACE_ONE", "REPLACE_ANY", "ADD_OR_REMOVE"}
LOOKUPS = {"get", "setdefault", "pop"}


def _is_word(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return any(map(_is_word, node.elts))
    return isinstance(node, ast.Name) and node.id in NAMES


def _decides(node: ast.AST, *, words: bool) -> bool:
    """A comparison with a word, and unless `words` are all, a membership test, or a lookup with a default."""
    if isinstance(node, ast.Compare):
        member = not words and any(isinstance(how, ast.In | ast.NotIn) for how in node.ops)
        return member or any(map(_is_word, [node.left, *node.comparators]))
    if words:
        return False
    called = node.func if isinstance(node, ast.Call) else None
    return isinstance(called, ast.Attribute) and called.attr in LOOKUPS and len(node.args) == 2


def decisions(source: str, *, words: bool = False) -> Iterator[str]:
    """The function or class around each place that decides by a name; `words`: compares with one that is written."""

    def walk(node: ast.AST, around: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            around = (*around, node.name)
        if _decides(node, words=words):
            yield ".".join(around)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, around)

    return walk(ast.parse(source), ())


def places() -> set[str]:
    """Every place, as `file:function`; runs of an account by name are none."""
    files = [file for name in DECIDING for file in sorted([PACKAGE / name, *(PACKAGE / name).rglob("*.py")])]
    return {
        f"{file.relative_to(PACKAGE).as_posix()}:{name}"
        for file in files
        if file.is_file()
        for name in decisions(file.read_text(encoding="utf-8"), words=file.parent.name == "lifetime")
    }


VALUE = torch.zeros(3, dtype=torch.float64)
CHARGES = [Charge("A", 1.0, 1.0)]


def _left(part: Part, sensitivity: Sensitivity) -> object:
    paid = pay(Unaccounted(), 1, 0, CHARGES, 1.0, [part])
    return release_paid(Bounded(VALUE, sensitivity), paid, part.name, Stream.seeded(1))


def _planned(**promised: Any) -> object:
    return release(Bounded(VALUE, Sensitivity(1.0, "any"), charges=CHARGES), Fixed(1.0, **promised), Unaccounted())


class _Strange(Unaccounted):
    """A ledger of something that nobody has heard of."""

    def __init__(self, **kept: str) -> None:
        super().__init__()
        vars(self).update(kept)


def _charged(**kept: str) -> object:
    return pay(_Strange(**kept), 1, 0, CHARGES, 1.0, [Part("a", 1.0, 1.0)])


OWN, OTHER = Side(4, 1.0, 1.0), Side(4, 1.0, 1.0)

REFUSED: dict[str, tuple[Callable[[], object], ...]] = {
    "privacy/accountants.py:accountant_named": (lambda: accountant_named("odd"), lambda: own_noise("odd")),
    "privacy/accountants.py:word_of": (lambda: word_of("pld", "odd"), lambda: word_of("odd", "gaussian")),
    "privacy/accountants.py:let_take": (
        lambda: let_take("odd", "mine", "none"),
        lambda: let_take("pld", "mine", "odd"),
    ),
    "privacy/accountants.py:is_proven": (lambda: is_proven("pld", "odd"), lambda: is_proven("odd", "none")),
    "privacy/accountants.py:doubt": (lambda: doubt("pld", "odd"), lambda: doubt("odd", "gaussian")),
    "privacy/accountants.py:Accountant.__post_init__": (
        lambda: Accountant("x", True, "", covers="odd"),
        lambda: Accountant("x", True, "", takes={"gaussian": "odd"}),
        lambda: Accountant("x", True, "", takes={}),
    ),
    "privacy/mechanisms.py:gaussian_sigma": (lambda: gaussian_sigma(1.0, 1e-5, 1.0, "odd"),),
    "privacy/local_release.py:RecordRelease.__post_init__": (
        lambda: RecordRelease(1.0, 1e-5, 1.0, norm="odd"),
        lambda: RecordRelease(1.0, 1e-5, 1.0, mechanism="odd"),
        lambda: RecordRelease(1.0, 1e-5, 1.0, diameter="odd"),
    ),
    "privacy/local_release.py:project_ball": (lambda: project_ball(VALUE[None], 1.0, "odd"),),
    "privacy/release.py:Part.__post_init__": (lambda: Part("a", 1.0, 1.0, "odd"),),
    "privacy/release.py:_require_charged": (
        lambda: _charged(accountant="odd"),
        lambda: _charged(mechanism="odd"),
        lambda: _charged(relation="odd"),
    ),
    "privacy/release.py:_joint": (lambda: _planned(mechanism="odd"),),
    "privacy/release.py:release": (lambda: _planned(mechanism="odd"),),
    "privacy/release.py:_leaving": (lambda: _left(Part("a", 1.0, 1.0, "laplace"), Sensitivity(1.0, "any")),),
    "privacy/mechanisms.py:Mechanism.require_norm": (
        lambda: MECHANISMS.get("laplace").require_norm("a", "l2"),
        lambda: MECHANISMS.get("gaussian").require_norm("a", "odd"),
    ),
    "privacy/release.py:_noised": (lambda: _planned(mechanism="odd"), lambda: _planned(relation="odd")),
    "privacy/sensitivity.py:Sensitivity.__post_init__": (
        lambda: Sensitivity(1.0, "any", norm="odd"),
        lambda: Sensitivity(1.0, "any", "odd"),
    ),
    "privacy/sensitivity.py:Sensitivity.of_replacement": (lambda: Sensitivity(1.0, "any").of_replacement(),),
    "privacy/sensitivity.py:swd_sensitivity": (lambda: swd_sensitivity(OWN, OTHER, bound="odd"),),
    "privacy/accounting/profiles.py:Step.__post_init__": (lambda: Step(0.1, 1.0, "odd"),),
    "privacy/accounting/lifetime/composing.py:of_replacement": (lambda: of_replacement(Step(0.1, 1.0, "odd")),),
    "privacy/accounting/slicing.py:Slicing.__post_init__": (lambda: Slicing(3, 2, "odd"),),
    "privacy/relations.py:holds_for": (
        lambda: holds_for("odd", "replace-one"),
        lambda: holds_for("replace-one", "odd"),
    ),
    "privacy/accounting/composition.py:Composition.__init__": (lambda: Composition(device="abacus"),),
    "privacy/accounting/composition.py:Composition.add": (
        lambda: Composition({Step(0.1, 1.0): 1, Step(0.1, 1.0, "poisson"): 1}),
    ),
    "privacy/accounting/epsilons.py:accountant.registered": (
        lambda: fedsw.privacy.accounting.accountant("pld", note="")(lambda steps, delta: 0.0),
        lambda: fedsw.privacy.accounting.accountant("x", note="", covers="odd")(lambda steps, delta: 0.0),
    ),
    "privacy/accounting/epsilons.py:epsilon_by": (
        lambda: epsilon_by("odd", {Step(0.1, 1.0): 1}, 1e-5),
        lambda: epsilon_by("rdp-wor", {Step(0.1, 1.0, "poisson"): 1}, 1e-5),
    ),
    "privacy/accounting/epsilons.py:_not_covered": (
        lambda: epsilon_by("rdp-wor", {Step(0.1, 1.0, slicing=Slicing(3, 2)): 1}, 1e-5),
    ),
    "privacy/accounting/ledger.py:Account.__init__": (lambda: Account(("A",), "odd", "gaussian"),),
    "privacy/accounting/epsilons.py:budget_report": (
        lambda: fedsw.privacy.accounting.budget_report(
            sampling_rate=0.1, delta=1e-5, noise_multiplier=1.0, steps=1, sampling="odd"
        ),
    ),
    "privacy/accounting/selection.py:renyi_divergence": (
        lambda: fedsw.privacy.accounting.selection.renyi_divergence(Step(0.1, 1.0, "poisson"), 2.0),
    ),
    "privacy/accounting/pld.py:accounting_device": (lambda: accounting_device("odd"),),
    "privacy/accounting/lifetime/dataset_account.py:State.after": (
        lambda: State("people").after({"kind": "odd", "run": "r", "steps": []}),
    ),
}
"""Where a name decides, with calls that give an unknown one."""


KNOWN = {
    "privacy/accounting/ledger.py:counted_as": (
        "an unknown noise counts as none at all: epsilon infinite (a test below)"
    ),
    "privacy/accounting/ledger.py:Account.epsilon": "a cache",
    "privacy/accounting/ledger.py:_pure": "a Step's sampling is checked when it is made",
    "privacy/accounting/ledger.py:Ledger.__init__": (
        "a header from before it was written means its accountant's own noise"
    ),
    "privacy/accounting/ledger.py:Ledger._require_fresh": "numbers",
    "privacy/accounting/profiles.py:curves": "an Orientation is checked when a Composition is made",
    "privacy/accounting/profiles.py:reach": "an Orientation is checked when a Composition is made",
    "privacy/accounting/pld.py:grid_masses": "an Orientation is checked when a Composition is made",
    "privacy/accounting/composition.py:epsilon_bracket": "what has no such pair has a wider bracket",
    "privacy/accounting/composition.py:Composition._refine": "a number to begin a search at",
    "privacy/accounting/composition.py:Composition._on_grid": "a cache",
    "privacy/accounting/composition.py:Composition._spread": "a cache",
    "privacy/accounting/epsilons.py:compare": "which accountants are shown beside each other",
    "privacy/accounting/epsilons.py:gaussian_epsilon": "numbers",
    "privacy/accounting/journal.py:Journal.__init__": "numbers of formats; any other is refused",
    "privacy/accounting/journal.py:Journal._query": "the words of SQLite; what is not known is raised",
    "privacy/accounting/selection.py:Selection.covers": "what is not without replacement is not covered",
    "privacy/accounting/slicing.py:Slicing.fixed": "a Slicing's scheme is checked when it is made",
    "privacy/accounting/slicing.py:law_of_share": "a Slicing's scheme is checked when it is made",
    "privacy/accounting/slicing.py:gaussian_mixture": "a Slicing's scheme is checked when it is made",
    "privacy/accounting/lifetime/chosen.py:_cut_off": "a Slicing's scheme is checked when it is made",
    "privacy/accounting/pld.py:round_off_factor": "every other device sets more aside",
    "privacy/accounting/pld.py:_Running.extend": "counts, and a cache",
    "privacy/relations.py:_remedy": "words of an error",
    "privacy/masks.py:MaskKey.shared": "a cache",
    "privacy/masks.py:MaskKey.mask": "words of an error",
    "privacy/mechanisms.py:Mechanism.accountants": "a list of those that take it",
    "privacy/plan.py:NoisePlan._protected": "words",
    "privacy/plan.py:NoisePlan.__str__": "words",
    "privacy/local_release.py:RecordRelease.sensitivity": "a release's diameter is checked when it is made",
    "privacy/local_release.py:RecordRelease.guarantee": "a release's diameter is checked when it is made",
    "privacy/release.py:release_share": "what is not Gaussian is refused (tests/privacy/test_mechanisms.py)",
    "privacy/release.py:pay_together": "places in a list",
    "privacy/release.py:release_paid_together": "places in a list",
    "privacy/slices.py:_in_the_ball": "numbers",
}
"""Where nothing that is told apart is an unknown name, and why."""


def test_every_place_that_decides_by_a_name_is_in_the_table():
    entered = REFUSED.keys() | KNOWN.keys()
    assert sorted(places() - entered) == [], "enter each, with an unknown name that it refuses"
    assert sorted(entered - places()) == [], "these are no longer there"


def test_the_walk_finds_what_takes_an_unknown_name_for_a_known_one():
    source = """
def chosen(noise):
    if noise == "laplace":
        return 1
    return 2
class Table:
    def looked_up(self, name): return TABLE.get(name, gaussian)
    def asked(self, name): return name in NAMES and name not in (GAUSSIAN, "none")
    def numbers(self, n): return n == 3 or TABLE.get(n)
"""
    assert set(decisions(source)) == {"chosen", "Table.looked_up", "Table.asked"}


@pytest.mark.parametrize("place", REFUSED)
def test_what_is_unknown_raises(place):
    for call in REFUSED[place]:
        with pytest.raises(ValueError, match=".") as refusal:
            call()
        assert len(str(refusal.value)) > 20


@pytest.mark.parametrize("name", ["odd", "", "Gaussian", "mine:Noise"])
def test_an_unknown_noise_relation_or_accountant_stops_every_way_in(name, tmp_path):
    asked = {"groups": ("A",), "delta": 1e-5, "epsilon": 1.0}
    ways = [
        *(lambda what=what: Ledger.create(tmp_path / "l", **asked, **{what: name}) for what in _OF_A_LEDGER),
        lambda: calibrated(1.0, None, delta=1e-5, rate=0.1, rounds=2, accountant=name),
        lambda: calibrated(1.0, None, delta=1e-5, rate=0.1, rounds=2, accountant="pld", mechanism=name),
        lambda: noise_multiplier(1.0, 1e-5, sampling_rate=0.1, steps=1, accountant=name),
        lambda: require_sampling(name, ["without-replacement"]),
    ]
    for way in ways:
        with pytest.raises(ValueError, match=r"there are|choose|takes it"):
            way()
    assert not (tmp_path / "l").exists()


_OF_A_LEDGER = ("accountant", "mechanism", "relation")


def test_an_unknown_noise_costs_an_account_everything():
    assert counted_as("odd")(Step(0.1, 1.0)).mu == torch.inf
    assert counted_as("gaussian")(Step(0.1, 1.0)) == Step(0.1, 1.0)
