"""What the ways to measure and add a layer's Jacobians cost: counts of operations, weighed by measured speeds."""

from __future__ import annotations

# Time of one operation relative to a multiplication of a float32 matrix product (0.03 ns of a core with AVX-512), as
# measured for convolutions of 1 to 64 channels on images of side 7 to 32.
_DOUBLE = 2.5  # a multiplication of a float64 matrix product
_COPIED = 12.0  # a number copied, into windows or to another precision
_DOUBLE_COPIED = 25.0  # the same, for float64 windows


def outer_cost(sites: int, shared: int, varying: int, d: int) -> tuple[bool, int]:
    """Whether the site-by-site kernel is cheaper than the small Jacobian, and the floats it takes a record.

    For J_r = sum over T sites of v_r(t) s(t)^T, with s in R^shared and v_r in R^varying, the kernel costs
    T^2 (shared + d varying) multiplications and the Jacobian T d varying shared.
    """
    kernel, jacobian = _kernel(sites, shared, varying, d), _jacobian(sites, shared, varying, d)
    factors = sites * (shared + 3 * d * varying)
    return kernel < jacobian, factors + (sites * sites if kernel < jacobian else 2 * d * varying * shared)


def forming_is_cheaper(sites: int, shared: int, varying: int, d: int, *, copied: bool) -> bool:
    """Whether J_1 ... J_d are formed once, measured and added sooner than they are measured and added by their factors.

    Factors are multiplied three times in float64, for the Gram matrix of d columns, for that of what leaves and for the
    sum; formed rows once, in the model's precision, and what leaves is copied to float64.

    Args:
        sites, shared, varying, d: as in `outer_cost`.
        copied: whether the factors are windows, which are copied out of an image each time.
    """
    entries = shared * varying
    formed = d * sites * entries + _COPIED * ((d + 2) * entries + copied * sites * shared) + _DOUBLE * d * d * entries
    factored = _DOUBLE * (
        min(_kernel(sites, shared, varying, d), _jacobian(sites, shared, varying, d))
        + min(_kernel(sites, shared, varying, 1), _jacobian(sites, shared, varying, 1))
        + sites * entries
    )
    return formed < factored + 3 * _DOUBLE_COPIED * (copied * sites * shared + sites * d * varying)


def _kernel(sites: int, shared: int, varying: int, d: int) -> int:
    return sites * sites * (shared + d * varying) + d * d * sites * varying


def _jacobian(sites: int, shared: int, varying: int, d: int) -> int:
    return d * varying * shared * (sites + d)
