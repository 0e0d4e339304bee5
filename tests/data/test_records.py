"""Records: what is refused when they are loaded, and by which row and column."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fedsw.data import Dataset, Records, concatenate, require_groups, synthetic, validate
from fedsw.data.sources import load_shape
from fedsw.experiment import parse_experiment

GROUPS, CLASSES, NAMES = ("A=0", "A=1"), ("no", "yes"), ("age", "hours")


def make(n: int = 6, *, first_id: int = 0, regression: bool = False) -> Records:
    rows = torch.arange(n)
    target = torch.stack([rows / n, 1 - rows / n], dim=1) if regression else (rows // 2) % 2
    return Records(torch.stack([rows / 10, rows / 5], dim=1), rows % 2, target, rows + first_id)


def replaced(records: Records, field: str, row: int, value: object) -> Records:
    column = getattr(records, field).clone()
    column[row] = torch.as_tensor(value)
    return dataclasses.replace(records, **{field: column})


def test_sound_records_pass_for_classes_and_for_regression() -> None:
    validate(make(), "client 0", groups=GROUPS, classes=CLASSES, feature_names=NAMES)
    validate(make(regression=True), "client 0", groups=GROUPS, classes=(), feature_names=NAMES)
    validate(make(), "client 0")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_feature_that_is_not_finite_is_refused_by_row_and_column(value: float) -> None:
    broken = replaced(make(), "features", 3, [0.1, value])
    with pytest.raises(ValueError, match=r"client 2: row 3, column features\[1\] \(hours\) is (nan|-?inf)"):
        validate(broken, "client 2", groups=GROUPS, classes=CLASSES, feature_names=NAMES)
    with pytest.raises(ValueError, match=r"row 3, column features\[1\] is"):
        validate(broken, "client 2")


def test_a_regression_target_that_is_not_finite_is_refused_by_row_and_column() -> None:
    broken = replaced(make(regression=True), "target", 2, [float("nan"), 0.0])
    with pytest.raises(ValueError, match=r"row 2, column target\[0\] is nan"):
        validate(broken, "client 0")


@pytest.mark.parametrize(("field", "value"), [("sensitive", 2), ("sensitive", -1), ("target", 2), ("target", -1)])
def test_a_group_or_class_outside_its_range_is_refused_by_row_and_column(field: str, value: int) -> None:
    broken = replaced(make(), field, 4, value)
    with pytest.raises(ValueError, match=rf"client 1: row 4, column {field} is {value}; it must be 0 .. 1"):
        validate(broken, "client 1", groups=GROUPS, classes=CLASSES)


def test_negative_values_are_refused_even_where_the_groups_are_not_known() -> None:
    with pytest.raises(ValueError, match="row 1, column sensitive is -3; it must be 0 or more"):
        validate(replaced(make(), "sensitive", 1, -3), "client 0")
    with pytest.raises(ValueError, match="row 1, column ids is -3; it must be 0 or more"):
        validate(replaced(make(), "ids", 1, -3), "client 0")


def test_a_record_that_appears_twice_is_refused_with_both_rows() -> None:
    with pytest.raises(ValueError, match="row 5, column ids is 1, as in row 1"):
        validate(replaced(make(), "ids", 5, 1), "client 0")


def test_no_records_and_a_target_of_the_other_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="client 0: there are no records"):
        validate(make().take(torch.empty(0, dtype=torch.int64)), "client 0")
    with pytest.raises(ValueError, match="classes .* are expected"):
        validate(make(regression=True), "client 0", classes=CLASSES)
    with pytest.raises(ValueError, match="numbers .* are expected"):
        validate(make(), "client 0", classes=())
    with pytest.raises(ValueError, match="2 feature columns but 1 feature names"):
        validate(make(), "client 0", feature_names=("age",))


def test_every_empty_group_is_named() -> None:
    with pytest.raises(ValueError, match="all clients: no record of group blue, green"):
        require_groups(make().take([0, 2]), "all clients", ("red", "blue", "green"))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("features", torch.zeros(6), r"features has shape \(6,\); \(n, columns\) is expected"),
        ("features", torch.zeros(6, 0), r"features has shape \(6, 0\)"),
        (
            "features",
            torch.zeros(6, 2, dtype=torch.float64),
            "features is torch.float64; torch.float32 is expected",
        ),
        (
            "sensitive",
            torch.zeros(6, 1, dtype=torch.int64),
            r"sensitive has shape \(6, 1\); \(n,\) is expected",
        ),
        ("sensitive", torch.zeros(6), "sensitive is torch.float32; torch.int64 is expected"),
        ("target", torch.zeros(6), "target is torch.float32; torch.int64 is expected"),
        (
            "target",
            torch.zeros(6, 2, dtype=torch.float64),
            "target is torch.float64; torch.float32 is expected",
        ),
        ("ids", torch.zeros(5, dtype=torch.int64), "features 6, sensitive 6, target 6, ids 5"),
    ],
)
def test_wrong_shapes_types_and_lengths_are_refused_by_name(field: str, value: torch.Tensor, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        dataclasses.replace(make(), **{field: value})


def test_take_keeps_the_order_asked_for_and_whole_records() -> None:
    part = make().take([4, 1])
    assert part.ids.tolist() == [4, 1]
    assert part.sensitive.tolist() == [0, 1]
    assert part.target.tolist() == [0, 0]
    torch.testing.assert_close(part.features, make().features[[4, 1]])
    assert make().take(make().sensitive == 1).ids.tolist() == [1, 3, 5]


def test_concatenation_undoes_taking_and_refuses_other_widths() -> None:
    whole = make()
    joined = concatenate([whole.take([0, 1, 2]), whole.take([3, 4, 5])])
    for field in ("features", "sensitive", "target", "ids"):
        torch.testing.assert_close(getattr(joined, field), getattr(whole, field), rtol=0, atol=0)
    with pytest.raises(ValueError, match="different widths"):
        concatenate([whole, make(regression=True)])
    with pytest.raises(ValueError, match="at least one part"):
        concatenate([])


def test_a_data_set_refuses_held_out_records_that_are_private_ones() -> None:
    with pytest.raises(ValueError, match="toy: record 4 is in train and in test"):
        Dataset("toy", make(), make(4, first_id=4), NAMES, GROUPS, CLASSES)
    assert len(Dataset("toy", make(), make(4, first_id=6), NAMES, GROUPS, CLASSES).test) == 4


def test_a_data_set_validates_both_parts_and_refuses_an_empty_group() -> None:
    with pytest.raises(ValueError, match=r"toy \(test\): row 1, column features\[0\] \(age\) is nan"):
        broken = replaced(make(4, first_id=6), "features", 1, [float("nan"), 0.0])
        Dataset("toy", make(), broken, NAMES, GROUPS, CLASSES)
    with pytest.raises(ValueError, match=r"toy \(train\): no record of group A=1"):
        Dataset("toy", make().take([0, 2, 4]), make(4, first_id=6), NAMES, GROUPS, CLASSES)
    with pytest.raises(ValueError, match="targets of train and test"):
        wide = dataclasses.replace(make(4, first_id=6, regression=True), target=torch.zeros(4, 3))
        Dataset("toy", make(regression=True), wide, NAMES, GROUPS)


@pytest.mark.parametrize(("target", "targets"), [("class", 0), ("point", 2)])
def test_the_number_of_regression_targets_is_the_width_of_the_target_and_0_for_classes(target, targets):
    assert synthetic(50, n_test=20, target=target).targets == targets
    task = {"class": "classification", "point": "regression"}[target]
    raw = {"name": "a", "data": {"records": 50, "test_records": 20}, "objective": {"task": task}}
    experiment = parse_experiment(raw)
    assert load_shape(experiment.record_source).targets == targets
