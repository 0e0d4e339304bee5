"""Laws of objects that have kinds: nobody outside of its folder reads a flag, a name or a class of one."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import fedsw
from fedsw.data.columns.registered import KINDS
from fedsw.data.settings import SOURCES
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.experiment.sections import Privacy
from fedsw.experiment.sections.sketch import MAPS, PARTS
from fedsw.experiment.task_kinds import MODELS, TASKS
from fedsw.experiment.trust import TrustModel, trust_models
from fedsw.privacy.accountants import ACCOUNTANTS
from fedsw.privacy.mechanisms import MECHANISMS
from tests.syntax import nodes as nodes_of

PACKAGE = Path(fedsw.__file__).parent
HOME = ("federation/trust/", "experiment/trust.py")
"""Where trust models are written: here alone it is decided what follows from being one or another."""

HELD = {"trust", "model", "privacy"}
"""Names under which a trust model, or the section that has one, is held."""

FLAGS = {"local", "noised", "sketched", "gradients", "slices", "masked", "noisy", "sketch"}
"""Flags that trust models and the section [privacy] had, from which others drew their own conclusions."""

FACTS = {"audit/record/_folder.py"}
"""The file that asks an object for a yes or no: the audit recomputes a record on purpose, from the settings as written,
and holds what an object chose against it."""


def variants() -> list[TrustModel]:
    """All trust models, those of one name for tasks that sketch included."""
    return [each for model in trust_models().values() for each in (model, model.sketching) if each is not None]


NAMES = {model.name for model in variants()}
CLASSES = {kind.__name__ for model in variants() for kind in type(model).__mro__[:-1]}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Attributes, comparisons and calls of the package's source outside of the trust models' own files, by file."""
    return [(name, node) for name, node in walked() if isinstance(node, ast.Attribute | ast.Compare | ast.Call)]


def walked() -> Iterator[tuple[str, ast.AST]]:
    """Every node of that source."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(HOME):
            for node in nodes_of(path):
                yield name, node


def holds_trust(node: ast.AST) -> bool:
    """True for an expression that is a trust model, or the section [privacy], by its name."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "trust_model"
    return (isinstance(node, ast.Name) and node.id in HELD) or (isinstance(node, ast.Attribute) and node.attr in HELD)


def reads_flag(node: ast.AST) -> bool:
    """True for `trust.masked`, `privacy.local`, `trust_model(name).noised` and their like, and for a private name."""
    if not (isinstance(node, ast.Attribute) and holds_trust(node.value)):
        return False
    return node.attr in FLAGS or (
        _is_trust(node.value) and node.attr.startswith("_") and not node.attr.startswith("__")
    )


def _is_trust(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return holds_trust(node)
    return getattr(node, "attr", getattr(node, "id", None)) == "trust"


def compares_name(node: ast.AST) -> bool:
    """True for a comparison of a trust model's name with one that is written there."""
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    texts = {each.value for side in sides for each in ast.walk(side) if isinstance(each, ast.Constant)}
    return bool(texts & NAMES) and any(map(_is_trust, sides))


def asks_class(node: ast.AST) -> bool:
    """True for `isinstance` of a trust model's class."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
    return called and bool({each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & CLASSES)


def makes_flag(node: ast.AST) -> bool:
    """True for a choice of the object that is a yes or no, and so a flag again: `by_ledgers(server=False, ...)`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    values = [each.value.value for each in node.keywords if isinstance(each.value, ast.Constant)]
    return node.func.attr.startswith("by_") and len(values) > 1 and all(isinstance(value, bool) for value in values)


YES_OR_NO = {"noisy", "sketch"}
"""Names of flags that were asked everywhere, whoever has them."""

ASKS = {"audit/record/"}
"""Where they are asked: the audit's own folder, which says from the settings as written what must be there."""


def conditions(node: ast.AST) -> list[ast.expr]:
    """Expressions of which a node asks the truth."""
    if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
        return [node.test]
    if isinstance(node, ast.comprehension):
        return node.ifs
    if isinstance(node, ast.BoolOp):
        return node.values
    return [node.operand] if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) else []


def asks_flag(node: ast.AST) -> bool:
    """True for `if folder.noisy`, `not job.sketch`, `a and task.privacy.sketch` and their like, whoever is asked."""
    return any(isinstance(asked, ast.Attribute) and asked.attr in YES_OR_NO for asked in conditions(node))


def test_nobody_asks_whether_a_run_is_noisy_or_a_sketch() -> None:
    breaches = {name for name, node in walked() if asks_flag(node)}
    assert [name for name in breaches if not name.startswith(tuple(ASKS))] == []
    assert [home for home in ASKS if not any(name.startswith(home) for name in breaches)] == []


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


def test_nobody_else_reads_a_flag_a_name_or_a_class_of_a_trust_model() -> None:
    laws = (reads_flag, compares_name, asks_class)
    found = [f"{name}:{node.lineno} {law.__name__}" for name, node in nodes() for law in laws if law(node)]  # type: ignore[attr-defined]
    assert found == []


def test_no_template_reads_a_flag() -> None:
    pattern = re.compile(rf"\b({'|'.join(sorted(HELD))})\.({'|'.join(sorted(FLAGS))})\b")
    templates = [path for path in PACKAGE.rglob("templates/*") if path.is_file()]
    assert templates
    assert [path.name for path in templates if pattern.search(path.read_text(encoding="utf-8"))] == []


def test_nobody_else_makes_a_flag_of_what_the_object_chooses() -> None:
    assert {name for name, node in nodes() if makes_flag(node)} == FACTS


def test_each_of_these_is_seen() -> None:
    seen = {
        "run.trust.local": reads_flag,
        "trust_model(name).noised": reads_flag,
        "experiment.privacy.masked": reads_flag,
        "1 if privacy.sketch else 2": reads_flag,
        "not task.experiment.privacy.noisy": reads_flag,
        "terms.noisy and terms.limits": asks_flag,
        "[1 for job in jobs if job.experiment.privacy.sketch]": asks_flag,
        "run.trust._adds": reads_flag,
        "privacy.trust == 'central'": compares_name,
        "run.trust in ('sketch', 'sketch-local')": compares_name,
        "isinstance(model, Distributed)": asks_class,
        "model.by_ledgers(server=False, clients=True)": makes_flag,
    }
    for text, law in seen.items():
        assert any(map(law, ast.walk(ast.parse(text)))), text
    for text in (
        *("data.local", "folder.masked", "model.by_ledgers(server=0, clients=1)", "isinstance(model, Module)"),
        *("experiment.sketch.open", "stored.sketch", "len(settings.sketch.shares) > 1"),
    ):
        assert not any(law(node) for law in seen.values() for node in ast.walk(ast.parse(text))), text


# Kinds of everything else

ASKING = {
    **dict.fromkeys(
        [f"audit/record/{name}.py" for name in ("cost", "_rows")],
        "the audit recomputes a ledger from its names: what it does not know is a user's own, and no bound",
    ),
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

KIND_CLASSES = {"Objective", "Matching", "Composite", "Parity", "EqualizedOdds", "ToSample", "ToModel"} | {
    *("Penalty", "WeightedPenalty", "Pure", "Renyi", "Tabled", "Mechanism", "Accountant"),
}


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


def asks_kind_class(node: ast.AST) -> bool:
    """True for `isinstance` of an objective's, a penalty's, a noise's or an accountant's class."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"
    return called and bool({part.id for part in ast.walk(node) if isinstance(part, ast.Name)} & KIND_CLASSES)


def refuses(node: ast.AST) -> bool:
    """True for `if not isinstance(thing, Penalty): raise ...`: it refuses what is of no kind, and chooses nothing."""
    return isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Raise) and not node.orelse


def asking_of_kinds() -> list[tuple[str, ast.AST]]:
    """Questions for a kind in the source, by file, but for those of a refusal."""
    refused = {id(part) for _, node in walked() if refuses(node) for part in ast.walk(node.test)}  # type: ignore[attr-defined]
    return [
        (name, node)
        for name, node in walked()
        if compares_kind(node) or (asks_kind_class(node) and id(node) not in refused)
    ]


def test_every_file_that_may_ask_for_a_kind_does() -> None:
    assert set(ASKING) - {name for name, _ in asking_of_kinds()} == set()


def test_nobody_else_compares_a_kind_by_its_name_or_asks_its_class() -> None:
    breaches = [f"{name}:{node.lineno} {ast.unparse(node)}" for name, node in asking_of_kinds() if name not in ASKING]  # type: ignore[attr-defined]
    assert breaches == []


def test_each_of_these_comparisons_is_seen() -> None:
    for text in (
        "a.kind == 'particles'",
        "kind in ('dcgan', 'adaptor')",
        "privacy.accountant != 'pld'",
        "x == LAPLACE",
    ):
        assert any(map(compares_kind, ast.walk(ast.parse(text)))), text
    for text in ("isinstance(thing, Objective)", "isinstance(step.stated, Pure | Renyi)"):
        assert any(map(asks_kind_class, ast.walk(ast.parse(text)))), text
    for text in ("cells.dtype.kind == 'f'", "kind == other", "name == 'mlp'", "isinstance(thing, Task)"):
        assert not any(compares_kind(node) or asks_kind_class(node) for node in ast.walk(ast.parse(text))), text


# Where records come from

SOURCE_HOME = ("data/settings.py", "_tools/own_objects.py")
"""Where sources are written, and the names of records that a process holds."""

SOURCE_NAMES = {*SOURCES, "files", "object", "module"}


def compares_source(node: ast.AST) -> bool:
    """True for `data.source == "files"`, `spec.family != "object"`, `source in (OBJECT, "digits")` and their like."""
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    if not {"source", "family", "_family"} & {getattr(side, "attr", getattr(side, "id", None)) for side in sides}:
        return False
    parts = [part for side in sides for part in ast.walk(side)]
    texts = {part.value for part in parts if isinstance(part, ast.Constant)}
    return bool(texts & SOURCE_NAMES) or any(
        getattr(part, "id", getattr(part, "attr", "")) == "OBJECT" for part in parts
    )


def test_nobody_else_compares_a_source_of_records_by_its_name() -> None:
    breaches = [
        f"{name}:{node.lineno} {ast.unparse(node)}"  # type: ignore[attr-defined]
        for name, node in walked()
        if name not in SOURCE_HOME and compares_source(node)
    ]
    assert breaches == []


def test_a_question_counts_as_a_refusal_where_it_does_nothing_but_raise() -> None:
    for text, refusal in {
        "if not isinstance(part, Penalty):\n    raise TypeError": True,
        "if isinstance(part, Penalty):\n    part = part.between()": False,
        "if isinstance(part, Penalty):\n    raise TypeError\nelse:\n    part = 1": False,
    }.items():
        assert refuses(ast.parse(text).body[0]) is refusal, text


def test_each_of_these_questions_for_a_source_is_seen() -> None:
    for text in (
        "experiment.data.source == 'files'",
        "spec.source not in ('digits', 'mnist')",
        "data.family != 'object'",
        "source == registry.OBJECT",
    ):
        assert any(map(compares_source, ast.walk(ast.parse(text)))), text
    for text in ("data.source == name", "source in SOURCES", "kind == 'files'", "data.own_files is None"):
        assert not any(map(compares_source, ast.walk(ast.parse(text)))), text
