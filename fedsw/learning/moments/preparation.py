"""Uses of released moments: a public linear map in front of a model, and a start for its training."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsw._tools.randomness import Stream
from fedsw.experiment.compatibility import relation_of
from fedsw.experiment.preset_rules import RATE_BY_NOISE
from fedsw.experiment.task_kinds import MODELS
from fedsw.learning import models
from fedsw.learning.models.outer_layers import first_layer, last_layer, made_up_inputs, same_outputs
from fedsw.learning.moments.released_moments import Moments
from fedsw.learning.tasks.problem import Problem

LEAST_EIGENVALUE = 1e-6
"""Least eigenvalue of a covariance, as a part of the average: no direction is stretched as if it varied less."""

LEAST_VARIANCE = 1e-10
"""Least number added to the eigenvalues of a covariance: columns that are constant leave all of them 0."""

USUAL_STEEPNESS = 0.2
"""Steepness of a sigmoid that one learning rate fits: it is 1/4 in the middle, and less where a class is rare."""

MOST_STRETCHED = 8.0
"""Most that inputs are stretched for either reason: a step grows with the square."""

LEAST_RESIDUAL = 0.02
"""Least residual that a regression is taken to have, of targets in [0, 1]."""

SHAKEN = 0.35
"""Standard deviation that the noise of all rounds may give a classifier's output before its sigmoid: more of it turns
answers about, where a class is rare most of all."""

SHAKEN_ERROR = 0.15
"""The same of a number that is predicted, as a part of the target's standard deviation."""

SHAKEN_BY_NOISE = 0.3
"""The same of inputs "by-noise", with a length that follows from it, and no smaller either: the steps of few rounds in
noise are then as long as answers bear. Chosen on sets that judge nothing (`python -m benchmarks.rivals.shapes`)."""

LEAST_VARIED = 0.05
"""Least variance of such an input, as a part of what it would be if nothing were hidden."""

SEEN_OF_IMAGES = 0.1
"""Part of lambda that is added to the eigenvalues of filtered images. Their spectrum is steep: most directions vary
little, and so many of them together tell classes apart. Chosen on USPS."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """A fixed public map of inputs: x becomes (x - centre) matrix, before a model sees it.

    ``centre`` (p,) and ``matrix`` (p, p) are float64; ``scale`` is what clips are multiplied by: the typical norm of a
    record's input with a 1 for the bias, times, for a regression, the typical gradient of its error in the outputs.
    """

    centre: Tensor
    matrix: Tensor
    scale: float

    def flat(self) -> Tensor:
        """One vector (p + p*p + 1,) float64: centre, matrix by rows, scale."""
        return torch.cat([self.centre, self.matrix.reshape(-1), torch.tensor([self.scale], dtype=torch.float64)])

    @staticmethod
    def length(features: int) -> int:
        """Length of `flat`."""
        return features + features**2 + 1

    @staticmethod
    def of_flat(vector: Tensor, features: int) -> Preparation:
        """The preparation behind `flat`; ValueError if the vector (v,) is none."""
        length = Preparation.length(features)
        if tuple(vector.shape) != (length,):
            raise ValueError(
                f"a preparation of {features} inputs has {length} numbers; this one has shape {tuple(vector.shape)}"
            )
        if not bool(torch.isfinite(vector).all()):
            raise ValueError("a preparation has a number that is not finite")
        vector = vector.detach().to("cpu", torch.float64)
        scale = float(vector[-1])
        if not scale > 0:
            raise ValueError(f"a preparation's scale is {scale}; it is positive")
        return Preparation(vector[:features].clone(), vector[features:-1].reshape(features, features).clone(), scale)

    def apply(self, inputs: Tensor) -> Tensor:
        """Inputs (n, p) as a prepared model takes them, in their own precision and on their device."""
        centre, matrix = (values.to(inputs.device, inputs.dtype) for values in (self.centre, self.matrix))
        return (inputs - centre) @ matrix


def prepare(problem: Problem, moments: Moments) -> Preparation:
    """The preparation that moments give: inputs about their mean, whitened as far as noise lets them be seen.

    Eigenvalues of the covariance are cut at 0 and lambda is added (`Moments.hidden`), so that directions that the noise
    hides are scaled alike and not blown up. All are then stretched by one factor, so that one learning rate fits where
    noise hides much, and, in front of a linear model, where the sigmoid is flat; less, with shorter gradients, where
    the noise of the rounds would shake the outputs. A step's length goes with the square of the factor. Moments of the
    target alone leave inputs as they are.
    """
    if not moments.layout.features:
        p = problem.features
        return Preparation(torch.zeros(p, dtype=torch.float64), torch.eye(p, dtype=torch.float64), 1.0)
    if MODELS.get(problem.experiment.model.kind).filtered:
        return _of_images(moments)
    if problem.experiment.model.inputs == "by-noise":
        return _by_noise(problem, moments)
    whitening = whitening_of(moments)
    varied = max(float(np.trace(whitening @ moments.covariance @ whitening)), 1e-3 * moments.layout.features)
    stretch = min((moments.layout.features / varied) ** (1 / 3), MOST_STRETCHED)
    linear = MODELS.get(problem.experiment.model.kind).linear
    if linear:
        stretch *= min(max(1.0, math.sqrt(USUAL_STEEPNESS / _steepness(moments))), MOST_STRETCHED)
    square = min(stretch**2 * varied, 100.0 * moments.layout.features)
    scale = math.sqrt(1 + square) * (1.0 if moments.layout.classes else _gradient(moments, whitening))
    most = SHAKEN if moments.layout.classes else SHAKEN_ERROR * _span(moments, LEAST_RESIDUAL**2)
    calm = _calming(square, scale * noise_of_rounds(problem, moments), most) if linear else 1.0
    matrix = torch.from_numpy(calm * stretch * whitening)
    return Preparation(torch.from_numpy(moments.mean.copy()), matrix, calm * scale)


def _of_images(moments: Moments) -> Preparation:
    """The preparation of filtered images: with a part of lambda, and nothing stretched."""
    varied = max(variance_in(moments, SEEN_OF_IMAGES), 1e-3 * moments.layout.features)
    matrix = torch.from_numpy(whitening_of(moments, SEEN_OF_IMAGES))
    return Preparation(torch.from_numpy(moments.mean.copy()), matrix, math.sqrt(1 + varied))


def _by_noise(problem: Problem, moments: Moments) -> Preparation:
    """The preparation with a length that follows from the known noise of the rounds, for a linear model of numbers.

    Inputs of squared length s^2 and a constant have the noise N (1 + s^2) in an answer before its sigmoid, where N is
    that of a parameter with gradients of one record clipped as if its inputs had length 1: clips are longer by
    sqrt(1 + s^2), and so is what multiplies the parameters. s follows from what answers bear, at a learning rate of
    RATE_BY_NOISE; another rate makes steps so much longer. No direction is so long that plain steps would diverge.
    """
    features, training = moments.layout.features, problem.experiment.training
    whitening = whitening_of(moments)
    varied = min(max(variance_in(moments, 1.0), LEAST_VARIED * features), float(features))
    gradient = _gradient(moments, whitening)
    noise = gradient * noise_of_rounds(problem, moments) * RATE_BY_NOISE / training.learning_rate
    least = max(0.5 * moments.noise_of_squares, LEAST_RESIDUAL**2)
    square = max(SHAKEN_BY_NOISE * _span(moments, least) / max(noise, 1e-12) - 1, 0.25)
    factor = min(square / varied, 1 / (RATE_BY_NOISE * _steepness(moments)))
    matrix = torch.from_numpy(math.sqrt(factor) * whitening)
    return Preparation(torch.from_numpy(moments.mean.copy()), matrix, math.sqrt(1 + factor * varied) * gradient)


def noise_of_rounds(problem: Problem, moments: Moments) -> float:
    """Standard deviation that the noise of all rounds, by the moments' own, gives each parameter, about."""
    experiment, share = problem.experiment, float(problem.experiment.privacy.moments)
    if not moments.sigma or not 0 < share < 1:
        return 0.0
    beside = share / experiment.left_to_rounds
    whole = moments.sigma / moments.layout.moved_for(relation_of(experiment))
    whole *= math.sqrt(beside * experiment.training.rounds)
    moved = problem.clipped.sensitivities([max(1, size) for size in moments.records], problem.clipped.planned_spreads())
    return experiment.training.noise_kept() * whole * max(sensitivity.value for sensitivity in moved)


def _calming(square: float, noise: float, most: float) -> float:
    """The largest c <= 1 that shakes outputs by at most `most`, which is c noise sqrt(1 + c^2 square)."""
    if noise * math.sqrt(1 + square) <= most:
        return 1.0
    return math.sqrt((math.sqrt(1 + 4 * square * (most / noise) ** 2) - 1) / (2 * square))


def _span(moments: Moments, least: float) -> float:
    """Slope of logits by deviations of the targets, given a lower bound of their variance."""
    deviation = math.sqrt(max(float(np.mean(np.diag(moments.target_covariance))), least))
    means = moments.target_mean
    steep = math.sqrt(float(np.mean((means * (1 - means)) ** 2)))
    return deviation / max(steep, LEAST_RESIDUAL)


def _steepness(moments: Moments) -> float:
    """Mean second derivative of the loss in the outputs at the constant that fits best."""
    means = moments.target_mean
    steep = means * (1 - means)
    return float(np.mean(steep if moments.layout.classes else np.maximum(2 * steep**2, 1e-4)))


def _gradient(moments: Moments, whitening: NDArray[np.float64]) -> float:
    """Typical norm of the gradient of squared errors in the outputs, under a sigmoid."""
    steep = moments.target_mean * (1 - moments.target_mean)
    return 2 * residual_of(moments, whitening) * max(float(np.sqrt(np.mean(steep**2))), LEAST_RESIDUAL)


def whitening_of(moments: Moments, part: float = 1.0) -> NDArray[np.float64]:
    """The symmetric matrix (p, p) that makes the covariance within classes about 1 where noise does not hide it.

    A ``part`` of lambda is added to the eigenvalues.
    """
    values, vectors = np.linalg.eigh(moments.within)
    values = np.maximum(values, 0.0)
    whitening: NDArray[np.float64] = (vectors / np.sqrt(values + _added(moments, values, part))) @ vectors.T
    return whitening


def _added(moments: Moments, values: NDArray[np.float64], part: float) -> float:
    return max(part * moments.hidden, LEAST_EIGENVALUE * float(values.mean()), LEAST_VARIANCE)


def variance_in(moments: Moments, part: float) -> float:
    """The variance of inputs in all directions together, after `whitening_of`, as the records without noise have it.

    The released covariance is too large where its noise is, and the whitening, which is made of the same noise, too
    small: tr(W C W) counts the noise twice, with the wrong sign. What it has too little is known, by Stein's identity:
    E tr(N g(C)) = t^2 sum_ij g[v_i, v_j], of divided differences of g = 1/(v + lambda), and g' twice on the diagonal,
    for noise N of variance t^2 beside the diagonal and 2 t^2 on it.
    """
    values, vectors = np.linalg.eigh(moments.within)
    squares = 1 / (np.maximum(values, 0.0) + _added(moments, np.maximum(values, 0.0), part))
    apart, differing = np.subtract.outer(values, values), np.subtract.outer(squares, squares)
    slopes = np.divide(differing, apart, out=np.zeros_like(apart), where=np.abs(apart) > 1e-15)
    slopes[np.diag_indices(len(values))] = np.where(values > 0, -2 * squares**2, 0.0)
    between = np.diag(vectors.T @ (moments.covariance - moments.within) @ vectors)
    return float(np.sum(squares * (values + between)) - moments.noise**2 / 2 * np.sum(slopes))


def residual_of(moments: Moments, whitening: NDArray[np.float64]) -> float:
    """Root mean square residual of least squares over records, given the matrix (p, p) of `whitening_of`."""
    slopes = _slopes(moments, whitening)
    explained = 2 * np.sum(slopes * (whitening @ moments.cross)) - np.sum(
        slopes * (whitening @ moments.covariance @ whitening @ slopes)
    )
    left = float(np.trace(moments.target_covariance)) - max(0.0, float(explained))
    least = max(
        LEAST_RESIDUAL**2 * moments.layout.targets, moments.noise_of_squares * math.sqrt(moments.layout.targets)
    )
    return math.sqrt(min(max(left, least), float(moments.layout.targets)))


def _slopes(moments: Moments, whitening: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares in prepared inputs, (p, t): the posterior mean by the known noise, direction by direction.

    Before anything is seen slopes in raw inputs are normal and alike in all directions. How long they are follows from
    the covariances with a target, less what noise alone makes of these: it is that of products, of the inputs' mean
    times the target's distance from its middle, and of the target's mean times the inputs'.
    """
    # The square of the whitening is the inverse of (covariance + lambda).
    roots, vectors = np.linalg.eigh(whitening)
    varied = roots[:, None] ** -2
    seen, shift = vectors.T @ moments.cross, vectors.T @ moments.shift
    away = moments.target_mean - moments.layout.middle
    noise = moments.noise_of_products**2 + (away * moments.noise_of_inputs) ** 2
    noise = noise + (shift[:, None] * moments.noise_of_targets) ** 2
    squared_length = np.maximum(0.0, np.sum(seen**2 - noise, axis=0)) / np.sum(varied**2, axis=0)
    signal = squared_length * varied**2
    slopes: NDArray[np.float64] = vectors @ (roots[:, None] * seen * signal / np.maximum(signal + noise, 1e-300))
    return slopes


def started(problem: Problem, preparation: Preparation, moments: Moments, model: nn.Module) -> Tensor:
    """Flat parameters (r,) of a model that takes prepared inputs, as `fedsw.learning.models.flatten` orders them.

    A linear model starts at the closed form: least squares under a sigmoid for numbers, the discriminant of a pooled
    covariance for classes, and the constant where moments are of the target only. Of a network the last layer's bias
    gives the mean target, or the classes' shares, for inputs that are normal; where the outputs do not come from such a
    layer it stays as it is. The model itself is not changed.
    """
    model = copy.deepcopy(model)
    layout, features = moments.layout, len(preparation.centre)
    last, outputs = last_layer(model, features), 1 if layout.classes and layout.targets == 2 else layout.targets
    if last is None or last.out_features != outputs:
        return models.flatten(model)
    with torch.no_grad():
        if last.in_features == features and first_layer(model, features) is last:
            slopes, constants = np.zeros((features, outputs)), constant_outputs(moments)
            if layout.features:
                slopes, constants = closed_form(moments, preparation)
            last.weight.copy_(torch.from_numpy(slopes.T.copy()))
            last.bias.copy_(torch.from_numpy(constants))
        else:
            inputs = made_up_inputs(features, model)
            last.bias.add_(torch.from_numpy(constant_outputs(moments)).to(last.bias) - model(inputs).mean(dim=0))
    return models.flatten(model)


def constant_outputs(moments: Moments) -> NDArray[np.float64]:
    """Outputs (d,) before the last sigmoid or softmax that give the mean target or the classes' shares."""
    means = moments.target_mean
    if not moments.layout.classes:
        return _logit(means)
    logarithms = np.log(means)
    return logarithms[1:] - logarithms[:1] if len(means) == 2 else logarithms


def closed_form(moments: Moments, preparation: Preparation) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Slopes (p, d) and constants (d,) of a linear model in prepared inputs, before the last sigmoid or softmax."""
    whitening = whitening_of(moments)
    find = _discriminant if moments.layout.classes else _least_squares
    slopes, constants = find(moments, whitening)
    return np.linalg.solve(preparation.matrix.numpy(), whitening @ slopes), constants


def _discriminant(moments: Moments, matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log-odds, up to a common term, of classes with one covariance: the inverse of the squared whitening."""
    shares = moments.target_mean
    noise = moments.noise_of_products * np.linalg.norm(matrix) / shares
    means = (moments.class_shifts @ matrix).T
    # A class is shrunk by the part of its mean's square that noise gives it: max(0, 1 - noise^2 / |mean|^2).
    means *= np.maximum(0.0, 1 - np.square(noise) / np.maximum(np.sum(means**2, axis=0), 1e-300))
    constants = np.log(shares) - 0.5 * np.sum(means**2, axis=0)
    if len(shares) == 2:
        return means[:, 1:] - means[:, :1], constants[1:] - constants[:1]
    return means, constants


def _least_squares(moments: Moments, matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least squares for numbers under a sigmoid: slopes over its mean steepness (Brillinger 1982), by target."""
    slopes = _slopes(moments, matrix)
    varied = matrix @ moments.covariance @ matrix
    means, constants = moments.target_mean, np.zeros(slopes.shape[1])
    for target in range(slopes.shape[1]):
        spread = math.sqrt(max(0.0, float(slopes[:, target] @ varied @ slopes[:, target])))
        constants[target], steepness = _under_sigmoid(float(means[target]), spread)
        slopes[:, target] /= steepness
    return slopes, constants


_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(21)
_NODE_WEIGHTS = _NODE_WEIGHTS / _NODE_WEIGHTS.sum()


def _under_sigmoid(mean: float, spread: float) -> tuple[float, float]:
    """Constant b and mean steepness s with E g(b + N) = mean and s^2 Var N = spread^2, for normal N and a sigmoid g."""
    constant = float(_logit(np.array([mean]))[0])
    steepness = max(mean * (1 - mean), 0.02)
    for _ in range(50):
        values = 1 / (1 + np.exp(-(constant + spread / steepness * _NODES)))
        steep = float(_NODE_WEIGHTS @ (values * (1 - values)))
        constant += 0.5 * (mean - float(_NODE_WEIGHTS @ values)) / max(steep, 0.02)
        steepness = 0.5 * (steepness + max(steep, 0.02))
    return min(max(constant, -5.0), 5.0), steepness


def _logit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    inside = np.clip(values, 0.01, 0.99)
    return np.log(inside) - np.log1p(-inside)


def foldable(model: nn.Module, features: int) -> bool:
    """Say whether a preparation can be folded into the model's first layer, by a trial on made-up inputs."""
    first = first_layer(model, features)
    if first is None:
        return False
    made_up = Stream.seeded(0, "made-up preparation").normals(features + features**2)
    matrix = np.eye(features) + 0.3 / math.sqrt(features) * made_up[features:].reshape(features, features)
    tried = Preparation(torch.from_numpy(made_up[:features].copy()), torch.from_numpy(matrix), 1.0)
    double = copy.deepcopy(model).double()
    inputs = made_up_inputs(features, double)
    try:
        with torch.no_grad():
            wanted, returned = double(tried.apply(inputs)), folded(double, tried)(inputs)
    except (RuntimeError, ValueError, TypeError):
        return False
    return same_outputs(wanted, returned)


def folded(model: nn.Module, preparation: Preparation) -> nn.Module:
    """A copy of a `foldable` model of prepared inputs for raw ones: (x - m) P W' + b = x (W P')' + b - m P W'."""
    features = len(preparation.centre)
    model = copy.deepcopy(model)
    first = first_layer(model, features)
    if first is None:
        raise ValueError(
            f"{type(model).__name__} has no linear layer with a bias that takes its {features} inputs as they come; a "
            "preparation cannot be folded into it"
        )
    with torch.no_grad():
        weight = first.weight.double().cpu() @ preparation.matrix.T
        bias = first.bias.double().cpu() - weight @ preparation.centre
        first.weight.copy_(weight)
        first.bias.copy_(bias)
    return model
