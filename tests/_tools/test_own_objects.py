"""Objects named `module:name` in an experiment: found, or refused with the reason and the remedy."""

import pytest

from fedsw._tools.own_objects import is_reference, load_object
from fedsw.experiment import ExperimentError


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of a user's own where Python finds it; returns its name."""

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return name

    return write


def test_a_reference_gives_the_very_object_of_the_module():
    import math
    import pathlib

    assert load_object("math:hypot", what="metrics[0]") is math.hypot
    assert load_object("os.path:join", what="metrics[0]") is pathlib.os.path.join
    assert load_object("pathlib:Path.exists", what="metrics[0]") is pathlib.Path.exists


@pytest.mark.parametrize(
    "text", ["", "math", "math.hypot", ":hypot", "math:", "ma th:hypot", "math:hypot()", "../m:f", "a:b:c"]
)
def test_what_is_not_written_as_module_and_name_is_refused_and_imports_nothing(text, monkeypatch):
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"{name} was imported"))
    assert not is_reference(text)
    with pytest.raises(ExperimentError, match=r"metrics\[3\] is .*; write module:name"):
        load_object(text, what="metrics[3]")


def test_a_missing_module_a_broken_module_and_a_missing_name_say_the_reference_and_the_remedy(module):
    with pytest.raises(ExperimentError, match=r"model is 'no_such:f', .*'no_such' cannot be imported.*PYTHONPATH"):
        load_object("no_such:f", what="model")
    broken = module("fedsw_test_broken", "1 / 0")
    with pytest.raises(ExperimentError, match="ZeroDivisionError: division by zero"):
        load_object(f"{broken}:f", what="model")
    whole = module("fedsw_test_whole", "def f(): ...")
    assert callable(load_object(f"{whole}:f", what="model"))
    with pytest.raises(ExperimentError, match=r"'fedsw_test_whole:g', and 'fedsw_test_whole' has no 'g'"):
        load_object(f"{whole}:g", what="model")
