"""Samples, directions and numbers that a caller gives, of any type: tensors of finite numbers, or refused by name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.settings import real

UNIT = 1e-6
"""How far from 1 the norm of a direction may be: float32 rounds it so far, on its way from a client, too."""


def sample(value: Any, name: str) -> Tensor:
    """A sample (n, d) of finite numbers: a tensor of floats as it is, with its graph; all else in float64.

    Raises:
        ValueError: naming the argument, for another shape, no point, or a number that is not finite.
    """
    points = matrix(value, name)
    if len(points) == 0:
        raise ValueError(
            f"{name} is empty: a Wasserstein distance needs at least one record on each side. Raise the batch "
            "fraction or drop the empty group."
        )
    require_finite(points, name)
    return points


def matrix(value: Any, name: str) -> Tensor:
    """Rows (n, d) of any numbers, NaN and infinities too: private ones, which nothing may raise for. See `sample`."""
    rows = _tensor(value, name)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(f"{name} has shape {tuple(rows.shape)}: expected (n, d), one point a row")
    return rows


def samples(**arrays: Any) -> tuple[Tensor, ...]:
    """Several samples (n, d), (m, d), ... by name, of one dimension; see `sample`."""
    tensors = tuple(sample(value, name) for name, value in arrays.items())
    if len({points.shape[1] for points in tensors}) > 1:
        shapes = " and ".join(f"{name} {tuple(points.shape)}" for name, points in zip(arrays, tensors, strict=True))
        raise ValueError(f"samples have shapes {shapes}: expected (n, d) and (m, d)")
    return tensors


def unit_columns(value: Any, d: int | None = None, *, tolerance: float = UNIT) -> Tensor:
    """Directions (d, k), k >= 1, in float64, detached; their norms are within the tolerance of 1.

    Guarantee: bounds that follow from unit columns (docs/guarantees/sensitivity.md) hold for whatever is returned.

    Raises:
        ValueError: for another shape, no direction, a norm further from 1, or a number that is not finite.
    """
    theta = _tensor(value, "directions").detach().to(torch.float64)
    rows = theta.shape[0] if theta.ndim == 2 and d is None else d
    if theta.ndim != 2 or theta.shape[0] != rows or 0 in theta.shape:
        raise ValueError(
            f"directions have shape {tuple(theta.shape)}{'' if d is None else f' for outputs of dimension {d}'}: "
            f"expected ({'d' if d is None else d}, k) with k >= 1, one direction a column"
        )
    worst = float((torch.linalg.vector_norm(theta, dim=0) - 1).abs().max())
    if not worst <= tolerance:  # NaN, too
        raise ValueError(
            f"a direction's norm is {worst:.3g} from 1, above {tolerance:g}; directions are unit columns: divide each "
            "by its norm"
        )
    return theta


def array(value: Any, name: str, ndim: int) -> NDArray[np.float64]:
    """Finite numbers (n, ...) in ``ndim`` dimensions of any size, float64, at least one; ValueError names others."""
    values = _tensor(value, name).detach().to("cpu", torch.float64)
    if values.ndim != ndim or values.numel() == 0:
        raise ValueError(
            f"{name} has shape {tuple(values.shape)}: expected {ndim} dimension{'s' * (ndim > 1)}, not empty"
        )
    require_finite(values, name)
    numbers: NDArray[np.float64] = values.numpy()
    return numbers


def column(value: Any, name: str) -> NDArray[np.float64]:
    """A column (n,) of any numbers, float64, as `matrix` takes rows."""
    values = _tensor(value, name).detach().to("cpu", torch.float64)
    if values.ndim != 1:
        raise ValueError(f"{name} has shape {tuple(values.shape)}: expected (n,), one number a record")
    numbers: NDArray[np.float64] = values.numpy()
    return numbers


def require_finite(values: Tensor, name: str) -> None:
    """Refuse a tensor of any shape that holds NaN or an infinity: ValueError, with its name and where the first is."""
    finite = values.detach().isfinite()
    if not bool(finite.all()):
        where = tuple(int(index) for index in (~finite).nonzero()[0])
        raise ValueError(
            f"{name}{list(where)} = {float(values.detach()[where])} is not finite: leave such rows out, or lower the "
            "learning rate of the model that gave them"
        )


def positive(value: Any, name: str) -> float:
    """A number that is finite and above 0; ValueError, with its name, for any other."""
    number = real(value, name)
    if not 0 < number < math.inf:
        why = "zero or negative sigma gives no protection, " if name == "sigma" else ""
        raise ValueError(f"{name} is {number}; {why}it must be finite and above 0")
    return number


def _tensor(value: Any, name: str) -> Tensor:
    """A tensor of real numbers, floats as they are, anything else in float64."""
    if not isinstance(value, Tensor):
        try:
            numbers = np.asarray(value)
        except ValueError:  # rows of unequal lengths
            numbers = np.asarray(None)
        if numbers.dtype.kind not in "biuf":
            raise ValueError(
                f"{name} is no array of numbers ({type(value).__name__}): give an array or a tensor of them"
            )
        value = torch.from_numpy(np.array(numbers, dtype=np.float64))
    if value.is_complex():
        raise ValueError(f"{name} holds complex numbers; only real ones have an order")
    tensor: Tensor = value if value.is_floating_point() else value.to(torch.float64)
    return tensor
