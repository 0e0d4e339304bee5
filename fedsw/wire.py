"""The protocol between server and clients: names of messages and fields, and how arrays become bytes."""

from __future__ import annotations

import functools
import io
import math
import os
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

HELLO = "query.hello"
OUTPUTS = "train.outputs"
GRADIENTS = "train.gradients"
TABLES = "train.tables"
LOCAL_GRADIENTS = "train.local_gradients"
SLICES = "train.slices"
RELEASE = "train.release"

BUDGET_EXHAUSTED = 1001
"""Code of the error by which a client declines a release that its own ledger does not allow any more."""

ARRAY_FORMAT = "numpy.ndarray"
_LITTLE_ENDIAN = {name: np.dtype(name).newbyteorder("<") for name in ("float32", "float64", "int64")}
_DTYPES = tuple(_LITTLE_ENDIAN)
_NAMES = {getattr(torch, name): name for name in _DTYPES}  # numpy works its own out anew each time


def encode(tensor: Tensor) -> tuple[str, tuple[int, ...], str, bytes]:
    """dtype, shape, format and .npy bytes of a tensor, as Flower's `Array` takes them."""
    array = tensor.detach().cpu().numpy()
    dtype, shape = _NAMES.get(tensor.dtype) or array.dtype.name, array.shape
    return dtype, shape, ARRAY_FORMAT, _header(dtype, shape) + array.tobytes()


def padded(rows: Tensor, length: int) -> Tensor:
    """The rows (n, d) and filler after them, (length, d): a message whose size says nothing of n.

    The filler starts with a tiny random number, since a network that stores arrays by their hash sends equal ones once.

    Raises:
        ValueError: if there are more rows than that.
    """
    if len(rows) > length:
        raise ValueError(f"{len(rows)} rows do not fit into {length}")
    own = rows.detach().cpu().numpy()
    filled = np.zeros((length, own.shape[1]), dtype=own.dtype)
    filled[: len(own)] = own
    filled.reshape(-1)[own.size : own.size + 1] = int.from_bytes(os.urandom(8)) / 2**128
    return torch.from_numpy(filled)


@functools.lru_cache(maxsize=256)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The .npy header of a contiguous array."""
    header = io.BytesIO()
    described = np.lib.format.dtype_to_descr(np.dtype(dtype).newbyteorder("<"))
    np.lib.format.write_array_header_1_0(header, {"descr": described, "fortran_order": False, "shape": shape})
    return header.getvalue()


def decode(
    dtype: str, shape: Sequence[int], stype: str, data: bytes, *, expected: tuple[int | None, ...], name: str
) -> Tensor:
    """The tensor behind .npy bytes, after its type, shape and length were checked; one copy, no unpickling.

    Args:
        expected: the shape that must come; None stands for any length.
        name: what the array is, for the error.

    Raises:
        ValueError: naming the array, what came and what was expected.
    """
    if stype != ARRAY_FORMAT or dtype not in _DTYPES:
        raise ValueError(f"{name} came as {dtype!r} in format {stype!r}; expected one of {_DTYPES} as {ARRAY_FORMAT!r}")
    fits = len(shape) == len(expected) and all(e is None or s == e for s, e in zip(shape, expected, strict=False))
    if not fits:
        raise ValueError(f"{name} came with shape {tuple(shape)}; expected {expected}")
    count, kind = math.prod(shape), _LITTLE_ENDIAN[dtype]
    nbytes = count * kind.itemsize
    if min(shape, default=0) < 0 or not nbytes < len(data) <= nbytes + 1024:
        raise ValueError(
            f"{name} came with {len(data)} bytes; shape {tuple(shape)} of {dtype} needs {nbytes} and a header"
        )
    values = np.frombuffer(data, dtype=kind, count=count, offset=len(data) - nbytes)
    try:
        return torch.from_numpy(values.astype(dtype, copy=True).reshape(tuple(shape)))
    except (ValueError, OverflowError):  # an empty array beside an impossible length, or hundreds of dimensions
        raise ValueError(f"{name} came with shape {tuple(shape)}; no array has it") from None
