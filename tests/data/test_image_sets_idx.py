"""IDX files: what is read is what was written, and every other file is refused by name."""

from __future__ import annotations

import gzip
import math
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsw.data import image_sets as images
from fedsw.data.image_sets import read_idx


def header(*lengths: int, magic: int | None = None) -> bytes:
    return struct.pack(f">{1 + len(lengths)}I", 0x800 + len(lengths) if magic is None else magic, *lengths)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("shape", [(7,), (3, 4, 5), (0,), (0, 28, 28)])
def test_what_is_written_is_read_zipped_or_not(tmp_path: Path, shape: tuple[int, ...], zipped: bool) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    content = header(*shape) + array.tobytes()
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(content) if zipped else content)
    found = read_idx(path, dims=len(shape))
    assert found.dtype == np.uint8 and found.shape == shape
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_small_file_that_announces_much_takes_no_memory(tmp_path: Path, zipped: bool) -> None:
    path, content = tmp_path / "file", header(2**10, 2**10, 2**10) + bytes(10)
    path.write_bytes(gzip.compress(content) if zipped else content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="announces 1073741824 bytes .* and 10 follow"):
            read_idx(path, dims=3)
        assert tracemalloc.get_traced_memory()[1] < 2**23
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "has 0 bytes; an IDX header of 3 dimensions has 16"),
        (header(2, 2, 2)[:15], "has 15 bytes"),
        (header(2, 2, 2, magic=0x801) + bytes(8), "the magic number is 2049; 2051 is expected"),
        (header(2, 2, 2, magic=0xD03) + bytes(32), "the magic number is 3331; 2051 is expected"),
        (header(2, 2, 2) + bytes(7), r"announces 8 bytes \(\(2, 2, 2\)\) and 7 follow"),
        (header(2, 2, 2) + bytes(9), "announces 8 bytes .* and more follow"),
        (header(2**32 - 1, 2**32 - 1, 2), "announces 36893488130239234050 bytes .*at most 1073741824"),
        (gzip.compress(header(2, 2, 2) + bytes(8), mtime=0)[:-9], "is not a whole gzip file"),
        (b"\x1f\x8b" + bytes(40), "is not a whole gzip file"),
    ],
)
def test_a_file_that_is_not_as_its_header_says_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "train-images"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=reason) as raised:
        read_idx(path, dims=3)
    assert str(path) in str(raised.value)


def test_no_more_is_read_than_the_header_announces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = gzip.GzipFile.read

    def read(self: gzip.GzipFile, size: int | None = -1) -> bytes:
        asked.append(-1 if size is None else size)
        return original(self, size)

    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(header(5) + bytes(10**6)))
    monkeypatch.setattr(images.gzip.GzipFile, "read", read)
    with pytest.raises(ValueError, match="and more follow"):
        read_idx(path, dims=1)
    assert asked and all(0 <= size <= 8 for size in asked)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Any bytes, or a header of some sizes with about as many bytes behind it."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=64))
    sizes = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3))
    count = math.prod(sizes) + draw(st.sampled_from([0, 0, 0, -1, 1]))
    return header(*sizes) + draw(st.binary(min_size=max(0, count), max_size=max(0, count)))


@settings(deadline=None, derandomize=True)
@given(content=files(), dims=st.integers(1, 3), sealed=st.booleans())
@example(content=header(2) + b"ab", dims=1, sealed=False)
@example(content=header(1, 3) + b"abc", dims=2, sealed=True)
def test_any_bytes_give_an_array_or_a_value_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, dims: int, sealed: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.write_bytes(gzip.compress(content) if sealed else content)
    try:
        found = read_idx(path, dims=dims)
    except ValueError as fault:
        assert str(path) in str(fault)
    else:
        assert found.ndim == dims and content[-found.size or len(content) :] == found.tobytes()
