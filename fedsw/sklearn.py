"""Estimators of scikit-learn's shape over `fedsw.run`, which does all clipping, noising and accounting.

`PrivateClassifier` and `PrivateRegressor` fit in a fresh folder `runs/<name>/<number>-<time>/`, as every run does, with
its ledger and its page, and predict without the folder. scikit-learn is needed, which fedsw's extra `app` installs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import nn

from fedsw._tools.settings import deep_copy
from fedsw.data import as_records
from fedsw.desk.use.trained import load
from fedsw.experiment import Experiment, ExperimentError, load_experiment, parse_experiment
from fedsw.federation.engines.driver import run
from fedsw.runs.additive_shapes import read_shapes
from fedsw.runs.report.figures import picture
from fedsw.runs.report.shapes import draw_shapes, shapes_in_words

__all__ = ["BoundsWarning", "FitsCompose", "PrivateClassifier", "PrivateRegressor"]

Array = NDArray[Any]
Bounds = tuple[float, float]

FIXED_BOUNDS: Bounds = (-5.0, 5.0)
"""Bounds of columns without any: nearly all standardised numbers are within. They never depend on the data."""

TARGET = "target"
"""The key of a regressor's target in `bounds`."""

_SEEDS = 2**31 - 1
"""Seeds drawn from scikit-learn's random states are below this number."""


class BoundsWarning(UserWarning):
    """Columns were given no bounds: fixed ones are used, and cells beyond them are clipped."""


class FitsCompose(UserWarning):
    """Clones of one estimator are fitted without an account: their costs add up, and are not composed anywhere."""


class _Private(BaseEstimator):  # type: ignore[misc]
    """An estimator by a run of the task `_task`; parameters are those of `PrivateClassifier`."""

    _task = ""

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | str = "auto",
        bounds: Bounds | Mapping[str, Bounds] | None = None,
        categories: Mapping[str, Sequence[object]] | None = None,
        model: str | nn.Module = "auto",
        penalty: str | None = None,
        alpha: float = 0.0,
        clients: int = 1,
        account: str | Path | None = None,
        random_state: Any = None,
        settings: str | Path | Mapping[str, Any] | None = None,
    ) -> None:
        self.epsilon, self.delta, self.bounds, self.categories = epsilon, delta, bounds, categories
        self.model, self.penalty, self.alpha, self.clients = model, penalty, alpha, clients
        self.account, self.random_state, self.settings = account, random_state, settings

    def __sklearn_clone__(self) -> Any:
        """Clone as scikit-learn does, and number the clones: the second that is fitted belongs to a search."""
        copy = BaseEstimator.__sklearn_clone__(self)
        self._clones = getattr(self, "_clones", 0) + 1
        copy._clone = self._clones
        return copy

    def _fitted_to(self, table: Mapping[str, Array], rows: int, sensitive_features: object, **target: Any) -> None:
        """Run on a table with its target and groups, and keep the released model."""
        alpha = self.alpha
        if sensitive_features is not None:
            check_consistent_length(sensitive_features, np.empty(rows))
        elif alpha:
            warnings.warn(
                f"alpha = {alpha} weighs a penalty between groups, and there are no sensitive_features: it is left out",
                stacklevel=4,
            )
            alpha = 0.0
        experiment = self._experiment(alpha)
        if self.account is None and experiment.data.account is None and getattr(self, "_clone", 1) > 1:
            warnings.warn(
                f"this is fit {self._clone} of clones of one estimator, and none counts in an account: on the same "
                "records their costs add up. account='NAME' charges them together",
                FitsCompose,
                stacklevel=4,
            )
        records = as_records(table, group=sensitive_features, features=self._features(), **target)
        network = self.model if isinstance(self.model, nn.Module) else None
        result = run(experiment, data=records, model=network, account=self.account)
        # Set first: if loading fails, the spent epsilon and the folder are known.
        self.directory_, self.epsilon_ = result.directory, float(result.summary["epsilon"])
        self.guarantee_ = str(result.summary["guarantee"]["statement"])
        self._trained = load(result.directory, model=network)
        self.shapes_ = read_shapes(result.directory)

    def _experiment(self, alpha: float) -> Experiment:
        """The experiment of `settings`, overridden by the parameters."""
        sections: dict[str, Any]
        if self.settings is None:
            # float64: scikit-learn's checks compare fits more closely than float32 rounds.
            name = f"private-{'classifier' if self._task == 'classification' else 'regressor'}"
            sections = {"name": name, "training": {"preset": "auto", "precision": "float64"}}
        elif isinstance(self.settings, Mapping):
            sections = deep_copy(self.settings)
        else:
            sections = load_experiment(self.settings).model_dump(exclude_unset=True)
        data: Mapping[str, Any] = sections.get("data") or {}
        columns = data.get("columns")
        if (unit := data.get("unit") or (columns.get("unit") if isinstance(columns, Mapping) else None)) is not None:
            raise ExperimentError(
                f"data.unit of the settings is {unit!r}, and an estimator protects rows: one of several rows would be "
                "protected less than the settings say. Train with fedsw.run, or leave data.unit out"
            )
        sections["data"] = {"source": "object", "account": data.get("account")}
        privacy = sections.setdefault("privacy", {})
        privacy.pop("noise_multiplier", None)
        privacy |= {"epsilon": float(self.epsilon), "delta": self.delta}
        objective = {"task": self._task, "alpha": float(alpha)}
        objective |= {} if self.penalty is None else {"penalty": self.penalty}
        sections["objective"] = {**sections.get("objective", {}), **objective}
        if isinstance(self.model, str) and self.model != "auto":
            sections["model"] = {**sections.get("model", {}), "kind": self.model}
        sections["federation"] = {**sections.get("federation", {}), "clients": self.clients}
        if self.random_state is not None:
            sections["seed"] = (
                int(self.random_state)
                if isinstance(self.random_state, int | np.integer)
                else int(check_random_state(self.random_state).randint(_SEEDS))
            )
        return parse_experiment(sections)

    def _names(self) -> list[str]:
        """Names of the columns: a frame's, or x0, x1, ... of an array."""
        names = getattr(self, "feature_names_in_", None)
        return [f"x{i}" for i in range(self.n_features_in_)] if names is None else [str(name) for name in names]

    def _features(self) -> list[dict[str, Any]]:
        """Public facts of every column: categories, or bounds beyond which cells are cut."""
        names, categories = self._names(), self.categories or {}
        numbers = [name for name in names if name not in categories]
        bounds = self._bounds(numbers)
        if unknown := [name for name in categories if name not in names]:
            raise ExperimentError(f"categories name the column {unknown[0]!r}; X has {', '.join(map(repr, names))}")
        return [
            {"name": name, "categories": list(categories[name])} if name in categories else _number(name, bounds[name])
            for name in names
        ]

    def _bounds(self, names: Sequence[str]) -> dict[str, Bounds]:
        """The bounds of numeric columns, by name: those that were given, else the fixed ones, with a warning."""
        by_name: Mapping[str, Bounds]
        if self.bounds is None or isinstance(self.bounds, Mapping):
            by_name = self.bounds or {}
        else:
            by_name = dict.fromkeys((name for name in names if name != TARGET), self.bounds)
        if unknown := [name for name in by_name if name not in {*self._names(), TARGET}]:
            raise ExperimentError(f"bounds name the column {unknown[0]!r}; X has {', '.join(map(repr, self._names()))}")
        if bare := [name for name in names if name not in by_name]:
            low, high = FIXED_BOUNDS
            which = bare[0] if len(bare) == 1 else f"{bare[0]} and {len(bare) - 1} more"
            warnings.warn(
                f"no bounds of {which}: {low:g} to {high:g} are taken, and cells beyond are cut. Standardise with "
                "public numbers, or give bounds=(low, high) from a code book or a law, not from the records",
                BoundsWarning,
                stacklevel=6,
            )
        return {name: (float(low), float(high)) for name in names for low, high in [by_name.get(name, FIXED_BOUNDS)]}

    def _validated(self, X: object, *y: object, **checks: Any) -> Any:
        kind = "numeric" if not self.categories else None
        return validate_data(self, X, *y, dtype=kind, **checks)

    def _table(self, X: Array) -> dict[str, Array]:
        """Columns by name; text where categories are declared, else numbers."""
        return {
            name: X[:, i] if name in (self.categories or {}) else X[:, i].astype(np.float64)
            for i, name in enumerate(self._names())
        }

    def _answers(self, X: object) -> dict[str, Any]:
        check_is_fitted(self)
        answers: dict[str, Any] = self._trained.predictions(self._table(self._validated(X, reset=False)))
        return answers

    def _html_repr(self) -> str:
        """The diagram of scikit-learn; of a fitted one also the guarantee, and each column's function."""
        shown = super()._html_repr()
        if not hasattr(self, "guarantee_"):
            return str(shown)
        figure, shapes = draw_shapes(self.shapes_, type(self).__name__), ""
        if figure is not None:
            shapes = picture(figure, name="shapes", caption="", says=shapes_in_words(self.shapes_)).element
        return f"{shown}{self._trained._repr_html_()}{shapes}"


class PrivateClassifier(ClassifierMixin, _Private):  # type: ignore[misc]
    """A classifier of private records, fair between groups if asked, as an estimator of scikit-learn.

    Guarantee: `fit` releases one run, which satisfies (`epsilon_`, delta)-differential privacy for the replacement of
    one row of X, y and sensitive_features; `guarantee_` states it in full. Predictions cost nothing more. Public are
    the classes and groups that occur, and bounds and categories, which must not come from the records. Fits on the same
    records add up: `account` charges all of them together, also those of cross-validation and of searches. Scores on
    private rows have no noise, so what a search chooses by them is not covered: search with `fedsw.tune`.

    Args:
        epsilon, delta: asked for; delta "auto" is 1/n^2 of n rows, from 1e-9 to 1e-3, or "0.1/n", or a number.
        bounds: (low, high) of all numeric columns, or of each by name (x0, x1, ... of an array); cells beyond are
            clipped, with an infinite pair none. None: -5 to 5, with `BoundsWarning`.
        categories: the values of each column that is text, by its name.
        model: "auto" for a choice by public numbers, "additive", "logistic", another kind, or an `nn.Module`.
        penalty: between groups, "statistical-parity" or "equality-of-odds"; `alpha`, from 0 to 1, weighs it.
        clients: the number of clients that share the rows.
        account: the data set of the account in which every fit is charged: its name, or the account's file. None: that
            of the settings, if they name one.
        random_state: makes a fit reproducible, and epsilon *nominal*: no guarantee. None: secret noise.
        settings: a shipped experiment, a file, or sections, in place of `training.preset = "auto"`; of [data] only the
            account is read, and a privacy unit is refused.

    Attributes:
        classes_, n_features_in_, feature_names_in_: as scikit-learn has them.
        epsilon_, guarantee_: the spent epsilon, and the guarantee in words.
        shapes_: the functions of an additive model, a list; empty for another.
        directory_: the run's folder, with ledger and page (`fedsw report`).

    Raises:
        ValueError, BadRecords, ExperimentError: naming what does not fit, before anything is spent.
        LimitReached: if the account has no room for the fit.
    """

    _task = "classification"

    def fit(self, X: Any, y: Any, *, sensitive_features: object = None) -> PrivateClassifier:
        """Fit on rows X (n, p), classes y (n,) and, for a penalty, groups (n,) or (n, k): columns' combinations."""
        X, y = self._validated(X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}, among n_samples={len(y)}; two or more are needed")
        self._fitted_to(self._table(X), len(y), sensitive_features, target=codes)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probabilities (n, k) of the classes, in the order of `classes_`."""
        answers = self._answers(X)
        return np.column_stack([answers[name] for name in self._trained.names()])

    def decision_function(self, X: Any) -> Array:
        """Log-odds (n,) of the second of two classes; of more the logarithm (n, k) of each one's probability."""
        logs = np.log(np.maximum(self.predict_proba(X), np.finfo(np.float64).tiny))
        return np.asarray(logs[:, 1] - logs[:, 0] if len(self.classes_) == 2 else logs)

    def predict(self, X: Any) -> Array:
        """The more probable class (n,) of each row."""
        chosen = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[chosen])


class PrivateRegressor(RegressorMixin, _Private):  # type: ignore[misc]
    """A regressor of private records: parameters and attributes as `PrivateClassifier`.

    Guarantee: that of `PrivateClassifier`. y is clipped to its bounds, `bounds["target"]`, and predicted within them; a
    pair for all columns does not apply to y.
    """

    _task = "regression"

    def __sklearn_tags__(self) -> Any:
        """Set `poor_score`: scikit-learn's checks fit 200 rows, too few at epsilon 1 for a good score."""
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags

    def fit(self, X: Any, y: Any, *, sensitive_features: object = None) -> PrivateRegressor:
        """Fit on rows X (n, p), numbers y (n,) and, for a penalty, groups (n,) or (n, k): columns' combinations."""
        X, y = self._validated(X, y, y_numeric=True)
        if TARGET in self._names():
            raise ValueError(f"X has a column {TARGET!r}, and `bounds` has y by that name: rename the column")
        low, high = self._bounds([TARGET])[TARGET]
        cut = np.clip(column_or_1d(y, warn=True).astype(np.float64), low, high)
        target = {"name": TARGET, "low": low, "high": high}
        self._fitted_to({**self._table(X), TARGET: cut}, len(y), sensitive_features, targets=target)
        return self

    def predict(self, X: Any) -> Array:
        """Numbers (n,), within the bounds of y."""
        answers = self._answers(X)
        return np.asarray(answers[self._trained.names()[0]])


def _number(name: str, bounds: Bounds) -> dict[str, Any]:
    low, high = bounds
    if math.isinf(low) and math.isinf(high):
        return {"name": name}
    return {"name": name, "low": low, "high": high, "outside": "cut"}
