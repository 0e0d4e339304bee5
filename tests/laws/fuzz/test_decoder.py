"""Whatever bytes claim to be an array, the decoder returns that array or a ValueError, within the memory that came."""

from __future__ import annotations

import math
import tracemalloc

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedsw.federation import wire

SLACK = 2**20
"""Bytes of Python's own objects that a call may take beside the array."""

sizes = st.one_of(
    st.integers(0, 6),
    st.integers(-3, -1),
    st.sampled_from([2**31 - 1, 2**31, 2**32 + 1, 2**62, 2**63, 2**64 - 1, 10**30, -(2**63)]),
)
shapes = st.lists(sizes, max_size=4)
wanted = st.lists(st.one_of(st.none(), sizes), max_size=4)
known = ["float32", "float64", "int64", "object", "O", "<f4", "float16", "U9", ""]
kinds = st.one_of(st.sampled_from(known), st.text())


@st.composite
def arrays(draw) -> dict:
    """Fields of an array as they may come: mostly right ones with one field changed, so that every check is reached."""
    sides = draw(st.lists(st.integers(0, 4), max_size=3))
    tensor = torch.zeros(sides, dtype=draw(st.sampled_from([torch.float32, torch.int64])))
    dtype, shape, stype, data = wire.encode(tensor)
    fields = {"dtype": dtype, "shape": shape, "stype": stype, "data": data}
    fields["expected"] = tuple(draw(st.sampled_from([side, None])) for side in shape)
    changes = {
        "dtype": kinds,
        "shape": shapes,
        "stype": st.text(),
        "data": st.binary(max_size=300),
        "expected": wanted.map(tuple),
    }
    for name in draw(st.lists(st.sampled_from(sorted(changes)), max_size=3)):
        fields[name] = draw(changes[name])
    if draw(st.booleans()) and len(fields["expected"]) != len(fields["shape"]):
        fields["expected"] = (None,) * len(fields["shape"])
    return fields


def claim(*shape: int, data: bytes = bytes(160), dtype: str = "float32") -> dict:
    return {
        "dtype": dtype,
        "shape": shape,
        "stype": wire.ARRAY_FORMAT,
        "data": data,
        "expected": (None,) * len(shape),
    }


@given(fields=arrays())
@example(fields=claim(2**62, 4))
@example(fields=claim(2**32, 2**32))
@example(fields=claim(-2, -5))
@example(fields=claim(0, 2**70))
@example(fields=claim(0, 2**40, 2**40))
@example(fields=claim(0, -1))
@example(fields=claim(*[1] * 100))
@settings(max_examples=400, deadline=None, derandomize=True)
def test_the_decoder_returns_what_was_claimed_or_a_value_error(fields):
    tracemalloc.start()
    try:
        tensor = wire.decode(**fields, name="outputs")
    except ValueError as refused:
        assert str(refused).startswith("outputs came with ") or str(refused).startswith("outputs came as ")
    else:
        assert list(tensor.shape) == list(fields["shape"]) and str(tensor.dtype) == f"torch.{fields['dtype']}"
        assert math.prod(fields["shape"]) * tensor.element_size() < len(fields["data"])
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak <= len(fields["data"]) + SLACK
