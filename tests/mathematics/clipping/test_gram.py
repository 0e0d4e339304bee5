"""Cotangents are pulled back as autograd pulls them, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedsw.mathematics.clipping.gram import pulled_back


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cotangent_arrives_with_the_bits_that_autograd_gives_whatever_its_magnitude(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)
    inputs = torch.randn(64, 5, dtype=dtype).requires_grad_()
    outputs, aside = model(inputs), torch.ones(2, requires_grad=True)
    cotangent = torch.randn(64, 3, dtype=dtype) * torch.logspace(-30, 30, 64, dtype=dtype)[:, None]
    cotangent[0] = -0.0
    targets = [inputs, *model.parameters()]
    expected = torch.autograd.grad((outputs,), targets, (cotangent,), retain_graph=True)
    with torch.inference_mode():
        found, (nothing,) = pulled_back([outputs], targets, [cotangent]), pulled_back([outputs], [aside], [cotangent])
        assert pulled_back([outputs], [inputs], [torch.ones_like(outputs)])[0] is not None
    assert nothing is None
    assert [bits(value) for value in found if value is not None] == [bits(value) for value in expected]
    assert outputs.sum().requires_grad and len(found) == 5


def bits(values: Tensor) -> bytes:
    return bytes(values.detach().numpy().tobytes())


def test_a_cotangent_of_another_shape_is_refused_and_not_broadcast() -> None:
    head = torch.ones(4, 1, requires_grad=True)
    with pytest.raises(ValueError, match=r"a cotangent of shape \(4,\) for \(4, 1\)"):
        pulled_back([head * 1], [head], [torch.ones(4)])
