"""Laws of objects that have kinds: nobody outside of its folder reads a flag, a name or a class of one."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import fedsw
from fedsw.data.columns.registered import KINDS
from fedsw.data.settings import SOURCES
from fedsw.experiment.penalty_names import PENALTIES
from fedsw.experiment.sections import Privacy
from fedsw.experiment.sketch_section import MAPS, PARTS
from fedsw.experiment.task_kinds import MODELS, TASKS
from fedsw.experiment.trust import Law, NoGuarantee, RunGuarantee, TrustModel, trust_models
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

AUDIT = "audit/record/"
"""Where laws of noise are compared by name, and who accounts: the audit recomputes a record on purpose, from the
settings as written, and holds what an object chose against it."""


def variants() -> list[TrustModel]:
    """All trust models, those of one name for tasks that sketch included."""
    return [each for model in trust_models().values() for each in (model, model.sketching) if each is not None]


LAWS = set(get_args(Law))
NAMES = {model.name for model in variants()}
CLASSES = {kind.__name__ for model in variants() for kind in type(model).__mro__[:-1]}


def walked() -> Iterator[tuple[str, ast.AST]]:
    """Every node of the package's source outside of the trust models' own files, by file."""
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


def _names_trust(node: ast.AST) -> bool:
    """True for what holds the name of a trust model: `privacy.trust`, `model.name`, `trust_model(name).name`."""
    return _is_trust(node) or (isinstance(node, ast.Attribute) and node.attr == "name" and holds_trust(node.value))


def _texts(*nodes: ast.AST) -> set[object]:
    return {each.value for node in nodes for each in ast.walk(node) if isinstance(each, ast.Constant)}


def compares_name(node: ast.AST) -> bool:
    """True where a trust model's name meets one that is written there: compared, looked up, matched or cut."""
    if isinstance(node, ast.Compare):
        sides = (node.left, *node.comparators)
        return bool(_texts(*sides) & NAMES) and any(map(_names_trust, sides))
    if isinstance(node, ast.Subscript):
        return _names_trust(node.slice) and bool(_texts(node.value) & NAMES)
    if isinstance(node, ast.Match):
        return _names_trust(node.subject)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    looked_up = node.func.attr == "get" and any(map(_names_trust, node.args)) and bool(_texts(node.func) & NAMES)
    return looked_up or (node.func.attr in ("startswith", "endswith") and _names_trust(node.func.value))


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
    """True for `isinstance`, `issubclass` and `type(...) is` of a trust model's class, and for a case of one."""
    if isinstance(node, ast.MatchClass):
        return isinstance(node.cls, ast.Name) and node.cls.id in CLASSES
    if isinstance(node, ast.Call):
        asked = isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass")
        return asked and bool(names_in(node) & CLASSES)
    if not isinstance(node, ast.Compare):
        return False
    typed = "type" in names_in(node) or any(getattr(each, "attr", None) == "__class__" for each in ast.walk(node))
    return typed and bool(names_in(node) & CLASSES)


def names_in(node: ast.AST) -> set[str]:
    """Names that are read or written in a node."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def compares_law(node: ast.AST) -> bool:
    """True for `model.law == "masked sum"` and `model.law in ("random slices",)`: a table by laws has a name."""
    if not isinstance(node, ast.Compare):
        return False
    sides = (node.left, *node.comparators)
    return bool(_texts(*sides) & LAWS) and any(isinstance(side, ast.Attribute) and side.attr == "law" for side in sides)


PROMISES = {"guarantee"}
"""Names under which a run's promise is held."""


def dispatches(node: ast.AST) -> bool:
    """True for `model.by_ledgers(server=..., clients=...)`: a helper that only picks what its caller made of each."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.startswith("by_")):
        return False
    held = node.func.value
    return holds_trust(held) or getattr(held, "attr", getattr(held, "id", None)) in PROMISES


def asks_for_method(node: ast.AST) -> bool:
    """True for `hasattr(model, "tables")` and `getattr(trust, "masked", False)`."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr")
    return called and _is_trust_or_model(node.args[0])  # type: ignore[attr-defined]


def _is_trust_or_model(node: ast.AST) -> bool:
    """True for a trust model by a name that no network has."""
    return _is_trust(node) or (isinstance(node, ast.Attribute) and node.attr == "model" and holds_trust(node.value))


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


def test_nobody_else_branches_on_a_trust_model_by_any_spelling() -> None:
    laws = (reads_flag, compares_name, asks_class, dispatches, asks_for_method)
    found = [f"{name}:{node.lineno} {law.__name__}" for name, node in walked() for law in laws if law(node)]  # type: ignore[attr-defined]
    assert found == []


def test_laws_of_noise_are_keys_of_tables_except_in_the_audit() -> None:
    found = {name for name, node in walked() if compares_law(node)}
    assert found and all(name.startswith(AUDIT) for name in found)


def test_whether_a_trust_model_is_among_some_is_asked_by_refusals_alone() -> None:
    """What follows from one being among others is not decided where it is asked: an `if` that does more would be it."""
    allowed: set[int] = set()
    asking: list[tuple[str, ast.AST]] = []
    for name, node in walked():
        if refuses(node) or returns_why(node):
            allowed |= {id(part) for part in ast.walk(node.test)}  # type: ignore[attr-defined]
        if isinstance(node, ast.keyword) and node.arg == "requires":
            allowed |= {id(part) for part in ast.walk(node.value)}
        if asks_membership(node):
            asking.append((name, node))
    assert {name for name, node in asking if id(node) not in allowed} == set(MEMBERS)


def returns_why(node: ast.AST) -> bool:
    """True for `if trust not in able: return f"for {able}, not for {trust!r}"`: it says why, and chooses nothing."""
    if not (isinstance(node, ast.If) and len(node.body) == 1 and isinstance(node.body[0], ast.Return)):
        return False
    return isinstance(node.body[0].value, ast.JoinedStr) and not node.orelse


def test_no_trust_model_and_no_promise_has_a_method_that_only_picks_what_its_caller_made() -> None:
    things = [*variants(), RunGuarantee(), NoGuarantee()]
    assert [(type(thing).__name__, name) for thing in things for name in dir(thing) if name.startswith("by_")] == []


def test_no_template_reads_a_flag_or_picks_by_a_trust_model() -> None:
    held, names = "|".join(sorted({*HELD, *PROMISES})), "|".join(sorted(NAMES))
    flag = rf"\b({held})\.({'|'.join(sorted(FLAGS))})\b"
    pattern = re.compile(rf"{flag}|\b({held})\.by_\w+\(|\btrust (==|!=|in|not in) |[\"']({names})[\"'] (==|!=) ")
    for text in (
        "model.by_ledgers(server=1, clients=2)",
        "privacy.masked",
        "if run.trust == 'central'",
        "trust in names",
    ):
        assert pattern.search(text), text
    templates = [path for path in PACKAGE.rglob("templates/*") if path.is_file()]
    assert templates
    assert [path.name for path in templates if pattern.search(path.read_text(encoding="utf-8"))] == []


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
        "model.by_ledgers(server=False, clients=True)": dispatches,
        "experiment.privacy.model.by_release(rounds=one, once=other)()": dispatches,
        "experiment.privacy.guarantee.by_noise(noised=None, none=why)": dispatches,
        "guarantee.by_noise(noised=None, none=why)": dispatches,
        "privacy.model.name == 'central'": compares_name,
        "trust in {'sketch'}": compares_name,
        "{'central': 1, 'none': 2}[run.trust]": compares_name,
        "{'central': 1}.get(privacy.trust, 2)": compares_name,
        "privacy.trust.startswith('local')": compares_name,
        "match trust:\n    case 'central':\n        pass": compares_name,
        "privacy.trust in _LOCAL": asks_membership,
        "1 if privacy.trust in accounting_at_server() else 2": asks_membership,
        "privacy.model.name not in {*names}": asks_membership,
        "issubclass(type(model), OwnLedgers)": asks_class,
        "type(privacy.model) is Central": asks_class,
        "trust.__class__ == Distributed": asks_class,
        "match model:\n    case Distributed():\n        pass": asks_class,
        "model.law == 'masked sum'": compares_law,
        "privacy.model.law in ('random slices', None)": compares_law,
        "hasattr(privacy.model, 'masked')": asks_for_method,
        "getattr(trust, 'once', False)": asks_for_method,
    }
    for text, law in seen.items():
        assert any(map(law, ast.walk(ast.parse(text)))), text
    for text in (
        *("data.local", "folder.masked", "facts.by_group(view)", "isinstance(model, Module)", "type(model) is Linear"),
        *("trust in trust_models()", "_TRIALS.get(model.law)", "model.law not in _TRIALS", "trust == privacy.trust"),
        *("getattr(model, 'latent', None)", "TRUSTS[run.trust]", "'masked sum' in words"),
        *("experiment.sketch.open", "stored.sketch", "len(settings.sketch.shares) > 1"),
    ):
        assert not any(law(node) for law in seen.values() for node in ast.walk(ast.parse(text))), text


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
    return called and bool(names_in(node) & KIND_CLASSES)


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
