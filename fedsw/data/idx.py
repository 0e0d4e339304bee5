"""Reading IDX files, the format of MNIST, with every number of the header checked against the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 2**30
_UNSIGNED_BYTE = 8
_PIECE = 2**20


def read_idx(path: Path, *, dims: int) -> NDArray[np.uint8]:
    """An array of unsigned bytes, of the shape that an IDX file announces; gzip is recognised by its first bytes.

    The file is a big-endian magic number (0, 0, 8 for unsigned bytes, number of dimensions), the length of every
    dimension as 32 bits, and the bytes, last dimension fastest: nothing more and nothing less. The header is
    read first and never more than the length it announces (plus one byte), so a small file cannot fill memory.

    Raises:
        ValueError: naming the file, the field, its value and what it has to be.
    """
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path, "rb") if zipped else path.open("rb") as stream:
            shape = _shape(stream.read(4 + 4 * dims), dims, path)
            length = math.prod(shape)
            if length > MAX_BYTES:
                raise ValueError(f"{path}: the header announces {length} bytes ({shape}); at most {MAX_BYTES} are read")
            content = _read(cast(IO[bytes], stream), length + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        raise ValueError(f"{path} is not a whole gzip file ({fault}); fetch it again") from fault
    if len(content) != length:
        found = f"{len(content)}" if len(content) < length else "more"
        raise ValueError(f"{path}: the header announces {length} bytes ({shape}) and {found} follow; fetch it again")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read(stream: IO[bytes], most: int) -> bytearray:
    """At most that many bytes, in pieces: asked for at once, memory for all of them is taken before one is read."""
    content = bytearray()
    while len(content) < most and (piece := stream.read(min(_PIECE, most - len(content)))):
        content += piece
    return content


def _shape(header: bytes, dims: int, path: Path) -> tuple[int, ...]:
    if len(header) != 4 + 4 * dims:
        raise ValueError(f"{path} has {len(header)} bytes; an IDX header of {dims} dimensions has {4 + 4 * dims}")
    magic, *lengths = struct.unpack(f">{1 + dims}I", header)
    wanted = (_UNSIGNED_BYTE << 8) + dims
    if magic != wanted:
        raise ValueError(
            f"{path}: the magic number is {magic}; {wanted} is expected (unsigned bytes in {dims} dimensions)"
        )
    return tuple(lengths)
