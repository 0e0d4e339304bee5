"""Whatever bytes a client's file holds, they are records or an error that names the file, within stated memory."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedsw.data import BadRecords, read_table
from fedsw.data.columns.declaration import Columns
from fedsw.data.image_sets import read_idx

COLUMNS = Columns.model_validate(
    {
        "features": [{"name": "age", "low": 0, "high": 100}, {"name": "work", "categories": ["own", "public"]}],
        "sensitive": {"name": "sex", "values": [0, 1]},
    }
)
IMAGES = Columns.model_validate({"features": [{"name": "pixel", "count": 6, "low": 0, "high": 255}]})
MEMORY = 64 * 2**20
"""Bytes that a file of some hundred may take at most."""
BOUNDED = {
    "deadline": None,
    "derandomize": True,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
SHAPES = [(8,), (), (2**62,), (-8,), (-1, -8), (2**40, 2**40), (8.0,), "8", (0,), (0, 2**62)]


def csv_bytes() -> bytes:
    rows = [b"%d,%s,%d\n" % (row, (b"own", b"public")[row % 2], row % 2) for row in range(8)]
    return b"age,work,sex\n" + b"".join(rows)


def npz_bytes() -> bytes:
    content = io.BytesIO()
    work = np.array(["own", "public"] * 4)
    np.savez(content, age=np.arange(8.0), work=work, sex=np.arange(8) % 2)
    return content.getvalue()


def idx_bytes() -> bytes:
    return struct.pack(">4I", 2051, 4, 2, 3) + bytes(range(24))


def parquet_bytes() -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    content = io.BytesIO()
    table = pyarrow.table({"age": list(range(8)), "work": ["own", "public"] * 4, "sex": [0, 1] * 4})
    pytest.importorskip("pyarrow.parquet").write_table(table, content)
    return content.getvalue()


KINDS = {
    "t.csv": (csv_bytes, COLUMNS),
    "t.npz": (npz_bytes, COLUMNS),
    "images-idx3-ubyte": (idx_bytes, IMAGES),
    "t.parquet": (parquet_bytes, COLUMNS),
}
changes = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(["flip", "cut", "insert", "repeat"]), st.binary(min_size=1, max_size=8)),
    min_size=1,
    max_size=4,
)


def changed(content: bytes, edits) -> bytes:
    for where, how, extra in edits:
        place = int(where * len(content))
        if how == "flip":
            content = content[:place] + extra + content[place + len(extra) :]
        elif how == "cut":
            content = content[:place]
        elif how == "insert":
            content = content[:place] + extra + content[place:]
        else:
            content += content[place : place + 64]
    return content


def read_or_refuse(path, columns) -> None:
    tracemalloc.start()
    try:
        records = read_table(path, columns)
    except BadRecords as refused:
        assert str(path) in str(refused) and len(str(refused)) < 1000
    else:
        assert len(records) and bool(records.features.isfinite().all())
        assert bool(((records.features >= 0) & (records.features <= 1)).all())
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < MEMORY


@pytest.mark.parametrize("name", KINDS)
def test_the_files_that_are_changed_can_be_read(tmp_path, name):
    make, columns = KINDS[name]
    (tmp_path / name).write_bytes(make())
    assert len(read_table(tmp_path / name, columns)) in (4, 8)


@pytest.mark.parametrize("name", KINDS)
@given(edits=changes)
@settings(max_examples=80, **BOUNDED)
def test_a_changed_file_is_read_or_refused_by_name(tmp_path, name, edits):
    make, columns = KINDS[name]
    (tmp_path / name).write_bytes(changed(make(), edits))
    read_or_refuse(tmp_path / name, columns)


@pytest.mark.parametrize("name", KINDS)
@given(content=st.binary(max_size=200))
@example(content=b"\x1f\x8b" + bytes(20))
@example(content=struct.pack(">4I", 2051, 2**32 - 1, 2**32 - 1, 2**32 - 1))
@example(content=b"PAR1" + bytes(12) + b"PAR1")
@settings(max_examples=40, **BOUNDED)
def test_random_bytes_are_refused_by_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadRecords, match=name):
        read_table(tmp_path / name, KINDS[name][1])


def headers() -> st.SearchStrategy[bytes]:
    """An .npy header that says anything."""
    said = st.fixed_dictionaries(
        {
            "descr": st.sampled_from(["<f8", "|O", "<U9999999", ">i4", "V8", [("a", "<f8")], "f" * 40, 3]),
            "fortran_order": st.sampled_from([True, False, 3]),
            "shape": st.sampled_from(SHAPES),
        }
    )
    texts = st.one_of(said.map(repr), st.text(max_size=40), st.sampled_from(["(" * 5000, "9" * 5000, "{'a': " * 300]))
    return texts.map(lambda text: b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text.encode())) + text.encode())


@given(header=headers(), body=st.sampled_from([b"", bytes(64), bytes(7)]))
@settings(max_examples=150, **BOUNDED)
def test_an_array_header_that_says_anything_takes_no_memory(tmp_path, header, body):
    path = tmp_path / "t.npz"
    content = io.BytesIO(npz_bytes())
    with zipfile.ZipFile(content) as whole, zipfile.ZipFile(path, "w") as archive:
        for member in ("work.npy", "sex.npy"):
            archive.writestr(member, whole.read(member))
        archive.writestr("age.npy", header + body)
    read_or_refuse(path, COLUMNS)


@given(content=st.binary(max_size=120), dims=st.integers(1, 3))
@example(content=struct.pack(">4I", 2051, 2**31, 2**31, 2), dims=3)
@example(content=struct.pack(">2I", 2049, 0), dims=1)
@settings(max_examples=150, **BOUNDED)
def test_any_bytes_are_an_idx_array_or_a_value_error_that_names_the_file(tmp_path, content, dims):
    path = tmp_path / "bytes-idx"
    path.write_bytes(content)
    try:
        array = read_idx(path, dims=dims)
    except ValueError as refused:
        assert str(path) in str(refused)
    else:
        assert array.ndim == dims and array.size == len(content) - 4 - 4 * dims
