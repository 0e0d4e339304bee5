"""Estimators of scikit-learn's shape: its checks, its tools, fairlearn's; and that they are `fedsw.run` and no more."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from fairlearn.metrics import MetricFrame
from fairlearn.postprocessing import ThresholdOptimizer
from sklearn import config_context
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator
from torch import nn

import fedsw
from fedsw.cli.demo import ALPHAS, EPSILONS
from fedsw.data.sources import load_dataset
from fedsw.experiment import load_experiment
from fedsw.privacy.accounting.lifetime import account_named
from fedsw.runs.accounts import account_record
from fedsw.sklearn import BoundsWarning, FitsCompose, PrivateClassifier, PrivateRegressor

pytestmark = [
    pytest.mark.usefixtures("elsewhere"),
    pytest.mark.filterwarnings("ignore::fedsw.sklearn.BoundsWarning", "ignore::fedsw.sklearn.FitsCompose"),
]

QUICK: dict[str, Any] = {"training": {"rounds": 3, "batch_fraction": 0.5, "precision": "float64"}, "name": "quick"}
UNFITTED = (
    *("check_no_attributes_set_in_init", "check_estimators_unfitted", "check_fit2d_1sample", "check_valid_tag_types"),
    *("check_estimator_repr", "check_parameters_default_constructible", "check_get_params_invariance"),
)
ESTIMATORS = [PrivateClassifier, PrivateRegressor]


def table(rows: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs (n, 2), classes (n,) of which the first input tells, and groups (n,)."""
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(rows, 2))
    return inputs, np.where(inputs[:, 0] > 0, "yes", "no"), draw.choice(["f", "m"], rows)


def quick(**parameters: Any) -> PrivateClassifier:
    return PrivateClassifier(**{"epsilon": 20.0, "random_state": 0, "settings": QUICK, **parameters})


def test_a_regressor_learns_where_noise_lets_it() -> None:
    draw = np.random.default_rng(1)
    inputs = draw.normal(size=(200, 10))
    cells = inputs @ draw.normal(size=10)
    cells = (cells - cells.mean()) / cells.std()
    assert PrivateRegressor(8.0, random_state=0).fit(inputs, cells).score(inputs, cells) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_it_passes_all_that_scikit_learn_checks(estimator: Any) -> None:
    """After three rounds, but where accuracy is asked."""
    found = check_estimator(estimator(settings=QUICK), on_fail=None, on_skip=None)
    faults = {check["check_name"]: repr(check["exception"]) for check in found if check["status"] != "passed"}
    if estimator is PrivateClassifier:
        for made, check in estimator_checks_generator(estimator(), legacy=True):
            if getattr(check, "func", check).__name__ == "check_classifiers_train":
                check(made)
        faults.pop("check_classifiers_train", None)
    assert len(found) > 50 and set(faults) <= {"check_array_api_input"} and "SCIPY_ARRAY_API" in str(faults)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_it_passes_what_scikit_learn_checks_before_a_fit(estimator: Any) -> None:
    checks = list(estimator_checks_generator(estimator(settings=QUICK), legacy=True))
    named = {getattr(check, "func", check).__name__: (made, check) for made, check in checks}
    for name in UNFITTED:
        made, check = named[name]
        check(made)


def test_bounds_are_fixed_where_none_are_given_and_never_those_of_the_data() -> None:
    inputs, classes, _ = table()
    with pytest.warns(BoundsWarning, match="no bounds of x0 and 1 more: -5 to 5"):
        fitted = quick().fit(inputs, classes)
    far = np.array([[5.0, -5.0], [500.0, -7.0]])
    assert np.ptp(fitted.predict_proba(far), axis=0).max() == 0  # cells beyond are cut
    with pytest.warns(BoundsWarning):
        other = quick().fit(inputs * 1e-3, classes)
    assert [each.low for each in other._trained.columns.features] == [-5.0, -5.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", BoundsWarning)
        quick(bounds=(-3, 3)).fit(inputs, classes)
        quick(bounds={"x0": (-3, 3), "x1": (-2, 2)}).fit(inputs, classes)
        quick(bounds=(-np.inf, np.inf)).fit(inputs, classes)
    with pytest.raises(ValueError, match="bounds name the column 'x7'"):
        quick(bounds={"x7": (0, 1)}).fit(inputs, classes)


def test_a_random_state_makes_epsilon_nominal_and_none_makes_noise_secret() -> None:
    inputs, classes, _ = table()
    one, same = (quick(random_state=state).fit(inputs, classes) for state in (7, 7))
    assert "nominal" in one.guarantee_ and one.epsilon_ <= 20
    assert np.array_equal(one.predict_proba(inputs), same.predict_proba(inputs))
    drawn = quick(random_state=np.random.RandomState(3)).fit(inputs, classes)
    assert "nominal" in drawn.guarantee_
    secret, another = (quick(random_state=None).fit(inputs, classes) for _ in range(2))
    assert "nominal" not in secret.guarantee_
    assert not np.array_equal(secret.predict_proba(inputs), another.predict_proba(inputs))
    assert "classes occur" in secret.guarantee_  # read off the records, and public from then on


def test_a_frame_with_text_and_an_array_are_one_path() -> None:
    inputs, classes, groups = table()
    frame = pd.DataFrame({"age": inputs[:, 0], "sex": groups})
    fitted = quick(bounds={"age": (-3, 3)}, categories={"sex": ["f", "m"]}).fit(frame, classes)
    assert list(fitted.feature_names_in_) == ["age", "sex"] and list(fitted.classes_) == ["no", "yes"]
    assert fitted._trained.columns.features[1].categories == ("f", "m")
    assert fitted.predict(frame.iloc[:3]).shape == (3,)
    numbers = quick(bounds=(-3, 3)).fit(frame.assign(sex=0.0), classes)
    as_array = quick(bounds=(-3, 3)).fit(frame.assign(sex=0.0).to_numpy(), classes)
    assert np.array_equal(
        numbers.decision_function(frame.assign(sex=0.0)), as_array.decision_function(frame.assign(sex=0.0).to_numpy())
    )
    with pytest.raises(ValueError, match="'x'"):
        fitted.predict(frame.assign(sex="x"))
    with pytest.raises(ValueError, match="categories name the column 'colour'"):
        quick(categories={"sex": ["f", "m"], "colour": ["red", "blue"]}).fit(frame, classes)


def test_polars_frames_are_read_too() -> None:
    polars = pytest.importorskip("polars")
    inputs, classes, _ = table()
    fitted = quick(bounds=(-3, 3)).fit(polars.DataFrame(inputs, schema=["a", "b"]), classes)
    same = quick(bounds=(-3, 3)).fit(pd.DataFrame(inputs, columns=["a", "b"]), classes)
    assert list(fitted.feature_names_in_) == ["a", "b"]
    assert np.array_equal(fitted.predict_proba(inputs), same.predict_proba(inputs))
    frame = polars.DataFrame({"age": inputs[:, 0], "sex": ["f", "m"] * (len(classes) // 2), "ill": classes})
    mixed = quick(alpha=0.5, categories={"sex": ["f", "m"]}, bounds={"age": (-3, 3)})
    mixed.fit(frame[["age", "sex"]], frame["ill"], sensitive_features=frame[["sex", "ill"]])
    assert mixed._trained.groups == ("f × no", "f × yes", "m × no", "m × yes")
    assert set(mixed.predict(frame[["age", "sex"]])) <= {"no", "yes"}


def test_a_model_goes_through_pickle_and_joblib_without_its_run(tmp_path: Path) -> None:
    inputs, classes, _ = table()
    fitted = quick(model=nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))).fit(inputs, classes)
    joblib.dump(fitted, tmp_path / "model")
    (tmp_path / "runs").rename(tmp_path / "elsewhere")
    for copy in (pickle.loads(pickle.dumps(fitted)), joblib.load(tmp_path / "model")):
        assert np.array_equal(copy.predict_proba(inputs), fitted.predict_proba(inputs))
        assert copy.guarantee_ == fitted.guarantee_


def test_a_pipeline_gives_it_frames_where_it_is_asked_to() -> None:
    inputs, classes, groups = table()
    line = make_pipeline(StandardScaler(), quick(alpha=0.5)).set_output(transform="pandas")
    line.fit(pd.DataFrame(inputs, columns=["a", "b"]), classes, privateclassifier__sensitive_features=groups)
    assert list(line[-1].feature_names_in_) == ["a", "b"]
    assert 0 <= line.score(pd.DataFrame(inputs, columns=["a", "b"]), classes) <= 1


def test_folds_and_searches_are_charged_together() -> None:
    inputs, classes, groups = table()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitsCompose)
        with config_context(enable_metadata_routing=True):
            routed = quick(account="people", epsilon=1.0, alpha=0.5).set_fit_request(sensitive_features=True)
            scores = cross_val_score(routed, inputs, classes, cv=3, params={"sensitive_features": groups})
        search = GridSearchCV(quick(account="people", epsilon=1.0), {"alpha": [0.0]}, cv=2).fit(inputs, classes)
    assert len(scores) == 3
    kept = account_record(account_named("people"), None)
    assert len(kept["runs"]) == 6 and kept["epsilon"] > 2 * search.best_estimator_.epsilon_
    # of private rows `scores` and `best_params_` have no noise, and no account counts them
    assert "what a search chooses by them is not covered" in " ".join(str(PrivateClassifier.__doc__).split())


OWN = """
name = "quick"
[data]
source = "files"
account = "clinic"
[data.columns]
features = [{name = "x0"}, {name = "x1"}]
target = {name = "y", values = ["no", "yes"]}
[objective]
penalty = "none"
[training]
rounds = 3
"""


def test_fits_are_charged_to_the_account_of_their_settings_and_rows_of_a_privacy_unit_are_refused(tmp_path) -> None:
    inputs, classes, _ = table()
    (tmp_path / "own.toml").write_text(OWN)
    sections = {**QUICK, "data": {"source": "files", "account": "clinic"}}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitsCompose)
        for settings in (tmp_path / "own.toml", sections):
            one = quick(settings=settings)
            clone(one), clone(one).fit(inputs, classes)
    runs = account_record(account_named("clinic"), None)["runs"]
    assert len(runs) == 2 and all(run["releases"] == 3 for run in runs)
    persons = {"source": "files", "columns": {"features": [{"name": "x0"}], "unit": "patient"}}
    (tmp_path / "own.toml").write_text(OWN.replace("[data]", '[data]\nunit = "patient"'))
    for settings in (tmp_path / "own.toml", {**sections, "data": {"unit": "patient"}}, {**sections, "data": persons}):
        with pytest.raises(ValueError, match="data.unit of the settings is 'patient', and an estimator protects rows"):
            quick(settings=settings).fit(inputs, classes)


def test_clones_without_an_account_say_that_they_compose() -> None:
    inputs, classes, _ = table()
    one = quick()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FitsCompose)
        clone(one).fit(inputs, classes)
        one.fit(inputs, classes)
    with pytest.warns(FitsCompose, match="this is fit 2 of clones"):
        pickle.loads(pickle.dumps(clone(one))).fit(inputs, classes)
    with pytest.warns(FitsCompose):
        cross_val_score(quick(), inputs, classes, cv=2, error_score="raise")


def test_groups_are_given_as_fairlearn_gives_them() -> None:
    inputs, classes, groups = table()
    fair = quick(alpha=0.5).fit(inputs, classes, sensitive_features=pd.DataFrame({"sex": groups, "old": groups == "f"}))
    assert fair._trained.groups == ("f × true", "m × false")
    frame = MetricFrame(metrics=accuracy_score, y_true=classes, y_pred=fair.predict(inputs), sensitive_features=groups)
    assert set(frame.by_group.index) == {"f", "m"}
    numbers = (classes == "yes").astype(int)
    prefit = quick(alpha=0.5).fit(inputs, numbers, sensitive_features=groups)
    after = ThresholdOptimizer(estimator=prefit, prefit=True, predict_method="predict_proba")
    after.fit(inputs, numbers, sensitive_features=groups)
    assert set(after.predict(inputs, sensitive_features=groups, random_state=0)) <= {0, 1}
    with pytest.warns(UserWarning, match="no sensitive_features: it is left out"):
        quick(alpha=0.5).fit(inputs, classes)
    with pytest.raises(ValueError, match="one value only"):
        quick(alpha=0.5).fit(inputs, classes, sensitive_features=["f"] * len(classes))


def test_a_regressor_answers_within_the_bounds_of_its_target() -> None:
    inputs, _, _ = table()
    cells = 100 * inputs[:, 0]
    fitted = PrivateRegressor(20.0, bounds={"x0": (-3, 3), "x1": (-3, 3), "target": (-50, 50)}, random_state=0)
    fitted.set_params(settings=QUICK).fit(inputs, cells)
    assert np.abs(fitted.predict(inputs)).max() <= 50
    target = fitted._trained.columns.targets[0]
    assert (target.low, target.high) == (-50.0, 50.0)
    with pytest.warns(BoundsWarning, match="no bounds of target: -5 to 5"):
        PrivateRegressor(20.0, bounds=(-3, 3), settings=QUICK).fit(inputs, cells)
    with pytest.raises(ValueError, match="rename the column"):
        PrivateRegressor(settings=QUICK).fit(pd.DataFrame(inputs, columns=["a", "target"]), cells)


def test_a_fitted_one_is_a_picture_in_a_notebook() -> None:
    inputs, classes, _ = table()
    plain = quick(model="additive", bounds=(-3, 3))
    assert "differential privacy" not in plain._repr_html_()
    fitted = plain.fit(inputs, classes)
    assert len(fitted.shapes_) == 2 and fitted.shapes_[0].column == "x0"
    shown = fitted._repr_html_()
    assert fitted.guarantee_[:40] in shown and "<svg" in shown
    assert "PrivateClassifier(" in fitted._repr_mimebundle_()["text/plain"]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_nine_classifiers_of_the_demo_come_out_of_it(alpha: float, epsilon: float) -> None:
    changes = ["training.rounds=2", "data.records=600", "federation.clients=4", "seed=1", 'evaluation.mode="full"']
    demo = load_experiment("fair-classification", [*changes, f"objective.alpha={alpha}", f"privacy.epsilon={epsilon}"])
    result = fedsw.run(demo)
    settings = demo.model_dump(exclude_unset=True, exclude={"data"})
    private = PrivateClassifier(
        epsilon, "0.1/n", (-np.inf, np.inf), alpha=alpha, clients=4, random_state=1, settings=settings
    )
    people = load_dataset(demo.record_source)
    train, held_out = people.train, people.test
    private.fit(train.features.numpy(), train.target.numpy(), sensitive_features=train.sensitive.numpy())
    assert private.epsilon_ == float(result.summary["epsilon"])
    assert all(
        torch.equal(mine, theirs)
        for mine, theirs in zip(
            private._trained.model.state_dict().values(),
            fedsw.load(result.directory).model.state_dict().values(),
            strict=True,
        )
    )
    accuracy = private.score(held_out.features.numpy(), held_out.target.numpy())
    assert accuracy == pytest.approx(result.summary["held_out"]["accuracy"], abs=1e-9)
