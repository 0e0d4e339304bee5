"""Arrays of the accounting: numpy's on the processor, which does without torch; torch's on another device.

Formulas are written once: `library` and `special` are where functions of that name are, for the arrays at hand.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from fedsw._tools.later import torch

if TYPE_CHECKING:
    from torch import Tensor

Floats: TypeAlias = NDArray[np.float64]
Values = TypeVar("Values", NDArray[np.float64], "Tensor")
"""float64, of numpy or of torch."""

_BITS = 63  # of a mantissa, beside the leading one
_NEAR_ONE = -0.3

Device: TypeAlias = "torch.device | Literal['cpu']"
"""``"cpu"``: numpy's arrays on the processor. A device of torch: its tensors there."""


def library(values: object) -> Any:
    """Module of functions on such arrays: numpy or torch."""
    return np if _is_numpy(values) else torch


def special(values: object) -> Any:
    """Module of special functions on such arrays: scipy's or torch's."""
    return scipy.special if _is_numpy(values) else torch.special


def quiet() -> np.errstate:
    """Context in which logarithms of 0 and numbers too large are infinite without a warning, as torch's are."""
    return np.errstate(divide="ignore", over="ignore", invalid="ignore")


def put(values: Floats, device: Device) -> Any:
    """Move an array of numpy to a device."""
    return values if isinstance(device, str) else torch.from_numpy(values).to(device)


def like(values: NDArray[Any], other: Any) -> Any:
    """Move an array of numpy to the library and the device of another array."""
    return values if _is_numpy(other) else torch.from_numpy(np.asarray(values)).to(other.device)


def on_processor(values: Any) -> NDArray[Any]:
    """Return the values as an array of numpy."""
    moved: NDArray[Any] = values if _is_numpy(values) else values.detach().cpu().numpy()
    return moved


def copied(values: Values) -> Values:
    """The same numbers in memory of their own."""
    copy: Values = library(values).concatenate([values])
    return copy


def last_true(mask: Any) -> int:
    """Index of the last that is true; -1 if none is."""
    places = np.flatnonzero(on_processor(mask))
    return int(places[-1]) if len(places) else -1


def polar(modulus: Any, argument: Any) -> Any:
    """Complex numbers of these moduli and arguments."""
    if not _is_numpy(modulus):
        return torch.polar(modulus, argument)
    numbers = np.empty(modulus.shape, dtype=np.complex128)
    numbers.real, numbers.imag = modulus * np.cos(argument), modulus * np.sin(argument)
    return numbers


def spectrum_of(values: Any) -> tuple[Any, Any]:
    """Fourier transform of real values of sum 1, and the logarithms of its moduli.

    Thousands of equal steps multiply a logarithm's error by as many, and those that then count are nearly 0: numpy's
    are computed from transforms of 80 bits, by their difference to 1.
    """
    if not _is_numpy(values):
        transform = torch.fft.rfft(values)
        return transform, transform.abs().log()
    fine = np.fft.rfft(values.astype(np.longdouble))
    rounded, above_one = fine.astype(np.complex128), (fine.real - 1).astype(np.float64)
    with quiet():
        logs = np.log(np.abs(rounded))
        near = logs > _NEAR_ONE
        logs[near] = np.log1p(above_one * (2 + above_one) + rounded.imag**2)[near] / 2
    return rounded, logs


@lru_cache(maxsize=1)
def extended() -> bool:
    """True where numpy transforms numbers of 80 bits; elsewhere torch computes on the processor, too."""
    if np.finfo(np.longdouble).nmant != _BITS:
        return False
    return bool(np.fft.rfft(np.zeros(2, dtype=np.longdouble)).dtype == np.clongdouble)


def log_sums_above(logs: Any) -> Any:
    """Logarithms (n,) of the sums from each position to the end, from logarithms (n,)."""
    if _is_numpy(logs):
        return np.logaddexp.accumulate(logs[::-1])[::-1]
    return torch.logcumsumexp(logs.flip(0), 0).flip(0)


def log_sum(logs: Floats) -> Floats:
    """Logarithms of the sums over the last axis, from logarithms of which one at least is finite."""
    largest = logs.max(axis=-1, keepdims=True)
    total: Floats = largest[..., 0] + np.log(np.exp(logs - largest).sum(axis=-1))
    return total


def _is_numpy(values: object) -> bool:
    return isinstance(values, np.ndarray | np.generic)
