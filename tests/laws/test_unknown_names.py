"""What is not known must stop it: every place that decides by a name of a penalty, class, noise or accountant.

Accounting and the door have a test of their own (`tests/privacy/test_accountants_unknown.py`), and so have trust models
(`tests/laws/test_trust_names.py`): nothing outside their folders compares with a name of one. Of all other files each
comparison is listed here with why an unknown name goes no further.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fedsw
from fedsw.experiment import parse_experiment
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.experiment.task_kinds import Facts
from fedsw.experiment.trust import trust_model
from fedsw.learning.objectives import Clip, WeightedSum, histograms
from fedsw.learning.objectives.distances import BetweenGroups, Matching
from fedsw.learning.objectives.penalties import Stated
from fedsw.learning.tasks import compared
from fedsw.privacy.accountants import ACCOUNTANTS, accountant_named, require_noise
from fedsw.privacy.accounting import Step, epsilon_by
from fedsw.privacy.mechanisms import MECHANISMS
from fedsw.privacy.relations import RELATIONS, holds_for
from fedsw.privacy.release import Part
from fedsw.privacy.sensitivity import Sensitivity, Side, swd_sensitivity
from tests.privacy.test_accountants_unknown import DECIDING
from tests.syntax import tree

PACKAGE = Path(fedsw.__file__).parent
NAMES = {*PENALTIES, *ACCOUNTANTS, *MECHANISMS, *RELATIONS, "class", "numbers", "add-remove"}
CONSTANTS = {"GAUSSIAN", "LAPLACE", "NO_NOISE", "REPLACE_ONE", "REPLACE_ANY", "ADD_OR_REMOVE"}
SPOKEN = re.compile(r"penalt|accountant|mechanism|noise|relation|target|takes", re.IGNORECASE)
"""What a comparison is about where a name is a word for other things, too."""

LOOKED_UP = "what is compared was looked up before, and raised there"
VALIDATED = "`Facts` takes known targets alone"
RAISES = "the last branch raises"
ATTACK = "an attack: what it does not know it attacks less well, and claims nothing"
DECIDES = {
    "audit/canary_pairs.py:_pairs": ATTACK,
    "cli/_data.py:init_command": "the option takes the two relations alone",
    "audit/record/_rows.py:_sums_of": "the older version had no other relation; the sums ask theirs",
    "audit/record/_rows.py:check": "one check more for pld; the others have theirs",
    "audit/record/cost.py:floor": "an accountant without a lower bound has the floor 0",
    "audit/record/cost.py:_recomputed": "an accountant that is not listed is a user's own, held to a lower bound",
    "data/_synthetic.py:synthetic": RAISES,
    "data/_synthetic.py:synthetic.draw": LOOKED_UP,
    "experiment/compatibility.py:_of_task": VALIDATED,
    "experiment/compatibility.py:_of_inputs": "all but one are refused",
    "experiment/task_kinds.py:": VALIDATED,
    "experiment/task_kinds.py:Facts.penalties": VALIDATED,
    "experiment/sections.py:Privacy.rules": "there are two, and trust models name theirs",
    "experiment/sections.py:ReleaseSettings.rules": "one noise alone is taken, and any other is refused",
    "data/sources.py:stated_shape": VALIDATED,
    "experiment/choices.py:Settings.record_source": VALIDATED,
    "runs/single/objective.py:Objective.__post_init__": "there are two, and others are refused here",
    "runs/single/objective.py:Objective.hides_sizes": "others are refused when it is made",
    "runs/single/private.py:private": "the objective refuses others",
    "learning/moments/moments_sum.py:layout_of": "no moments are released of what is not known",
}
"""Every function that decides by such a name, after its file, and why what is unknown goes no further there."""


def deciding(path: Path) -> Iterator[str]:
    """The functions of a file that compare with a name, or ask which of the penalties' classes something is."""

    def walk(node: ast.AST, around: tuple[str, ...]) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            around = (*around, node.name)
        if compares(node):
            yield f"{path.relative_to(PACKAGE).as_posix()}:{'.'.join(around)}"
        for child in ast.iter_child_nodes(node):
            yield from walk(child, around)

    yield from walk(tree(path), ())


def compares(node: ast.AST) -> bool:
    """Whether a node decides by a name of the kinds that this test is about."""
    match node:
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn(), *_]):
            parts = [node.left, *node.comparators]
        case ast.Call(func=ast.Attribute(attr="startswith" | "endswith"), args=[_, *_]):
            parts = [node.func, *node.args]
        case _:
            return False
    words = {each.value for part in parts for each in ast.walk(part) if isinstance(each, ast.Constant)}
    words |= {each.id for part in parts for each in ast.walk(part) if isinstance(each, ast.Name)}
    known = {word for word in words if word in NAMES | CONSTANTS}
    return bool(known) and bool(SPOKEN.search(ast.unparse(node)))


def test_every_place_that_decides_by_such_a_name_is_listed_with_why_an_unknown_one_stops_there():
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] not in DECIDING]
    found = {place for path in files for place in deciding(path)}
    assert {"new": sorted(found - set(DECIDES)), "gone": sorted(set(DECIDES) - found)} == {"new": [], "gone": []}


@pytest.mark.parametrize(
    "line",
    [
        "goal.penalty == 'equality-of-odds'",
        "'gaussian' != part.mechanism",
        "accountant in ('pld', 'mine')",
        "accountant.startswith('pld')",
        "mechanism == LAPLACE",
        "relation != 'replace-one'",
        "facts.target == 'numbers'",
    ],
)
def test_a_comparison_is_seen_however_it_is_written(line):
    assert any(compares(node) for node in ast.walk(ast.parse(line)))


def test_words_for_other_things_are_left_alone():
    lines = ("part.kind == 'gaussian'", "clip.mode == 'none'", "isinstance(task, Task)", "name.startswith('object')")
    assert not any(compares(node) for line in lines for node in ast.walk(ast.parse(line)))


CLIP = Clip(1.0, 1.0, 1.0)
ODD = SimpleNamespace(weight=0.5, between=lambda: SimpleNamespace(cells=("all",), word="proven", drawn_by=()))
STATED = Stated(0.5, pull=lambda outputs, directions: outputs, bound=lambda sizes, clip: 1.0)
NEAR = BetweenGroups("statistical-parity", 2, 1, 1.0)
UNKNOWN = {
    "a penalty": lambda: PENALTIES.get("energy"),
    "a penalty between groups": lambda: BetweenGroups("energy", 2, 1, 0.5),
    "a penalty of the settings": lambda: parse_experiment({"name": "x", "objective": {"penalty": "energy"}}),
    "one more penalty": lambda: parse_experiment(
        {"name": "x", "objective": {"also": [{"penalty": "energy", "weight": 0.1}]}}
    ),
    "a penalty that is made": lambda: compared.penalty_of("energy", "objective.penalty", {}),
    "a part of an objective": lambda: WeightedSum((ODD,)).cotangents(
        [[torch.zeros(2, 1)]], [torch.ones(1, 1)], lambda *_: None
    ),
    "a part of tables": lambda: histograms.cotangent_bound(STATED.between(), cell=0, size=5, radius=1.0, spread=1.0),
    "classes of a task": lambda: Facts(target="colours"),
    "another side": lambda: Facts(other_side="twin"),
    "a trust model": lambda: trust_model("somebody"),
    "an accountant": lambda: accountant_named("mine"),
    "an epsilon": lambda: epsilon_by("mine", {Step(0.1, 1.0): 1}, 1e-5),
    "a noise": lambda: MECHANISMS.get("uniform"),
    "a part's noise": lambda: Part("sum", 1.0, 1.0, "uniform"),
    "an accountant's noise": lambda: require_noise("pld", "uniform"),
    "neighbours": lambda: holds_for("zero-out", "replace-one"),
    "a relation": lambda: Sensitivity(1.0, "slice") + Sensitivity(1.0, "slice", "zero-out"),
    "a relation of the settings": lambda: parse_experiment({"name": "x", "privacy": {"relation": "zero-out"}}),
    "a bound": lambda: swd_sensitivity(Side(5, 1.0, 1.0), Side(5, 1.0, 1.0), bound="best"),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_what_is_unknown_raises(what):
    with pytest.raises((ValueError, TypeError, LookupError)):
        UNKNOWN[what]()


def test_what_is_known_does_not_raise_there():
    histograms.cotangent_bound(NEAR, cell=0, size=5, radius=1.0, spread=1.0)
    histograms.cotangent_bound(Matching("prior", 1.0, 1.0), cell=0, size=5, radius=1.0, spread=1.0)
    assert Facts(target="numbers").penalties == ("statistical-parity", "none")
    assert Facts(target="class").penalties == ("statistical-parity", "equality-of-odds", "none")
    assert Facts(other_side="prior").penalties == ("prior-matching",)
