"""Partitions: every record at one client, decided by the seed, clients as different as asked for."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedsw.data import Records, from_flwr_datasets, owners

DIRICHLET_DRAWS = 100


def make(sensitive: Any, target: Any = None) -> Records:
    groups = torch.as_tensor(np.asarray(sensitive), dtype=torch.int64)
    n = len(groups)
    classes = torch.zeros(n, dtype=torch.int64) if target is None else torch.as_tensor(np.asarray(target))
    return Records(torch.zeros(n, 1), groups, classes, torch.arange(n))


def partition(records: Records, clients: int, *scheme: Any, **settings: Any) -> list[Any]:
    """The rows of every client, ascending."""
    owner = owners(records, clients, *scheme, **settings)
    return [np.flatnonzero(owner == client) for client in range(clients)]


def halves(n: int) -> Records:
    return make(np.arange(n) % 2, (np.arange(n) // 2) % 3)


@given(
    groups=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    clients=st.integers(1, 12),
    scheme=st.sampled_from(["iid", "group", "dirichlet"]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_partition_is_disjoint_exhaustive_ascending_and_leaves_no_client_empty(
    groups: list[int], clients: int, scheme: Any, seed: int
) -> None:
    records, clients = make(groups), min(clients, len(groups))
    try:
        parts = partition(records, clients, scheme, concentration=5.0, seed=seed)
    except ValueError as fault:
        assert scheme == "dirichlet" and "has no record" in str(fault)
        return
    assert len(parts) == clients
    assert all(len(part) > 0 and (np.diff(part) > 0).all() and part.dtype == np.int64 for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(groups)))


@given(
    groups=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    clients=st.integers(1, 60),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_with_enough_clients_each_holds_one_group_and_with_fewer_each_group_is_at_one_client(
    groups: list[int], clients: int, seed: int
) -> None:
    column, clients = np.asarray(groups), min(clients, len(groups))
    held = [set(column[part].tolist()) for part in partition(make(groups), clients, "group", seed=seed)]
    if clients >= len(set(groups)):
        assert all(len(values) == 1 for values in held)
    else:
        assert sum(map(len, held)) == len(set(groups))


def test_clients_of_the_group_scheme_are_shared_out_to_level_their_sizes() -> None:
    sizes = [len(part) for part in partition(make([0] * 90 + [1] * 30), 4, "group")]
    assert sorted(sizes) == [30, 30, 30, 30]


def test_the_seed_decides_and_another_seed_deals_differently() -> None:
    for scheme in ("iid", "group", "dirichlet"):
        one, again, other = (partition(halves(200), 4, scheme, seed=seed) for seed in (1, 1, 2))
        assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
        assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_iid_parts_are_equal_up_to_one_and_uniform() -> None:
    sizes = [len(part) for part in partition(halves(103), 4, "iid")]
    assert sorted(sizes) == [25, 26, 26, 26]
    first = np.concatenate([partition(halves(40), 4, "iid", seed=seed)[0] for seed in range(400)])
    assert stats.chisquare(np.bincount(first, minlength=40)).pvalue > 1e-4


def test_the_dirichlet_scheme_goes_by_groups_or_by_classes() -> None:
    records = halves(6000)
    for by, values in (("sensitive", 2), ("target", 3)):
        parts = partition(records, 3, "dirichlet", concentration=1e6, by=by, seed=0)
        column = getattr(records, by).numpy()
        for part in parts:
            shares = np.bincount(column[part], minlength=values) * values / 6000
            np.testing.assert_allclose(shares, 1 / 3, atol=0.01)
    skewed = partition(records, 3, "dirichlet", concentration=0.2, by="target", seed=0)
    counts = np.array([np.bincount(records.target.numpy()[part], minlength=3) for part in skewed])
    assert counts.max() > 1500 and counts.min() < 100


def test_dirichlet_shares_have_the_law_of_flwr_datasets() -> None:
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    datasets = pytest.importorskip("datasets")
    records, ours, theirs = halves(400), [], []
    column = datasets.Dataset.from_dict({"sensitive": records.sensitive.numpy()})
    for seed in range(DIRICHLET_DRAWS):
        parts = partition(records, 4, "dirichlet", concentration=1.0, seed=seed)
        ours.append(int((records.sensitive.numpy()[parts[0]] == 0).sum()))
        dirichlet = partitioner.DirichletPartitioner(
            num_partitions=4, partition_by="sensitive", alpha=1.0, min_partition_size=1, seed=seed
        )
        dirichlet.dataset = column
        theirs.append(sum(value == 0 for value in dirichlet.load_partition(0)["sensitive"]))
    # A share of a symmetric Dirichlet law with K parts is Beta(a, (K - 1) a).
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-3
    assert stats.kstest(np.array(ours) / 200, stats.beta(1, 3).cdf).pvalue > 1e-3


def test_any_partitioner_of_flwr_datasets_deals_records() -> None:
    partitioner = pytest.importorskip("flwr_datasets.partitioner")
    records = halves(101)
    iid = from_flwr_datasets(partitioner.IidPartitioner(num_partitions=4), records)
    assert [len(part) for part in iid] == [len(part) for part in partition(records, 4, "iid")]
    assert np.array_equal(np.concatenate(iid), np.arange(101))
    by_class = from_flwr_datasets(partitioner.NaturalIdPartitioner(partition_by="target"), records)
    assert [set(records.target.numpy()[part].tolist()) for part in by_class] == [{0}, {1}, {2}]


def test_a_partitioner_that_drops_or_repeats_records_is_refused() -> None:
    pytest.importorskip("datasets")

    class Partitioner:
        dataset: Any = None
        num_partitions = 2

        def __init__(self, *parts: list[int]) -> None:
            self.parts = parts

        def load_partition(self, client: int) -> Any:
            return self.dataset.select(self.parts[client])

    with pytest.raises(ValueError, match="gives row 2 to 0 clients"):
        from_flwr_datasets(Partitioner([0, 1], [3]), halves(4))
    with pytest.raises(ValueError, match="gives row 1 to 2 clients"):
        from_flwr_datasets(Partitioner([0, 1], [1, 2, 3]), halves(4))
    with pytest.raises(ValueError, match="client 1 of 2 has no record from Partitioner"):
        from_flwr_datasets(Partitioner([0, 1, 2, 3], []), halves(4))


def test_without_flwr_datasets_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match="pip install flwr-datasets"):
        from_flwr_datasets(object(), halves(4))


def test_a_client_that_stays_empty_is_named() -> None:
    with pytest.raises(ValueError, match=r"client \d.* of 30 has no record in the last of 100 draws"):
        partition(halves(40), 30, "dirichlet", concentration=0.01)


@pytest.mark.parametrize(
    ("settings_", "reason"),
    [
        ({"clients": 0}, "clients = 0; a federation has at least 1"),
        ({"clients": 11}, "11 clients for 10 records"),
        ({"clients": 2, "scheme": "natural"}, "scheme 'natural' is unknown"),
        ({"clients": 2, "scheme": "dirichlet", "concentration": 0.0}, "concentration = 0.0"),
        ({"clients": 2, "scheme": "dirichlet", "concentration": float("nan")}, "concentration = nan"),
        ({"clients": 2, "scheme": "dirichlet", "by": "age"}, "by 'age' is unknown"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings_: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        partition(halves(10), **settings_)


def test_going_by_a_target_that_is_a_number_is_refused() -> None:
    records = Records(torch.zeros(4, 1), torch.zeros(4, dtype=torch.int64), torch.zeros(4, 2), torch.arange(4))
    with pytest.raises(ValueError, match="needs classes, and this target is a number"):
        partition(records, 2, "dirichlet", by="target")
