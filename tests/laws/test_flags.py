"""Laws of objects that have kinds: nobody outside of its folder reads a flag, a name or a class of one."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

import fedsw
from fedsw.data.columns.registered import KINDS
from fedsw.data.settings import SOURCES
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.experiment.sections import Privacy
from fedsw.experiment.sketch_section import MAPS, PARTS
from fedsw.experiment.task_kinds import MODELS, TASKS
from fedsw.experiment.trust import Law, NoGuarantee, RunGuarantee, TrustModel, trust_models
from fedsw.learning import objectives
from fedsw.privacy.accountants import ACCOUNTANTS
from fedsw.privacy.mechanisms import MECHANISMS
from tests.syntax import nodes as nodes_of

PACKAGE = Path(fedsw.__file__).parent
HOME = ("federation/trust/", "experiment/trust.py")
"""Where trust models are written: here alone it is decided what follows from being one or another."""


AUDIT = "audit/record/"
"""Where laws of noise are compared by name, and who accounts: the audit recomputes a record on purpose, from the
settings as written, and holds what an object chose against it."""


def variants() -> list[TrustModel]:
    """All trust models, those of one name for tasks that sketch included."""
    return [each for model in trust_models().values() for each in (model, model.sketching) if each is not None]


LAWS = set(get_args(Law))
CLASSES = {kind.__name__ for model in variants() for kind in type(model).__mro__[:-1]} | {
    *(name for name, each in vars(objectives).items() if isinstance(each, type)),
    *("Objective", "Matching", "Composite", "Penalty", "WeightedPenalty", "Mechanism", "Accountant"),
    *("Parity", "EqualizedOdds", "ToSample", "ToModel", "Pure", "Renyi", "Tabled"),
}
"""Classes of trust models, objectives, penalties, noises, accountants and what they state."""


def walked() -> Iterator[tuple[str, ast.AST]]:
    """Every node of the package's source outside of the trust models' own files, by file."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(HOME):
            for node in nodes_of(path):
                yield name, node


def _names_trust(node: ast.AST) -> bool:
    """True for what holds the name of a trust model: `privacy.trust`, `privacy.model.name`."""
    held = node.value if isinstance(node, ast.Attribute) and node.attr == "name" else node
    return getattr(held, "attr", getattr(held, "id", None)) in ({"trust"} if held is node else {"trust", "model"})


def _texts(*nodes: ast.AST) -> set[object]:
    return {each.value for node in nodes for each in ast.walk(node) if isinstance(each, ast.Constant)}


LISTS = {"trust_models"}
"""Whose members all trust models are: whether a name is one at all may be asked."""

MEMBERS = {
    "audit/record/_folder.py": "the audit says from the settings as written whose ledgers there must be",
    "federation/node/replies.py": "the words of a refusal",
    "learning/moments/beside_rounds.py": "the reason of a refusal",
}
"""Files that ask whether a trust model is among some, beside refusals and rules' `requires`; and why."""


def asks_membership(node: ast.AST) -> bool:
    """True for `privacy.trust in local_ones`, `model.name not in names`: a choice by a list of names."""
    if not (isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.In | ast.NotIn)):
        return False
    (among,) = node.comparators
    known = isinstance(among, ast.Call) and isinstance(among.func, ast.Name) and among.func.id in LISTS
    return _names_trust(node.left) and not known


def asks_class(node: ast.AST) -> bool:
    """True for `isinstance`, `issubclass` and `type(...) is` of a kind's class, and for a case of one."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} if isinstance(node, ast.expr) else set()
    if isinstance(node, ast.Call):
        called = isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass")
        return called and bool(names & CLASSES)
    if isinstance(node, ast.MatchClass):
        return isinstance(node.cls, ast.Name) and node.cls.id in CLASSES
    typed = "type" in names or any(getattr(each, "attr", "") == "__class__" for each in ast.walk(node))
    return isinstance(node, ast.Compare) and typed and bool(names & CLASSES)


def compares_law(node: ast.AST) -> bool:
    """True for `model.law == "masked sum"` and `model.law in ("random slices",)`: a table by laws has a name."""
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    return bool(_texts(*sides) & LAWS) and any(isinstance(side, ast.Attribute) and side.attr == "law" for side in sides)


def test_a_trust_model_has_no_flag() -> None:
    public = {name for model in variants() for name in dir(model) if not name.startswith("_") and name != "sides"}
    flags = [(m.name, name) for m in variants() for name in public if isinstance(getattr(m, name, None), bool)]
    assert flags == []


SAID = {"hides_sizes"}
"""Flags of [privacy] that say what a setting of its own is, and what no trust model decides: a declared number."""


def test_the_section_of_the_guarantee_and_its_promise_have_no_flag() -> None:
    for trust in trust_models():
        section = Privacy(trust=trust)
        for thing in (section, section.guarantee, Privacy(epsilon=math.inf).guarantee):
            names = [name for name, value in vars(type(thing)).items() if isinstance(value, property)]
            flags = {name for name in names if isinstance(getattr(thing, name), bool)}
            assert flags <= SAID, trust


def test_laws_of_noise_are_keys_of_tables_except_in_the_audit() -> None:
    found = {name for name, node in walked() if compares_law(node)}
    assert found and all(name.startswith(AUDIT) for name in found)


def test_no_template_compares_a_trust_models_name() -> None:
    names = "|".join(trust_models())
    pattern = re.compile(rf"\btrust (==|!=|in|not in) |[\"']({names})[\"'] (==|!=) ")
    assert all(map(pattern.search, ("if run.trust == 'central'", "trust in names", "'sketch' != x")))
    templates = [path for path in PACKAGE.rglob("templates/*") if path.is_file()]
    assert templates
    assert [path.name for path in templates if pattern.search(path.read_text(encoding="utf-8"))] == []


def test_whether_a_trust_model_is_among_some_is_asked_by_refusals_alone() -> None:
    """What follows from one being among others is not decided where it is asked: an `if` that does more would be it."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    found: set[str] = set()
    for path, tree in trees.items():
        name, allowed = path.relative_to(PACKAGE).as_posix(), set[int]()
        for node in ast.walk(tree):
            if refuses(node) or returns_why(node):
                allowed |= {id(part) for part in ast.walk(node.test)}  # type: ignore[attr-defined]
            if isinstance(node, ast.keyword) and node.arg == "requires":
                allowed |= {id(part) for part in ast.walk(node.value)}
        if not name.startswith(HOME):
            found |= {name for node in ast.walk(tree) if asks_membership(node) and id(node) not in allowed}
    assert found == set(MEMBERS)


def returns_why(node: ast.AST) -> bool:
    """True for `if trust not in able: return f"for {able}, not for {trust!r}"`: it says why, and chooses nothing."""
    if not (isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Return)):
        return False
    return isinstance(node.body[0].value, ast.JoinedStr) and not node.orelse


def test_no_trust_model_and_no_promise_has_a_method_that_only_picks_what_its_caller_made() -> None:
    things = [*variants(), RunGuarantee(), NoGuarantee()]
    assert [(type(thing).__name__, name) for thing in things for name in dir(thing) if name.startswith("by_")] == []


# Kinds of everything else

ASKING = {
    **dict.fromkeys(
        [f"audit/record/{name}.py" for name in ("cost", "_rows")],
        "the audit recomputes a ledger from its names: what it does not know is a user's own, and no bound",
    ),
    "experiment/sections.py": "a loss of released records that smooths with one noise takes no other",
    "privacy/accountants.py": "where accountants are written: what has no noise is taken by each of them",
    "privacy/accounting/epsilons.py": "where they compute: those of normal noise are compared with each other",
    "privacy/accounting/stated.py": "where pure guarantees are written: one covers another of its own class",
    "privacy/plan.py": "a printed plan names its noise where it is not the usual one",
    "privacy/release.py": "the door: what has no noise is no mechanism, and a masked share has normal noise",
}
"""Files that may compare a kind by its name or ask its class, and why."""

SORTS = {"kind", "mechanism", "accountant", "penalty", "task", "map"}
"""Names under which the name of something in a registry is held."""

KNOWN = {
    *(name for one in (MODELS, TASKS, PENALTIES, PARTS, MAPS, MECHANISMS, ACCOUNTANTS, KINDS) for name in one),
    *("network", "tree", "torchscript", "torch-export", "onnx", "eo"),
}
NAMED = {"GAUSSIAN", "LAPLACE", "NO_NOISE"}
"""Names of noises that are held as constants."""


def compares_kind(node: ast.AST) -> bool:
    """True for `model.kind == "mlp"`, `accountant in ("pld", "clt")`, `mechanism == LAPLACE` and their like."""
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    parts = [part for side in sides for part in ast.walk(side)]
    if {part.id for part in parts if isinstance(part, ast.Name)} & NAMED:
        return True
    texts = {part.value for part in parts if isinstance(part, ast.Constant)}
    held = {getattr(side, "attr", getattr(side, "id", None)) for side in sides}
    return bool(held & SORTS) and bool(texts & KNOWN)


def refuses(node: ast.AST) -> bool:
    """True for `if not isinstance(thing, Penalty): raise ...`: it refuses what is of no kind, and chooses nothing."""
    return isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Raise) and not node.orelse


def asking_of_kinds() -> list[tuple[str, ast.AST]]:
    """Questions for a kind in the source, by file, but for those of a refusal."""
    refused = {id(part) for _, node in walked() if refuses(node) for part in ast.walk(node.test)}  # type: ignore[attr-defined]
    return [
        (name, node) for name, node in walked() if compares_kind(node) or (asks_class(node) and id(node) not in refused)
    ]


def test_every_file_that_may_ask_for_a_kind_does() -> None:
    assert set(ASKING) - {name for name, _ in asking_of_kinds()} == set()


def test_nobody_else_compares_a_kind_by_its_name_or_asks_its_class() -> None:
    breaches = [f"{name}:{node.lineno} {ast.unparse(node)}" for name, node in asking_of_kinds() if name not in ASKING]  # type: ignore[attr-defined]
    assert breaches == []


# Where records come from

SOURCE_HOME = ("data/settings.py", "_tools/own_objects.py")
"""Where sources are written, and the names of records that a process holds."""


def compares_source(node: ast.AST) -> bool:
    """True for `data.source == "files"`, `spec.family != "object"`, `source in (OBJECT, "digits")` and their like."""
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    named = {getattr(part, "attr", getattr(part, "id", None)) for side in sides for part in ast.walk(side)}
    held = {"source", "family", "_family"} & {getattr(side, "attr", getattr(side, "id", None)) for side in sides}
    return bool(held) and ("OBJECT" in named or bool(_texts(*sides) & {*SOURCES, "files", "object", "module"}))


def test_nobody_else_compares_a_source_of_records_by_its_name() -> None:
    breaches = [(name, ast.unparse(node)) for name, node in walked() if compares_source(node)]
    assert [each for each in breaches if each[0] not in SOURCE_HOME] == []


SEEN: dict[Callable[[ast.AST], bool], tuple[tuple[str, ...], tuple[str, ...]]] = {
    asks_membership: (
        ("privacy.trust in _LOCAL", "1 if privacy.trust in local() else 2", "privacy.model.name not in {*names}"),
        ("trust in trust_models()", "trust == privacy.trust"),
    ),
    asks_class: (
        (
            *(
                "isinstance(model, Distributed)",
                "issubclass(type(model), OwnLedgers)",
                "trust.__class__ == Distributed",
            ),
            *("type(privacy.model) is Central", "match model:\n    case Distributed():\n        pass"),
            *(
                "isinstance(thing, Objective)",
                "isinstance(step.stated, Pure | Renyi)",
                "issubclass(kind, (int, Parity))",
            ),
        ),
        ("isinstance(model, Module)", "type(model) is Linear", "isinstance(thing, Task)"),
    ),
    compares_law: (
        ("model.law == 'masked sum'", "privacy.model.law in ('random slices', None)"),
        ("_TRIALS.get(model.law)", "model.law not in _TRIALS", "'masked sum' in words"),
    ),
    compares_kind: (
        ("a.kind == 'particles'", "kind in ('dcgan', 'adaptor')", "privacy.accountant != 'pld'", "x == LAPLACE"),
        ("cells.dtype.kind == 'f'", "kind == other", "name == 'mlp'"),
    ),
    compares_source: (
        ("experiment.data.source == 'files'", "spec.source not in ('digits', 'mnist')", "data.family != 'object'")
        + ("source == registry.OBJECT",),
        ("data.source == name", "source in SOURCES", "kind == 'files'", "data.own_files is None"),
    ),
    refuses: (
        ("if not isinstance(part, Penalty):\n    raise TypeError",),
        (
            "if isinstance(part, Penalty):\n    part = part.between()",
            "if isinstance(part, Penalty):\n    raise TypeError\nelse:\n    part = 1",
        ),
    ),
}
"""What each of the laws sees, and what it leaves alone."""


@pytest.mark.parametrize("law", SEEN, ids=lambda law: law.__name__)
def test_a_question_is_seen_however_it_is_written_and_nothing_else_is(law: Callable[[ast.AST], bool]) -> None:
    for texts, seen in zip(SEEN[law], (True, False), strict=True):
        for text in texts:
            assert any(map(law, ast.walk(ast.parse(text)))) is seen, text
