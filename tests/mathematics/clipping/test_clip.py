"""The clip itself: a function of the Gram matrix that is the Frobenius projection of the Jacobian."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw.mathematics.clipping import Safety, clip_cotangents
from tests.mathematics.clipping.naive import CLIPS


def jacobians(n, d, r, seed, *, rank=None, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    j = torch.randn(n, d, r, generator=generator, dtype=torch.float64) * scale
    if rank is not None:
        mix = torch.randn(n, d, rank, generator=generator, dtype=torch.float64)
        j = mix @ torch.randn(n, rank, r, generator=generator, dtype=torch.float64) * scale
    return j


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    d=st.integers(1, 6),
    rank=st.one_of(st.none(), st.integers(1, 5)),
    seed=st.integers(0, 1000),
    exponent=st.floats(-3, 3),
    mode=st.sampled_from(["spectral", "row"]),
)
def test_cotangents_of_the_gram_equal_the_clipped_jacobian(d, rank, seed, exponent, mode):
    j = jacobians(4, d, 7, seed, rank=rank, scale=10.0**exponent)
    q = torch.randn(4, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = torch.einsum("ndr,nd->nr", j, clip_cotangents(j @ j.mT, q, 1.0, mode=mode, safety=Safety.off()))
    expected = torch.stack([CLIPS[mode](each, 1.0).T @ qi for each, qi in zip(j, q, strict=True)])
    # The Gram matrix squares the condition number, so a dependent Jacobian is known to 1e-8 of its norm.
    accuracy = 1e-9 if rank is None else 1e-7 * float(torch.linalg.matrix_norm(j, ord=2).max())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=max(1e-9, accuracy))


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_equal_eigenvalues_are_harmless(d):
    j = torch.linalg.qr(torch.randn(9, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d)))[0]
    q = torch.randn(1, d, dtype=torch.float64)
    gram = (5 * j.T) @ (5 * j.T).T
    clipped = clip_cotangents(gram.unsqueeze(0), q, 1.0, safety=Safety.off())
    torch.testing.assert_close(clipped, q / 5, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["spectral", "row"])
@pytest.mark.parametrize("d", [1, 2, 4])
def test_small_and_zero_jacobians_pass_unchanged(d, mode):
    q = torch.randn(2, d, dtype=torch.float64)
    gram = torch.stack([torch.zeros(d, d), torch.eye(d) * 1e-3]).double()
    torch.testing.assert_close(clip_cotangents(gram, q, 1.0, mode=mode), q)


def test_no_bound_is_no_clip():
    gram, q = torch.eye(3).repeat(2, 1, 1) * 1e30, torch.randn(2, 3)
    torch.testing.assert_close(clip_cotangents(gram, q, math.inf), q.double())


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    d=st.integers(1, 5),
    seed=st.integers(0, 1000),
    exponent=st.floats(0, 4),
    mode=st.sampled_from(["spectral", "row"]),
)
def test_gram_errors_below_eta_never_lift_a_jacobian_above_the_bound(d, seed, exponent, mode):
    j = jacobians(1, d, 6, seed)
    j[:, 0] *= 10.0**exponent
    gram = j @ j.mT
    noise = jacobians(1, d, d, seed + 1)
    noise = noise + noise.mT
    noise *= 0.99e-5 * torch.linalg.matrix_norm(gram, ord=2) / torch.linalg.matrix_norm(noise, ord=2)
    if mode == "row":
        noise = -0.99e-5 * torch.diag_embed(torch.diagonal(gram, dim1=1, dim2=2))
    safety = Safety(shrink=1.0)
    rows = clip_cotangents((gram + noise).expand(d, d, d), torch.eye(d), 0.7, mode=mode, safety=safety)
    assert float(torch.linalg.matrix_norm(rows @ j[0], ord=2)) <= 0.7 * (1 + 1e-12)


@pytest.mark.parametrize("mode", ["spectral", "row"])
@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_records_that_are_not_finite_get_zero_and_leave_the_others_alone(bad, d, mode):
    j = jacobians(4, d, 5, 0)
    gram, q = j @ j.mT, torch.randn(4, d, dtype=torch.float64)
    clean = clip_cotangents(gram, q, 0.5, mode=mode)
    gram[1, 0, 0], q[2, -1] = bad, bad
    found = clip_cotangents(gram, q, 0.5, mode=mode)
    assert torch.equal(found[1:3], torch.zeros(2, d, dtype=torch.float64))
    torch.testing.assert_close(found[[0, 3]], clean[[0, 3]], rtol=0, atol=0)


def test_a_record_without_eigenvalues_stays_below_the_bound_and_leaves_the_others_alone(monkeypatch):
    """LAPACK may give up on a matrix. The bound is tight where one singular value is all there is."""
    j = jacobians(5, 3, 6, 0, scale=4.0)
    j[2] = 10.0 * j[2, :1].clone().expand(3, 6)
    gram, q, solve = j @ j.mT, torch.randn(5, 3, dtype=torch.float64), torch.linalg.eigh
    clean = clip_cotangents(gram, q, 0.7)
    largest = gram[2] / gram[2].abs().max()

    def gives_up(matrices):
        if any(torch.equal(matrix, largest) for matrix in matrices):
            raise torch.linalg.LinAlgError("linalg.eigh: (Batch element 2): The algorithm failed to converge")
        return solve(matrices)

    monkeypatch.setattr(torch.linalg, "eigh", gives_up)
    assert torch.equal(clip_cotangents(gram, q, 0.7)[[0, 1, 3, 4]], clean[[0, 1, 3, 4]])
    clipped = clip_cotangents(gram[[2, 2, 2]], torch.eye(3), 0.7)
    assert 0.69 < float(torch.linalg.matrix_norm(clipped @ j[2], ord=2)) <= 0.7


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("safety", [Safety(), Safety.off()], ids=["margins", "no-margins"])
def test_gram_matrices_near_overflow_give_finite_cotangents(d, safety):
    gram = torch.full((1, d, d), 1.7e308, dtype=torch.float64)
    assert bool(torch.isfinite(clip_cotangents(gram, torch.ones(1, d), 1.0, safety=safety)).all())


def test_losses_may_be_flat():
    gram = torch.full((3, 1, 1), 4.0)
    found = clip_cotangents(gram, torch.ones(3), 1.0, safety=Safety.off())
    torch.testing.assert_close(found, torch.full((3,), 0.5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bound": 0.0}, "bound is 0.0"),
        ({"bound": math.nan}, "bound is nan"),
        ({"bound": 1.0, "mode": "columns"}, "'columns' is unknown"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        clip_cotangents(torch.eye(2).repeat(3, 1, 1), torch.ones(3, 2), **arguments)
    with pytest.raises(ValueError, match=r"gram has shape \(3, 2, 2\) and cotangents \(3, 1\)"):
        clip_cotangents(torch.eye(2).repeat(3, 1, 1), torch.ones(3, 1), 1.0)


def test_margins_may_not_loosen_the_clip():
    for wrong in ({"eta": -1e-5}, {"shrink": 0.99}, {"eta": 1.5}):
        with pytest.raises(ValueError, match="Safety"):
            Safety(**wrong)
