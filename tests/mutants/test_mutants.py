"""Laws of the table of mutants, and of the run that says which of them tests notice."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT
from tests.mutants.sources import Sources
from tests.mutants.table import BadMutant, Mutant, checked, read
from tests.mutants.trial import Nursery, copies, mutated

SUBJECTS = {
    "accounting", "added_records", "canaries",
    "clients", "clipping", "deploy", "device", "first_moments", "held_out", "histograms", "ledger", "lifetime", "local",
    "masked_sketches", "masks", "messages", "moments", "noise", "own_tables", "penalties", "ranks", "records",
    "resumed", "sampling", "sensitivity", "shown", "sketched_runs", "sketches", "tasks", "thresholds",
    "units",
}  # fmt: skip


def test_every_mutant_applies_exactly_once_and_its_tests_are_there():
    assert checked(read(), ROOT) == []


def test_the_table_breaks_everything_that_a_guarantee_rests_on():
    mutants = read()
    assert {mutant.subject for mutant in mutants} == SUBJECTS
    assert len(mutants) >= 40
    assert all(mutant.breaks.endswith(".") and 20 < len(mutant.breaks) < 130 for mutant in mutants)
    assert len({(mutant.function, mutant.old, mutant.new) for mutant in mutants}) == len(mutants)


GOOD = Mutant("m", "s", "b", function="pay", old="spent + 1", new="spent", tests=("test_it.py::test_it",))
PAY = "def pay(spent):\n    paid = spent + 1\n    return paid\n"


def _tree(root: Path, **texts: str) -> Sources:
    """A tree whose package has files of these texts."""
    for name, text in {"__init__": "", **texts}.items():
        path = (root / "fedsw" / name.replace("_in_", "/")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "test_it.py").write_text("def test_it(): ...\n")
    return Sources(root)


def _after(sources: Sources, **change: str) -> str:
    """The changed text, laid out anew."""
    return ast.unparse(ast.parse(replace(GOOD, **change).applied(sources)[1]))


def test_a_mutant_whose_place_or_test_is_gone_is_an_error_and_no_skip(tmp_path):
    sources = _tree(tmp_path, product=PAY + "\n\ndef other():\n    return 1 + 1, 1 + 1\n")
    wrong = [
        ({"function": "paid_back"}, "m: paid_back is defined 0 times in fedsw.*give the name that it has now"),
        ({"old": "spent + 2"}, "m: in pay this is found 0 times, once is needed .give what stands there now.:\nspent"),
        ({"old": "paid"}, "m: in pay this is found 2 times, once is needed .give more of what is around it."),
        ({"function": "other", "old": "1 + 1"}, "m: in other this is found 2 times"),
        ({"old": "1 + 1"}, "m: in pay this is found 0 times"),
        ({"old": ""}, "m: in pay this is found 0 times"),
        ({"new": "(spent  +  1)"}, "the change changes nothing, put something else"),
        ({"old": "paid = spent + 1", "new": "paid ="}, "the change is no Python"),
        ({"tests": ("test_gone.py",)}, "test_gone.py are gone"),
        ({"tests": ("test_it.py::test_other",)}, "no test test_other"),
        ({"tests": ()}, "no test should notice"),
    ]
    GOOD.check(sources)
    for change, words in wrong:
        with pytest.raises(BadMutant, match=words):
            replace(GOOD, **change).check(sources)


def test_a_table_that_names_a_file_or_one_mutant_twice_is_refused(tmp_path):
    entry = '[[mutant]]\nname = "m"\nbreaks = "b"\nold = "a"\nnew = "b"\ntests = ["t"]\n'
    for text, words in {
        entry + 'file = "fedsw/a.py"\n': "m: a mutant has no file, it names the `function`",
        2 * (entry + 'function = "a"\n'): "two mutants are called m",
    }.items():
        (tmp_path / "table.toml").write_text(text)
        with pytest.raises(BadMutant, match=words):
            read(tmp_path)


def test_a_mutant_survives_the_move_of_its_function_to_another_file(tmp_path):
    here, there = (
        _tree(tmp_path / "1", product=PAY),
        _tree(tmp_path / "2", product="", deep_in_moved="x = 1\n\n\n" + PAY),
    )
    assert GOOD.applied(here) == (Path("fedsw/product.py"), PAY.replace("spent + 1", "(spent)"))
    assert GOOD.applied(there) == (Path("fedsw/deep/moved.py"), "x = 1\n\n\n" + PAY.replace("spent + 1", "(spent)"))


@pytest.mark.parametrize(
    ("text", "old", "new", "wanted"),
    [
        ("a = [0][f(x,\n        (y))]", "a = [0][f(x, y)]", "a = 1", "a = 1"),
        ("a = b * (c  # why\n        + d)", "c+d", "c - d", "a = b * (c - d)"),
        ("a = b * c", "b", "b + 1", "a = (b + 1) * c"),
        ("a = 'b'\n\n    c = 1", '    a = "b"\n    c = 1\n', "a = 2", "a = 2"),
        (
            "if a:\n        b = 1\n    c = 1",
            "b = 1",
            "\n  b = 2\n  if b:\n      d = 3\n",
            "if a:\n    b=2\n    if b: d=3\nc=1",
        ),
        ("a = 1\n    b = 1", "a = 1", "", "b = 1"),
        ("a = 'ü', b", "b", "c", "a = 'ü', c"),
        ("a = b(c, d=1, e=f'{g}')", "d=1", "d=2", "a = b(c, d=2, e=f'{g}')"),
        ("if a:\n        b = 1", "if a:", "if not a:", "if not a: b = 1"),
    ],
)
def test_reformatting_does_not_hide_a_mutants_place(tmp_path, text, old, new, wanted):
    sources = _tree(tmp_path, product=f"@law\ndef pay(x: int = 0):\n    {text}\n")
    body = ast.parse(_after(sources, old=old, new=new)).body[0].body
    assert ast.unparse(body) == ast.unparse(ast.parse(wanted))


def test_a_mutant_may_name_methods_inner_functions_and_what_modules_and_classes_assign(tmp_path):
    method = "    @b(1)\n    def c(self, d=1):\n        def e():\n            return 1\n"
    text = f"class A:\n    size: int = 1\n\n{method}\n\nF = G = 1\n"
    sources = _tree(tmp_path, product=text)
    for name, line in {"A.size": 1, "A.c.e": 6, "F": 9, "G": 9}.items():
        assert _after(sources, function=name, old="1", new="2") == _relined(text, line)
    assert _after(sources, function="A.c", old="@b(1)", new="@b(2)") == _relined(text, 3)
    assert _after(sources, function="A.c", old="d=1", new="d=2") == _relined(text, 4)


def _relined(text: str, number: int) -> str:
    lines = text.splitlines()
    lines[number] = lines[number].replace("1", "2")
    return ast.unparse(ast.parse("\n".join(lines)))


def test_a_name_that_two_modules_define_is_refused_until_the_end_of_a_module_tells_them_apart(tmp_path):
    sources = _tree(tmp_path, one_in_release=PAY, two_in_release=PAY, two_in_prerelease=PAY)
    for name in ("pay", "release:pay"):
        with pytest.raises(
            BadMutant, match=rf"m: {name} is defined . times \(fedsw.one.release, .*put the end of its module"
        ):
            replace(GOOD, function=name).applied(sources)
    for name in ("one.release:pay", "fedsw.one.release:pay"):
        assert replace(GOOD, function=name).applied(sources)[0] == Path("fedsw/one/release.py")
    assert replace(GOOD, function="prerelease:pay").applied(sources)[0] == Path("fedsw/two/prerelease.py")


TREE = {
    "pyproject.toml": "[tool.pytest.ini_options]\n",
    "fedsw/__init__.py": "",
    "fedsw/product.py": "def double(x, times=2):\n    return times * x\n\n\nUNUSED = 1\n",
    "test_it.py": """
import pytest
from fedsw.product import double

def test_two_is_doubled(): assert double(2) == 4
def test_zero_stays(): assert double(0) == 0

@pytest.mark.skip
def test_skipped(): ...
""",
}


@pytest.fixture(scope="module")
def nursery(tmp_path_factory):
    root: Path = tmp_path_factory.mktemp("tree")
    (root / "fedsw").mkdir()
    for name, text in TREE.items():
        (root / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # as `make test` has it: what is compiled may stay
        with copies(root, 1) as places, Nursery(places[0], packages=("hypothesis",), tests=("test_it.py",)) as found:
            yield found


def _mutant(function: str, old: str, new: str, *tests: str) -> Mutant:
    return Mutant("m", "s", "b", function, old, new, tests or ("test_it.py",))


def test_a_mutant_that_no_test_notices_survives_and_one_that_is_noticed_is_killed_by_that_test(nursery):
    unnoticed = _mutant("UNUSED", "UNUSED = 1", "UNUSED = 2")
    noticed = _mutant("double", "times * x", "x + 3", "test_it.py::test_two_is_doubled")
    zero = _mutant("double", "times * x", "x + 2")
    assert nursery.tried(unnoticed).verdict == "survived"
    found = nursery.tried(noticed)
    assert (found.verdict, found.by) == ("killed", "test_it.py::test_two_is_doubled")
    assert nursery.tried(zero).by == "test_it.py::test_zero_stays"
    assert nursery.ran(["test_it.py"]).verdict == "survived", "the copy is as it was"


@pytest.mark.parametrize(
    ("old", "new", "at_once"),
    [
        ("times * x", "x + 3", True),
        ("times * x", "(lambda: x + 3)()", True),
        ("times=2", "times=3", False),
        ("return times * x", "raise OSError", False),
    ],
)
def test_a_changed_function_is_noticed_where_it_was_imported_and_all_else_is_asked_of_a_new_import(
    nursery, monkeypatch, old, new, at_once
):
    """Only a law that failed is believed of functions changed in place: not a fault that forks may have made."""
    anew = []
    monkeypatch.setattr(nursery, "ran", lambda tests: anew.append(tests))
    outcome = nursery.tried(_mutant("double", old, new))
    assert (outcome and outcome.by, anew) == (
        ("test_it.py::test_two_is_doubled", []) if at_once else (None, [("test_it.py",)])
    )


@pytest.mark.parametrize(
    ("function", "old", "new", "tests", "words"),
    [
        ("double", "def double", "def other", (), "pytest ended with"),
        ("double", "return times * x", "return y", (), "broke more than a law"),
        ("UNUSED", "UNUSED = 1", "raise SystemExit", (), "pytest ended with"),
        ("UNUSED", "UNUSED = 1", "import time; time.sleep(0)", ("test_it.py::test_skipped",), "every test was skipped"),
        ("double", "is not there", "at all", (), "0 times"),
    ],
)
def test_a_mutant_that_breaks_more_than_a_law_or_meets_no_test_is_an_error(nursery, function, old, new, tests, words):
    outcome = nursery.tried(_mutant(function, old, new, *tests))
    assert outcome.verdict == "error" and words in outcome.by


def test_tests_that_never_end_are_an_error(nursery):
    with_a_hang = _mutant("double", "return times * x", "while True: pass")
    with mutated(nursery.sources, with_a_hang):
        outcome = nursery.ran(["test_it.py"], patience=3.0)
    assert outcome.verdict == "error" and "not done after 3 s" in outcome.by


def test_code_from_elsewhere_is_an_error(nursery, tmp_path):
    """As an editable installation would be, that is found before the copy."""
    (tmp_path / "test_it.py").write_text("double = lambda x: 2 * x\n")
    (nursery.copy / "test_elsewhere.py").write_text(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "import test_it as product\n\ndef test_it(): assert product.double(1) == 2\n"
    )
    outcome = nursery.ran(["test_elsewhere.py"])
    assert outcome.verdict == "error" and "code from elsewhere" in outcome.by
