"""Laws of the wire: what is decoded is what was encoded, and nothing else is accepted."""

from __future__ import annotations

import zlib

import pytest
import torch

from fedsw.federation import wire


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(0, 2), (3,), (5, 2), (1, 1)])
def test_decoding_returns_what_was_encoded(dtype, shape):
    tensor = torch.arange(int(torch.tensor(shape).prod()), dtype=dtype).reshape(shape) - 1
    back = wire.decode(*wire.encode(tensor), expected=shape, name="x")
    assert back.dtype == dtype and torch.equal(back, tensor)
    back += 1  # its own memory, writable


def test_equal_arrays_never_take_the_same_bytes_nor_have_bytes_that_pack():
    zeros = [wire.encode(torch.zeros(3000))[3] for _ in range(4)]
    pieces = [data[start : start + 16] for data in zeros for start in range(0, len(data), 16)]
    assert len(set(pieces)) == len(pieces)
    assert all(len(data) == len(zeros[0]) <= len(zlib.compress(data, 9)) for data in zeros)


def test_a_nonce_is_fresh_and_of_one_size():
    drawn = [wire.nonce() for _ in range(500)]
    assert len({number for pair in drawn for number in pair}) == 1000
    assert all(len(pair) == 2 and 0 <= number < 1 for pair in drawn for number in pair)


def test_rows_are_filled_up_to_the_asked_number():
    assert torch.equal(wire.padded(torch.ones(1, 2), 3), torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    assert torch.equal(wire.padded(torch.ones(4, 2), 4), torch.ones(4, 2))
    with pytest.raises(ValueError, match="5 rows do not fit into 4"):
        wire.padded(torch.zeros(5, 1), 4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"dtype": "object"}, "came as 'object'"),
        ({"stype": "pickle"}, "format 'pickle'"),
        ({"shape": (3, 4)}, "came with shape"),
        ({"shape": (-4, 3)}, "came with shape"),
        ({"data": b"short"}, "bytes"),
        ({"data": bytes(10_000)}, "bytes"),
    ],
)
def test_anything_but_the_expected_array_is_refused_by_name(change, reason):
    fields = dict(zip(("dtype", "shape", "stype", "data"), wire.encode(torch.zeros(4, 3)), strict=True)) | change
    with pytest.raises(ValueError, match=reason) as refusal:
        wire.decode(**fields, expected=(4, 3), name="outputs of client 2")
    assert "outputs of client 2" in str(refusal.value)
