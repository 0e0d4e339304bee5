"""Models without privacy, trained as well as can be: scikit-learn's, or the run's own objective at rest."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsw.data import Records
from fedsw.learning.tasks.compared import objective_of
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.transport.sliced import public_directions

STAGE = 200
"""Steps between two looks at the loss; the rate falls to 0 within each."""
_MOST_STAGES = 6
_RATE = 0.1
"""Stages after which a model that still moves is taken as it is, and Adam's learning rate at the beginning of each."""
_STILL = 2e-3
"""Share of the loss below which a stage that changed it by less has come to rest."""


class Standardised(nn.Module):
    """A network, which takes (n, p), behind columns that are moved and scaled."""

    mean: Tensor
    scale: Tensor

    def __init__(self, network: nn.Module, inputs: Tensor) -> None:
        super().__init__()
        self.network = network
        spread = inputs.std(dim=0, correction=0)
        self.register_buffer("mean", inputs.mean(dim=0))
        self.register_buffer("scale", torch.where(spread > 0, spread, torch.ones_like(spread)))

    def forward(self, features: Tensor) -> Tensor:
        """Return the outputs of the network for inputs (n, p)."""
        outputs: Tensor = self.network((features - self.mean) / self.scale)
        return outputs


@dataclass(frozen=True)
class AtRest:
    """A trained model, the steps that it took, and whether its loss had come to rest then."""

    model: nn.Module
    steps: int
    still: bool


def converged(problem: Problem, records: Records) -> AtRest:
    """Minimise the experiment's objective, penalties included, on all records by steps of Adam; nothing is noised."""
    objective = objective_of(problem.experiment, problem.shape)
    order = torch.argsort(objective.cell_of(records.sensitive, records.target), stable=True)
    ordered = records.take(order)
    counts = objective.cell_of(ordered.sensitive, ordered.target).bincount(minlength=len(objective.cells)).tolist()
    inputs, slicing = problem.given(ordered), problem.experiment.slicing
    model = Standardised(problem.build_model(), inputs.features)
    optimizer = torch.optim.Adam(model.parameters(), lr=_RATE)
    before = math.inf
    for stage in range(_MOST_STAGES):
        for step in range(STAGE):
            for group in optimizer.param_groups:
                group["lr"] = _RATE * (1 - step / STAGE)
            optimizer.zero_grad(set_to_none=True)
            raw = model(inputs.features)
            heads = [penalty.selected(raw, inputs, problem.task.outputs) for penalty in objective.penalties]
            number = stage * STAGE + step
            thetas = [
                public_directions(
                    head.shape[1], slicing.directions, slicing.scheme, slicing.seed, "reference", str(index), number
                ).to(head.device)
                for index, head in enumerate(heads)
            ]
            # the gradient of the whole: the task loss's own, and the penalties' through their outputs
            parted = [[*torch.split(head.detach().double(), counts)] for head in heads]
            pulls, _ = objective.cotangents(parted, thetas, _no_sample, ties=slicing.ties)
            total = objective.task_share * problem.clipped.losses(raw, inputs).double().mean()
            for head, pull in zip(heads, pulls, strict=True):
                total = total + (head.double() * torch.cat(pull).to(head.device)).sum()
            total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            loss = float(problem.clipped.losses(model(inputs.features), inputs).double().mean())
        if abs(before - loss) <= _STILL * max(abs(loss), _STILL):
            return AtRest(model.eval(), (stage + 1) * STAGE, still=True)
        before = loss
    return AtRest(model.eval(), _MOST_STAGES * STAGE, still=False)


def _no_sample(number: int, count: int) -> Tensor:
    raise ValueError(f"penalty {number} compares {count} outputs with a sample; groups alone are compared here")


Array = NDArray[np.float64]
Predict = Callable[[Array], Array]
"""From inputs (n, p) to probabilities of all classes (n, k), or numbers (n, t)."""

MISSING = (
    "it trains with scikit-learn, which is not installed: `pip install '.[app]'` in fedsw's checkout (or "
    "`pip install scikit-learn`)"
)
_FOLDS = 3
"""Folds of the cross-validation."""
_MOST = 20_000
"""Records that a choice between models looks at; the chosen one is trained on all."""
_LEAST = 1e-6
"""Least probability that a model is taken to mean: one that is certain and wrong would lose without end."""
_STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
_LEAVES = (8, 31)
"""Its grid: C of a logistic regression or alpha of a ridge regression, and leaves of boosted trees."""


@dataclass(frozen=True)
class ModelCandidate:
    """A model that may be chosen."""

    name: str
    settings: str
    made: Callable[[], Any]


@dataclass(frozen=True)
class Fitted:
    """A trained model of scikit-learn's: what it is, how it is set, and what it predicts."""

    name: str
    settings: str
    predict: Predict


class Outside(nn.Module):
    """A model from elsewhere in the place of a network: returns what the task's sigmoid or softmax makes outputs of.

    It predicts probabilities of so many classes, or numbers in [0, 1] where there are none.
    """

    def __init__(self, predict: Predict, classes: int) -> None:
        super().__init__()
        self._predict, self._classes = predict, classes

    def forward(self, features: Tensor) -> Tensor:
        """Logits (n, d) of inputs (n, p)."""
        values = self._predict(features.detach().cpu().double().numpy())
        outputs = torch.from_numpy(np.clip(values, _LEAST, 1 - _LEAST))
        logits = outputs.log() if self._classes > 2 else torch.logit(outputs[:, 1:] if self._classes else outputs)
        return logits.to(features)


def fit(
    features: Array, target: NDArray[Any], *, classes: int, trees: bool, units: NDArray[np.int64], seed: int
) -> Fitted:
    """The candidate that predicts best on records left out, trained on all of them; nothing is noised.

    Features are (n, p), targets classes (n,) or, of 0 classes, numbers (n, t); rows of one unit (n,) are left out
    together. Boosted trees are candidates beside linear models, if asked for.
    """
    return _best([*_candidates(classes, trees=trees)], features, target, classes=classes, units=units, seed=seed)


def fit_plain(features: Array, target: NDArray[Any], *, classes: int, units: NDArray[np.int64], seed: int) -> Fitted:
    """`fit` of linear models of targets (n,), two classes or numbers, without scikit-learn: equal but for rounding."""
    name, weight = ("logistic", "C") if classes else ("ridge", "alpha")
    kind: Callable[[float], Any] = partial(PlainLogistic, path=[]) if classes else PlainRidge
    among = [
        ModelCandidate(f"{name} regression", f"{weight} = {strength:g}", partial(kind, strength))
        for strength in _STRENGTHS
    ]
    return _best(among, features, target, classes=classes, units=units, seed=seed, valley=True)


def _best(
    among: Sequence[ModelCandidate],
    features: Array,
    target: NDArray[Any],
    *,
    classes: int,
    units: NDArray[np.int64],
    seed: int,
    valley: bool = False,
) -> Fitted:
    """The best of candidates; in a ``valley``, where losses fall and then rise, none beyond the first rise is tried."""
    folds, scores = _folds(units, seed), list[float]()
    taken = folds >= 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of steps that did not suffice: such a candidate is as good as its score
        for candidate in among:
            scores.append(_score(candidate, features[taken], target[taken], folds[taken], classes))
            if valley and scores[-1] > min(scores):
                break
        best = among[int(np.argmin(scores))]
        return Fitted(best.name, best.settings, _fitted(best, features, target, classes))


def _candidates(classes: int, *, trees: bool) -> Iterator[ModelCandidate]:
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.multioutput import MultiOutputRegressor
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ModuleNotFoundError as fault:
        raise ModuleNotFoundError(f"the reference without privacy cannot be had: {MISSING}") from fault

    def linear(strength: float) -> Any:
        model = LogisticRegression(C=strength, max_iter=1_000) if classes else Ridge(alpha=strength)
        return make_pipeline(StandardScaler(), model)

    def boosted(leaves: int) -> Any:
        kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
        model = kind(max_leaf_nodes=leaves, early_stopping=False, random_state=0)
        return model if classes else MultiOutputRegressor(model)

    name, weight = ("logistic", "C") if classes else ("ridge", "alpha")
    for strength in _STRENGTHS:
        yield ModelCandidate(f"scikit-learn's {name} regression", f"{weight} = {strength:g}", partial(linear, strength))
    for leaves in _LEAVES if trees else ():
        yield ModelCandidate("scikit-learn's gradient boosted trees", f"{leaves} leaves", partial(boosted, leaves))


def _folds(units: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """In which fold each record is (n,), all rows of a unit in one; -1 for those that the choice does not look at."""
    named, position = np.unique(units, return_inverse=True)
    order = np.random.default_rng([11, seed]).permutation(len(named))
    most = max(_FOLDS, round(_MOST * len(named) / len(units)))
    folds: NDArray[np.int64] = np.where(order < most, order % _FOLDS, -1)[position]
    return folds


def _score(
    candidate: ModelCandidate, features: Array, target: NDArray[Any], folds: NDArray[np.int64], classes: int
) -> float:
    """Mean loss on the folds that are left out: of two wrong answers the surer one costs more, or squared error."""
    losses = []
    for fold in range(_FOLDS):
        trained_on = folds != fold
        if trained_on.all() or not trained_on.any():
            continue
        predicted = _fitted(candidate, features[trained_on], target[trained_on], classes)(features[~trained_on])
        losses.append(_loss(predicted, target[~trained_on], classes))
    return float(np.mean(np.concatenate(losses))) if losses else 0.0


def _loss(predicted: Array, target: NDArray[Any], classes: int) -> Array:
    if not classes:
        return np.asarray(np.square(predicted - target).sum(axis=1))
    return np.asarray(-np.log(np.clip(predicted[np.arange(len(target)), target], _LEAST, 1.0)))


def _fitted(candidate: ModelCandidate, features: Array, target: NDArray[Any], classes: int) -> Predict:
    """Train a candidate and return its predictions; a constant where records are of one class only."""
    if not classes:
        trained = candidate.made().fit(features, target)
        return lambda inputs: np.asarray(trained.predict(inputs), dtype=np.float64).reshape(len(inputs), -1)
    present = np.unique(target)
    model = candidate.made().fit(features, target) if len(present) > 1 else None

    def predict(inputs: Array) -> Array:
        predicted = np.zeros((len(inputs), classes))
        predicted[:, present] = 1.0 if model is None else model.predict_proba(inputs)
        return predicted

    return predict


# Linear models by numpy: those of scikit-learn, without the second that its import takes. Each minimises what
# scikit-learn's model of columns about their mean, in standard deviations, minimises, and is trained and asked for its
# predictions in the same way: `fit` with features (n, p), and `predict_proba` or `predict`.

_NEWTON_STEPS = 50
_LEAST_GRADIENT = 1e-5
"""Largest number of the mean loss's gradient at which it is at rest; scikit-learn stops at ten times as much."""
_LARGEST_MARGIN, _LEAST_CURVATURE, _LEAST_STEP = 500.0, 1e-9, 1e-12
"""A margin that leaves no loss, and of which float64 still has the exponential; what keeps a curvature invertible if
the model is certain of every record, as nothing pulls the intercept; a step that is too short to be halved."""


@dataclass
class _Columns:
    """Columns about their mean, in standard deviations; those that do not vary are 0."""

    mean: Array
    spread: Array

    @classmethod
    def of(cls, features: Array) -> _Columns:
        spread = features.std(axis=0)
        return cls(features.mean(axis=0), np.where(spread > 10 * np.finfo(np.float64).eps, spread, 1.0))

    def of_rows(self, features: Array) -> Array:
        return np.asarray((features - self.mean) / self.spread)


@dataclass
class PlainLogistic:
    """The sum of log losses of two classes and |w|^2 / 2C, at its least, by Newton's steps, halved until they descend.

    Models that share a ``path`` begin where the last of them came to rest: beside it the next is a few steps away.
    """

    strength: float
    path: list[Array] = field(default_factory=list, repr=False)
    _columns: _Columns = field(init=False, repr=False)
    _weights: Array = field(init=False, repr=False)

    def fit(self, features: Array, target: NDArray[Any]) -> PlainLogistic:
        """Train on features (n, p) and a target (n,) of two values; the higher one is the class of predictions."""
        self._columns = _Columns.of(features)
        rows = np.hstack([self._columns.of_rows(features), np.ones((len(features), 1))])
        signs = np.where(target == target.max(), 1.0, -1.0)
        pull = np.append(np.full(features.shape[1], 1 / self.strength), 0.0)  # none at the intercept

        def loss(weights: Array) -> float:
            return float(np.logaddexp(0.0, -signs * (rows @ weights)).sum() + weights @ (pull * weights) / 2)

        weights = self.path.pop() if self.path else np.zeros(rows.shape[1])
        value = loss(weights)
        for _ in range(_NEWTON_STEPS):
            wrong = 1 / (1 + np.exp(np.minimum(signs * (rows @ weights), _LARGEST_MARGIN)))
            gradient = pull * weights - (signs * wrong) @ rows
            if np.abs(gradient).max() <= _LEAST_GRADIENT * len(rows):
                break
            bent = rows * np.sqrt(wrong * (1 - wrong))[:, None]
            curvature = bent.T @ bent + np.diag(pull + _LEAST_CURVATURE)
            step = np.linalg.solve(curvature, gradient)
            while (after := loss(weights - step)) > value and np.abs(step).max() > _LEAST_STEP:
                step /= 2
            weights, value = weights - step, after
        self.path.append(weights)
        self._weights = weights
        return self

    def predict_proba(self, features: Array) -> Array:
        """Return probabilities (n, 2) for features (n, p)."""
        scores = self._columns.of_rows(features) @ self._weights[:-1] + self._weights[-1]
        small = np.exp(-np.abs(scores))
        likely = np.where(scores > 0, 1.0, small) / (1 + small)
        return np.stack([1 - likely, likely], axis=1)


@dataclass
class PlainRidge:
    """The sum of squared errors and alpha |w|^2 at its least."""

    alpha: float
    _columns: _Columns = field(init=False, repr=False)
    _weights: Array = field(init=False, repr=False)
    _middle: Array = field(init=False, repr=False)

    def fit(self, features: Array, target: Array) -> PlainRidge:
        """Train on features (n, p) and targets (n, t)."""
        self._columns = _Columns.of(features)
        self._middle = np.asarray(target.mean(axis=0), dtype=np.float64)
        rows = self._columns.of_rows(features)
        matrix = rows.T @ rows + self.alpha * np.eye(rows.shape[1])
        self._weights = np.asarray(np.linalg.solve(matrix, rows.T @ (target - self._middle)), dtype=np.float64)
        return self

    def predict(self, features: Array) -> Array:
        """Return answers (n, t) for features (n, p)."""
        return np.asarray(self._columns.of_rows(features) @ self._weights + self._middle)
