"""Laws of the sums: exact, the same in any order and any chunks, and against a loop over records."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedsw.learning.sketches import GaussianKernel
from fedsw.learning.sketches import sketch_law as sketches
from fedsw.learning.sketches.maps import Convolutions, Cosine
from fedsw.learning.sketches.sketch_law import STEP, BatchSums, Law, count_steps
from tests.learning.sketches.samples import KERNEL, LAWS, MIXED, cells_of, normal, sums_of_vectors


def naive(law: Law, rows: np.ndarray, cells: list[int]) -> np.ndarray:
    """A loop over records, parts and numbers, in float64."""
    sketcher = law.drawn(torch.float64)
    total = np.zeros((law.cells, sketcher.coordinates + 1))
    for row, cell in zip(rows, cells, strict=True):
        vector: list[float] = []
        for part, drawn, weight in zip(law.parts, sketcher.parts, law.weights, strict=True):
            seen = row if part.columns is None else row[list(part.columns)]
            if hasattr(drawn, "turns"):
                frequencies = 2 * math.pi * drawn.turns.numpy()
                angles = [float(seen @ frequencies[:, j]) for j in range(frequencies.shape[1])]
                amplitudes = drawn.amplitudes.tolist()
                waves = [a * math.cos(z) for a, z in zip(amplitudes, angles, strict=True)]
                waves += [a * math.sin(z) for a, z in zip(amplitudes, angles, strict=True)]
            else:
                positive = [max(0.0, float(value)) for value in seen]
                length = math.sqrt(sum(value**2 for value in positive))
                waves = [value / max(1.0, length) for value in positive]
            vector += [math.sqrt(weight) * value for value in waves]
        total[cell] += [*vector, math.sqrt(law.counts)]
    return total


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_sum_is_that_of_a_loop_over_records(name, dtype):
    law = LAWS[name]
    rows, cells = normal(41, law.features), cells_of(law, 41)
    found = law.drawn(dtype).sums(rows.to(dtype), cells)
    assert found.dtype == torch.float64
    tolerance = 41 * STEP if dtype == torch.float64 else 41 * 2e-6
    np.testing.assert_allclose(found.numpy(), naive(law, rows.numpy(), cells.tolist()), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", LAWS)
def test_every_number_of_a_sum_is_a_whole_multiple_of_the_step(name):
    law = LAWS[name]
    total = law.drawn().sums(normal(30, law.features).float(), cells_of(law, 30))
    assert bool(((total / STEP) == (total / STEP).round()).all())


def test_chunks_change_nothing_but_the_last_bit_of_a_record():
    law = LAWS["kernel"]
    sketcher, rows, cells = law.drawn(torch.float64), normal(100, 3), cells_of(law, 100)
    whole = sketcher.sums(rows, cells)
    for chunk in (1, 7, 64, 99, 100, 1000):
        gap = (sketcher.sums(rows, cells, chunk=chunk) - whole).abs()
        assert float(gap.max()) <= 2 * STEP, "records on a rounding boundary are rare"
        assert float(gap.mean()) < STEP / 100
        assert torch.equal(sketcher.sums(rows, cells, chunk=chunk)[:, -1], whole[:, -1])


def test_the_sum_of_rounded_records_does_not_depend_on_their_order_or_on_who_holds_them():
    law = LAWS["kernel, groups"]
    sketcher, rows, cells = law.drawn(), normal(60, 3).float(), cells_of(law, 60)
    alone = [sketcher.sums(rows[i : i + 1], cells[i : i + 1]) for i in range(60)]
    forwards = sum(alone, torch.zeros_like(alone[0]))
    backwards = sum(reversed(alone), torch.zeros_like(alone[0]))
    clients = [sum(alone[start::7], torch.zeros_like(alone[0])) for start in range(7)]
    assert torch.equal(forwards, backwards)
    assert torch.equal(forwards, torch.stack(clients).sum(dim=0))
    assert torch.equal(forwards, sketcher.sums(rows, cells, chunk=1))


def test_as_many_records_as_are_allowed_have_an_exact_sum():
    largest = sketches.MOST_RECORDS * max(1.0, math.sqrt(sketches.MOST_COUNTS)) / STEP
    assert largest <= 2**53


def test_a_record_is_in_the_block_of_its_label_and_group_and_nowhere_else():
    law = LAWS["kernel, groups"]
    sketcher, row = law.drawn(), normal(1, 3).float()
    for label in range(2):
        for group in range(2):
            cell = law.cell_of(torch.tensor([label]), torch.tensor([group]))
            total = sketcher.sums(row, cell)
            place = 2 * label + group
            torch.testing.assert_close(total[place, :-1], sketcher(row)[0].double(), atol=STEP, rtol=0)
            assert float(total[place, -1]) == count_steps(law) * STEP
            assert float(total.abs().sum() - total[place].abs().sum()) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 3e38])
def test_a_value_that_is_not_finite_or_huge_spoils_no_other_record_and_weighs_no_more(bad):
    law = LAWS["kernel"]
    sketcher, rows, cells = law.drawn(), normal(5, 3).float(), cells_of(law, 5)
    rows[2, 1] = bad
    alone = sketcher.sums(rows[2:3], cells[2:3])
    assert bool(torch.isfinite(alone).all()) and float(alone[:, :-1].norm()) <= 1.0001
    others = torch.cat([rows[:2], rows[3:]]), torch.cat([cells[:2], cells[3:]])
    torch.testing.assert_close(
        sketcher.sums(rows, cells, chunk=1), alone + sketcher.sums(*others, chunk=1), rtol=0, atol=0
    )


def test_every_record_is_in_one_cell_whatever_its_label_says():
    for law in (LAWS["kernel"], LAWS["kernel, one cell"]):
        sketcher, rows = law.drawn(), normal(3, 3).float()
        wrong, nearest = torch.tensor([-7, 0, 99]), torch.tensor([0, 0, law.cells - 1])
        assert torch.equal(sketcher.sums(rows, wrong), sketcher.sums(rows, nearest))


def test_autocast_changes_nothing():
    law = LAWS["kernel"]
    sketcher, rows, cells = law.drawn(), normal(20, 3).float(), cells_of(law, 20)
    plain = sketcher.sums(rows, cells)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(sketcher.sums(rows, cells), plain)


class Overflowing(nn.Module):
    def forward(self, rows):
        return rows / rows.abs().sum(dim=1, keepdim=True)  # not a number for a row of zeros


class Public:
    """A feature map that is not defined everywhere."""

    def width(self, features):
        return features

    def built(self, features, stream):
        return Overflowing()


def test_a_map_that_fails_on_one_record_takes_its_waves_out_and_leaves_the_others():
    sketcher = Law(3, (GaussianKernel((1.0,), 8, map=Public()),)).drawn()
    rows, cells = torch.cat([torch.zeros(1, 3), normal(2, 3).float()]), torch.zeros(3, dtype=torch.int64)
    total = sketcher.sums(rows, cells, chunk=1)
    torch.testing.assert_close(total[:, :-1], sketcher.sums(rows[1:], cells[1:], chunk=1)[:, :-1], rtol=0, atol=0)
    assert float(total[0, -1]) == 3.0


class Normalised:
    """A public encoder with BatchNorm."""

    def width(self, features):
        return features

    def built(self, features, stream):
        return nn.BatchNorm1d(features)


def test_a_public_encoder_is_in_evaluation_mode_so_that_records_do_not_mix():
    sketcher = Law(3, (GaussianKernel((1.0,), 8, map=Normalised()),)).drawn()
    rows, cells = normal(4, 3).float(), torch.zeros(4, dtype=torch.int64)
    sketcher.train()
    together = sketcher.sums(rows, cells)
    alone = sum(sketcher.sums(rows[i : i + 1], cells[:1]) for i in range(4))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chosen", [Cosine(), Convolutions(2, 3)])
def test_a_map_is_what_the_frequencies_look_at(chosen):
    law = Law(16, (GaussianKernel((1.0,), 8, map=chosen),))
    sketcher, rows = law.drawn(torch.float64), normal(4, 16)
    drawn = sketcher.parts[0]
    angles = drawn.looked_at(rows) @ (2 * math.pi * drawn.turns)
    torch.testing.assert_close(sketcher(rows), torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(8))
    rows.requires_grad_()
    sketcher(rows).sum().backward()
    assert float(rows.grad.abs().sum()) > 0


def test_reduced_angles_have_the_cosines_of_the_angles_themselves_and_their_derivative():
    sketcher = Law(2, (GaussianKernel((0.001,), 6),)).drawn(torch.float64)
    rows = normal(3, 2).requires_grad_()
    angles = rows @ (2 * math.pi * sketcher.parts[0].turns)
    assert float(angles.detach().abs().max()) > 1000
    plain = torch.cat([angles.cos(), angles.sin()], dim=1) / math.sqrt(6)
    torch.testing.assert_close(sketcher(rows), plain, rtol=0, atol=1e-11)
    weights = normal(3, 12, seed=5)
    (ours,) = torch.autograd.grad((sketcher(rows) * weights).sum(), rows)
    (theirs,) = torch.autograd.grad((plain * weights).sum(), rows)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-7)


def test_some_frequencies_have_the_squared_norms_of_all_in_the_mean():
    law = MIXED
    sketcher, rows = law.drawn(torch.float64), normal(2, 6)
    gap = rows[:1] - rows[1:]
    whole = sketcher(rows)
    wanted = float((whole[0] - whole[1]).square().sum())
    found = []
    for seed in range(600):
        module, places, factors = sketcher.some(0.3, torch.Generator().manual_seed(seed))
        vectors = module(rows)
        torch.testing.assert_close(vectors, whole[:, places] * factors)
        found.append(float((vectors[0] - vectors[1]).square().sum()))
    assert len(places) == 2 * 6 + 3 and float(gap.norm()) > 0
    assert abs(np.mean(found) - wanted) < 5 * np.std(found) / math.sqrt(len(found))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: Law(0, (KERNEL,)), "features = 0"),
        (lambda: Law(3, (KERNEL,), classes=0), "classes = 0"),
        (lambda: Law(3, (KERNEL,), counts=0.0), "counts = 0"),
        (lambda: Law(3, (KERNEL,), counts=5.0), "counts = 5"),
        (lambda: Law(3, ()), "at least one part"),
        (lambda: Law(3, (GaussianKernel((1.0,), 4, weight=-1.0),)), "weight is -1"),
        (lambda: Law(3, (GaussianKernel((1.0,), 4, columns=(3,)),)), "columns 0 .. 2"),
        (lambda: Law(3, (GaussianKernel((1.0,), 2**23 + 1, scheme="iid"),)).drawn(), "at most 16777216"),
        (lambda: LAWS["kernel"].drawn(torch.bfloat16), "torch.bfloat16"),
        (lambda: LAWS["kernel"].drawn().sums(torch.zeros(2, 4), torch.zeros(2).long()), "the law is for"),
        (lambda: LAWS["kernel"].drawn().sums(torch.zeros(2, 3).double(), torch.zeros(2).long()), "drawn.torch.float64"),
        (lambda: LAWS["kernel"].drawn().sums(torch.zeros(0, 3), torch.zeros(0).long()), "0 records"),
    ],
)
def test_a_law_or_records_that_do_not_fit_are_named(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
def test_the_sum_is_made_on_the_device_of_the_records():
    law = LAWS["mixed"]
    rows, cells = normal(50, 6).float(), cells_of(law, 50)
    total = law.drawn().to("cuda").sums(rows.cuda(), cells.cuda())
    assert total.device.type == "cuda"
    torch.testing.assert_close(total.cpu(), law.drawn().sums(rows, cells), rtol=0, atol=50 * 2e-6)


@pytest.mark.parametrize("name", sorted(LAWS))
def test_sums_for_a_distance_and_their_gradients_are_those_of_the_vectors(name: str) -> None:
    law = LAWS[name]
    sketcher = law.drawn(torch.float64)
    rows, cells = normal(40, law.features).requires_grad_(), cells_of(law, 40)
    found = sketcher.by_cell(rows, cells)
    wanted = sums_of_vectors(sketcher(rows), cells, law.cells)
    for mine, naive in ((found.sums, wanted.sums), (found.squares, wanted.squares), (found.counts, wanted.counts)):
        torch.testing.assert_close(mine, naive)

    def slope(batch: BatchSums) -> torch.Tensor:
        (gradient,) = torch.autograd.grad((batch.sums.sin() * 3).sum() + batch.squares.square().sum(), rows)
        return gradient

    torch.testing.assert_close(slope(found), slope(wanted))
