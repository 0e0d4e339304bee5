"""Noised tables that agree, the tree that is chosen from them, and the choice between it and the network."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional as F

from fedsw._tools.randomness import Stream
from fedsw.learning.models.labelled import NONE, TableGenerator, generate, proportions_of
from fedsw.learning.sketches import trees
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.learning.sketches.sketch_law import Law
from fedsw.learning.sketches.table_counts import Pairs, consistent, projected, with_margins
from fedsw.learning.sketches.trees import TablesOf, choose, informations, move_rows, next_pairs, spanning_tree

SIZES = (2, 4, 3, 3)
RANGES = ((0, 2), (2, 6), (6, 9), (9, 12))
LAW = Law(12, (Pairs(RANGES, singles=0.3, balance="size"),), classes=2, counts=0.1)
SKETCHER = LAW.drawn(torch.float64)
N = 4000


def chain(seed: int = 0, n: int = N) -> tuple[Tensor, Tensor, Tensor]:
    """Codes of four columns that depend on each other in a row, 0 - 2 - 1 - 3, and cells."""
    rng = np.random.default_rng(seed)
    cells = rng.choice(2, n, p=[0.7, 0.3])
    first = (rng.random(n) < 0.3 + 0.3 * cells).astype(int)
    third = np.where(rng.random(n) < 0.7, first, rng.integers(0, 3, n))
    second = np.where(rng.random(n) < 0.7, third, rng.integers(0, 4, n))
    fourth = np.where(rng.random(n) < 0.7, np.minimum(second, 2), rng.integers(0, 3, n))
    codes = torch.from_numpy(np.stack([first, second, third, fourth], axis=1))
    rows = torch.cat([F.one_hot(codes[:, k], size) for k, size in enumerate(SIZES)], dim=1).double()
    return codes, rows, torch.from_numpy(cells)


def sketched(sigma: float = 4.0, seed: int = 0) -> NoisedSketch:
    _, rows, cells = chain()
    total = SKETCHER.sums(rows, cells)
    noise = torch.from_numpy(Stream.seeded(seed, "test noise").normals(total.numel())).reshape(total.shape)
    return NoisedSketch(LAW, total + sigma * noise, sigma, N)


def test_without_noise_the_tables_are_those_of_the_records():
    codes, rows, cells = chain()
    tables = consistent(sketched(0.0))
    inside = F.one_hot(cells, 2).double()
    for (i, j), table in tables.pairs.items():
        ends = [*itertools.accumulate((0, *SIZES))]
        one, other = rows[:, ends[i] : ends[i + 1]], rows[:, ends[j] : ends[j + 1]]
        exact = torch.einsum("nc,na,nb->cab", inside, one, other) / N
        torch.testing.assert_close(table, exact, rtol=0, atol=1e-5)


def test_noised_tables_are_laws_that_agree_on_every_margin():
    tables = consistent(sketched(60.0))
    assert float(tables.proportions.sum()) == pytest.approx(1)
    for law in tables.singles:
        assert float(law.min()) >= 0
        torch.testing.assert_close(law.sum(dim=1), tables.proportions)
    assert set(tables.pairs) == set(itertools.combinations(range(4), 2))
    for (i, j), table in tables.pairs.items():
        assert float(table.min()) >= 0
        torch.testing.assert_close(table.sum(dim=2), tables.singles[i], rtol=0, atol=1e-4)
        torch.testing.assert_close(table.sum(dim=1), tables.singles[j], rtol=0, atol=1e-4)


def test_what_tables_share_is_read_with_less_noise_than_any_of_them_has():
    exact, errors = consistent(sketched(0.0)), []
    for seed in range(8):
        sketch = sketched(8.0, seed)
        read = sketch.blocks[:, 2:6] / SKETCHER.parts[0].single[1]
        tables = consistent(sketch)
        errors.append([float((each - exact.singles[1]).square().mean()) for each in (read, tables.singles[1])])
    alone, together = np.mean(errors, axis=0)
    assert together < 0.8 * alone


def test_the_projection_is_the_nearest_law():
    rng = np.random.default_rng(1)
    numbers, totals = rng.normal(size=(5, 4)), np.array([1.0, 0.5, 2.0, 0.1, 0.0])
    found = projected(torch.from_numpy(numbers), torch.from_numpy(totals)).numpy()
    for row, total, mine in zip(numbers, totals, found, strict=True):
        solved = minimize(
            lambda x, row=row: ((x - row) ** 2).sum(),
            np.full(4, total / 4),
            bounds=[(0, None)] * 4,
            constraints={"type": "eq", "fun": lambda x, total=total: x.sum() - total},
            method="SLSQP",
        )
        np.testing.assert_allclose(mine, solved.x, atol=2e-3)


def test_a_table_gets_its_margins_even_where_noise_emptied_a_row():
    table = torch.tensor([[[-5.0, -5.0], [0.6, 0.4]]], dtype=torch.float64)
    rows, columns = torch.tensor([[0.1, 0.9]]).double(), torch.tensor([[0.5, 0.5]]).double()
    law = with_margins(table, rows, columns)
    torch.testing.assert_close(law.sum(dim=2), rows, rtol=0, atol=1e-3)
    torch.testing.assert_close(law.sum(dim=1), columns, rtol=0, atol=1e-3)


def test_the_tree_of_a_chain_is_the_chain():
    parents, order = spanning_tree(informations(consistent(sketched(10.0))), 4)
    edges = {frozenset((parent, column)) for column, parent in enumerate(parents) if parent != NONE}
    assert edges == {frozenset(edge) for edge in ((0, 2), (1, 2), (1, 3))}
    assert sorted(order) == [0, 1, 2, 3]


def test_noise_alone_is_no_information():
    codes, _, _ = chain()
    rng, found = np.random.default_rng(3), []
    apart = torch.stack([codes[rng.permutation(N), k] for k in range(4)], dim=1)
    rows = torch.cat([F.one_hot(apart[:, k], size) for k, size in enumerate(SIZES)], dim=1).double()
    total = SKETCHER.sums(rows, torch.from_numpy(rng.integers(0, 2, N)))
    for seed in range(5):
        noise = torch.from_numpy(Stream.seeded(seed, "test noise").normals(total.numel())).reshape(total.shape)
        found.append(list(informations(consistent(NoisedSketch(LAW, total + 40 * noise, 40.0, N))).values()))
    assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(len(found))


def test_rows_drawn_along_the_tree_have_the_tables_of_its_edges():
    network = TableGenerator(RANGES, 2, latent=3, hidden=(4,))
    chosen = choose([sketched(2.0)], network, wanted="tree", sketchers=[SKETCHER])
    tables, m = consistent(sketched(2.0)), 40_000
    rows, cells = generate(network, proportions_of(network), m)
    assert set(rows.unique().tolist()) == {0.0, 1.0} and len(chosen.edges) == 3
    ends, inside = [*itertools.accumulate((0, *SIZES))], F.one_hot(cells, 2).float()
    for parent, column in chosen.edges:
        i, j = sorted((parent, column))
        found = torch.einsum("nc,na,nb->cab", inside, rows[:, ends[i] : ends[i + 1]], rows[:, ends[j] : ends[j + 1]])
        torch.testing.assert_close(found.double() / m, tables.pairs[i, j], rtol=0, atol=4 * 0.5 / m**0.5)


def test_the_nearer_one_is_chosen_and_a_wish_is_a_wish(monkeypatch):
    for moves in (30, 0):  # an untrained network is far, unless its rows are moved
        monkeypatch.setattr(trees, "_MOVES", moves)
        network = TableGenerator(RANGES, 2, latent=3, hidden=(4,))
        before = network.proportions.clone()
        chosen = choose([sketched()], network, sketchers=[SKETCHER])
        assert chosen.kind == min(chosen.distances, key=chosen.distances.get)
        assert bool(network.drawn) == (chosen.kind == "tree")
    assert chosen.kind == "tree"
    again = TableGenerator(RANGES, 2, latent=3, hidden=(4,))
    assert choose([sketched()], again, wanted="network", sketchers=[SKETCHER]).kind == "network"
    assert not bool(again.drawn)
    torch.testing.assert_close(again.proportions, before)


def moved(sigma: float) -> tuple[TableGenerator, list[float], float]:
    """A network whose rows were moved; their distances before and after, noise taken off; the noise's own."""
    network, target = TableGenerator(RANGES, 2, latent=3, hidden=(4,)), TablesOf(sketched(sigma))
    before = generate(network, torch.full((2,), 0.5), 2000)[0].double()
    move_rows([sketched(sigma)], network)
    found = [float(target.distance(rows.double())) for rows in (before.reshape(2, 1000, -1), network.rows)]
    return network, found, target.noise


def test_the_distance_of_rows_of_chances_is_that_of_their_mean_vector():
    sketch, rows = sketched(), torch.rand(2, 5, 12, dtype=torch.float64)
    rows = torch.cat([rows[..., a:b] / rows[..., a:b].sum(dim=-1, keepdim=True) for a, b in RANGES], dim=-1)
    noise = float(sketch.deviation) ** 2 * sketch.coordinates * 2
    exact = sum(
        float(
            (sketch.blocks[cell] - sketch.proportions[cell] * SKETCHER.parts[0](rows[cell]).mean(dim=0)).square().sum()
        )
        for cell in range(2)
    )
    assert float(TablesOf(sketch).distance(rows)) == pytest.approx(exact - noise, rel=1e-9)


@pytest.mark.parametrize("sigma", [2.0, 30.0])
def test_rows_are_moved_to_the_noise_and_not_into_it(sigma):
    network, (before, after), noise = moved(sigma)
    assert after < 0.02 * before and after > -0.1 * noise
    exact = TablesOf(sketched(0.0))
    learnt = float(exact.distance(network.rows.double()))
    rows, cells = generate(network, proportions_of(network), 20_000)
    assert learnt < 0.1 * before and set(cells.tolist()) == {0, 1}
    sums = [rows[cells == cell].mean(dim=0) for cell in (0, 1)]
    torch.testing.assert_close(torch.stack(sums), network.rows.mean(dim=1), rtol=0, atol=0.03)


def test_once_the_sketch_is_fixed_poisoned_records_change_nothing(monkeypatch):
    sketch, made = sketched(), []
    monkeypatch.setattr(trees, "_MOVES", 30)
    for poison in (False, True):
        if poison:

            def none_left(*_, **__):
                raise AssertionError("a record was looked at")

            monkeypatch.setattr(type(SKETCHER), "sums", none_left)
            monkeypatch.setattr("fedsw.data.codes.codes_of", none_left)
        network = TableGenerator(RANGES, 2, latent=3, hidden=(4,))
        chosen = choose([sketch], network, sketchers=[SKETCHER])
        made.append((chosen, generate(network, proportions_of(network), 100)[0]))
    assert made[0][0] == made[1][0]
    torch.testing.assert_close(made[0][1], made[1][1], rtol=0, atol=0)


def test_a_tree_whose_children_come_first_is_refused():
    network = TableGenerator(RANGES, 2)
    tables = [torch.ones(2, 1, size) for size in SIZES]
    with pytest.raises(ValueError, match="before what they depend on"):
        network.follow([1, NONE, NONE, NONE], [0, 1, 2, 3], tables)


def again(chosen: tuple[tuple[int, int], ...], sigma: float, seed: int) -> NoisedSketch:
    """The same records in a later stage, which measures some pairs."""
    law = Law(12, (Pairs(RANGES, balance="size", chosen=chosen),), classes=2, counts=0.01)
    _, rows, cells = chain()
    total = law.drawn(torch.float64).sums(rows, cells)
    noise = torch.from_numpy(Stream.seeded(seed, "later noise").normals(total.numel())).reshape(total.shape)
    return NoisedSketch(law, total + sigma * noise, sigma, N)


def test_a_later_stage_makes_the_tables_that_it_measures_better():
    exact, pair = consistent(sketched(0.0)).pairs[1, 2], (1, 2)
    errors = np.array(
        [
            [float((consistent(*each).pairs[pair] - exact).square().sum()) for each in ((first,), (first, second))]
            for first, second in ((sketched(20.0, seed), again((pair, (0, 2)), 20.0, seed)) for seed in range(6))
        ]
    )
    assert errors[:, 1].mean() < 0.6 * errors[:, 0].mean()
    (noisy, better) = (
        consistent(*each).deviations[pair] for each in ([sketched()], [sketched(), again((pair,), 4.0, 0)])
    )
    assert better < noisy


def test_a_noisy_table_does_not_spoil_a_good_one():
    exact, pair = consistent(sketched(0.0)).pairs[1, 2], (1, 2)
    for seed in range(3):
        good, noisy = sketched(4.0, seed), again((pair,), 400.0, seed)
        alone, together = (float((consistent(*each).pairs[pair] - exact).norm()) for each in ([good], [good, noisy]))
        assert together < 1.2 * alone


def test_the_pairs_that_a_later_stage_measures_are_the_trees_and_those_that_tell_most():
    assert next_pairs([sketched(10.0)], 3) == ((0, 2), (1, 2), (1, 3))
    assert len(next_pairs([sketched(10.0)], 5)) == 5 and set(next_pairs([sketched(10.0)], 5)) > {(0, 2), (1, 2), (1, 3)}
