"""The bytes that travel between server and clients: how arrays become bytes and back.

What each message holds is in `fedsw.federation.messages`.

A network may store equal objects once, or pack bytes that repeat: then the bytes that a message takes say what is in it
(a client without a record in the batch sends zeros). So no two objects that depend on a client are ever equal, and no
bytes repeat: arrays travel under the key stream of a fresh key, records of settings and metrics with a nonce. The key
travels beside: it hides nothing from a reader of the message, and is never one of the run's seed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

SERVER_NODE = 1
"""Flower's number of the server's side, in every message of it."""
APP_ABSENT = 1
"""Flower's code of the error of a node that loads no ClientApp."""
APP_RAISED = 2
"""Flower's code of the error that a ClientApp raised."""
ABSENT = (3, 4, 5)
"""Flower's codes of errors that the network makes up for a node that is not there, or did not reply in time."""
BUDGET_EXHAUSTED = 1001
"""Code of the error by which a client declines a release that its own ledger does not allow any more."""
NOT_IN_ROSTER = 1002
"""Code of the error by which a site declines a masked sum with a site that its roster does not have so."""

ARRAY_FORMAT = "fedsw.mixed"
"""Key of the mixing stream, then the numbers (little-endian, in row-major order) under that stream."""
NONCE = "nonce"
"""Name of the random numbers that make every record of settings or metrics unique."""

_KEY_BYTES = 32
_LITTLE_ENDIAN = {name: np.dtype(name).newbyteorder("<") for name in ("float32", "float64", "int64")}
_DTYPES = tuple(_LITTLE_ENDIAN)
_NAMES = {getattr(torch, name): name for name in _DTYPES}  # numpy works its own out anew each time


def encode(tensor: Tensor) -> tuple[str, tuple[int, ...], str, bytes]:
    """dtype, shape, format and bytes of a tensor, as Flower's `Array` takes them; never the same bytes twice."""
    array, dtype = tensor.detach().cpu().numpy(), dtype_of(tensor)
    key = os.urandom(_KEY_BYTES)
    content = array.astype(_LITTLE_ENDIAN.get(dtype, array.dtype), copy=False).tobytes()
    return dtype, array.shape, ARRAY_FORMAT, key + _mixed(key, content)


def dtype_of(tensor: Tensor) -> str:
    """The dtype that `encode` states, for a tensor of any shape."""
    return _NAMES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")


def size_of(tensor: Tensor) -> int:
    """Number of bytes that `encode` makes of a tensor of any shape."""
    return _KEY_BYTES + tensor.numel() * tensor.element_size()


def nonce() -> list[float]:
    """Two fresh random numbers, of one size on the wire, for a record of settings or metrics."""
    return [int.from_bytes(os.urandom(7)) / 2.0**56 for _ in range(2)]


def padded(rows: Tensor, length: int) -> Tensor:
    """The rows (n, d) and zeros after them, (length, d): a message with a size that does not reveal n."""
    if len(rows) > length:
        raise ValueError(f"{len(rows)} rows do not fit into {length}")
    values = rows.detach().cpu()
    return torch.cat([values, torch.zeros((length - len(values), values.shape[1]), dtype=values.dtype)])


def check(
    dtype: str, shape: Sequence[int], stype: str, nbytes: int, *, expected: tuple[int | None, ...], name: str
) -> None:
    """Check the type, shape and length of an array that came as `nbytes`, before its bytes are looked at.

    Raises:
        ValueError: naming the array, what came and what was expected (None stands for any length).
    """
    if stype != ARRAY_FORMAT or dtype not in _DTYPES:
        raise ValueError(f"{name} came as {dtype!r} in format {stype!r}; expected one of {_DTYPES} as {ARRAY_FORMAT!r}")
    fits = len(shape) == len(expected) and all(e is None or s == e for s, e in zip(shape, expected, strict=False))
    if not fits:
        raise ValueError(f"{name} came with shape {tuple(shape)}; expected {expected}")
    needed = math.prod(shape) * _LITTLE_ENDIAN[dtype].itemsize
    if min(shape, default=0) < 0 or nbytes != _KEY_BYTES + needed:
        raise ValueError(
            f"{name} came with {nbytes} bytes; shape {tuple(shape)} of {dtype} needs {needed} and {_KEY_BYTES} more"
        )


def decode(
    dtype: str, shape: Sequence[int], stype: str, data: bytes, *, expected: tuple[int | None, ...], name: str
) -> Tensor:
    """The tensor behind the bytes of `encode`, of the `expected` shape, after `check`; no unpickling."""
    check(dtype, shape, stype, len(data), expected=expected, name=name)
    values = np.frombuffer(_mixed(data[:_KEY_BYTES], memoryview(data)[_KEY_BYTES:]), dtype=_LITTLE_ENDIAN[dtype])
    try:
        return torch.from_numpy(values.astype(dtype, copy=False).reshape(tuple(shape)))
    except (ValueError, OverflowError):  # an empty array beside an impossible length, or hundreds of dimensions
        raise ValueError(f"{name} came with shape {tuple(shape)}; no array has it") from None


def _mixed(key: bytes, content: bytes | memoryview) -> bytearray:
    """The content XOR the key's stream; mixing twice gives it back."""
    mixed = bytearray(len(content))
    Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update_into(content, mixed)
    return mixed
