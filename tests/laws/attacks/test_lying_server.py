"""`local-gradient` under a lying server: neighbours move by at most the claimed sensitivity, or nothing is asked."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsw._tools.settings import ExperimentError
from fedsw.data import Records
from fedsw.federation import client as handlers
from fedsw.federation import messages
from fedsw.federation.engines.inprocess import InProcessGrid, node_configs
from fedsw.federation.exchange.exchange import Traffic, exchange
from fedsw.federation.messages import Fault
from fedsw.federation.node import replies as nodes
from fedsw.federation.trust import budget_shares as split
from fedsw.learning.models import flatten
from fedsw.learning.objectives import histograms as tables
from fedsw.learning.tasks.problem import Problem
from fedsw.privacy.sensitivity import SLACK, Sensitivity
from tests.federations import array_record, small
from tests.noises import other_noise

SLOW = pytest.mark.slow

FEATURES = 16
RUN = "a77ac4ed" * 4
MODELS = {
    "logistic": ("model.kind=logistic",),
    "mlp": ("model.kind=mlp", "model.hidden=[1024]"),
    "narrow": ("model.kind=mlp", "model.hidden=[4]"),
}


class Client:
    """One client, asked by messages; `moved` is how far a replaced record moves what it noises, in units of Delta."""

    def __init__(self, model: str, alpha: float, precision: str) -> None:
        self.experiment = small(
            "privacy.trust=local-gradient",
            "privacy.epsilon=inf",
            "privacy.noise_multiplier=1.0",
            f"objective.alpha={alpha}",
            f"training.precision={precision}",
            "training.batch_fraction=1.0",
            "training.rounds=100000",
            "federation.clients=1",
            *MODELS[model],
        )
        self.folder = Path(tempfile.mkdtemp())
        self._grid = InProcessGrid(handlers.app, node_configs(1, self.folder))
        self._rounds = itertools.count(1)
        config = ConfigRecord({"experiment": self.experiment.model_dump_json(), "run": RUN})
        self._ask(messages.HELLO.kind, {"config": config})
        self.node = nodes.join(self.experiment.model_dump_json(), RUN, self._grid.run_id, {"partition-id": 0})
        self.contribution = math.sqrt(1 - self.experiment.local.table_share) if alpha else 1.0

    def moved(self, theta: torch.Tensor, pair: list[Records], sizes: list[int], table: torch.Tensor) -> float:
        """||v - v'|| / Delta of two neighbours' contributions before their noise.

        Raises:
            ValueError: if the client declines.
        """
        vectors = []
        for records in pair:
            self.node.records, self.node.batch = records, None
            self.node.cells = self.node.task.cells_of(records)
            self.node.starts = tuple(np.array([0, len(cell)]) for cell in self.node.cells)
            self.node.__dict__.pop("held", None)
            asked = {"round": next(self._rounds), "attempt": 0, "sizes": sizes, "records": 100}
            dtype = self.node.task.dtype
            sent = {"model": array_record("theta", theta.to(dtype)), "config": ConfigRecord(asked)}
            seen: list[tuple[torch.Tensor, float]] = []
            with other_noise(lambda values, sigma, stream, seen=seen: seen.append((values, sigma)) or values):
                if self.experiment.objective.alpha:
                    self._ask(messages.TABLES.kind, sent)
                    sent["arrays"] = array_record("tables", table.to(dtype))
                self._ask(messages.LOCAL_GRADIENTS.kind, sent)
            vectors.append(seen[-1])
        (one, sigma), (other, again) = vectors
        assert sigma == again
        return float((one - other).norm()) / (sigma * self.contribution)

    def charged(self) -> int:
        """How often the client's ledger was charged."""
        place = self.folder / "client-0.sqlite"
        if not place.exists():
            return 0
        with contextlib.closing(sqlite3.connect(f"file:{place}?mode=ro", uri=True)) as ledger:
            return int(ledger.execute("SELECT COUNT(*) FROM rows").fetchone()[0])

    def _ask(self, kind: str, content: dict) -> RecordDict:
        (node,) = self._grid.get_node_ids()
        requests = {node: RecordDict(dict(content))}
        reply = exchange(self._grid, kind, requests, group=kind, timeout=60.0, traffic=Traffic())[node]
        if isinstance(reply, Fault):
            raise ValueError(reply.reason)
        return reply


@functools.cache
def client(model: str, alpha: float, precision: str = "float32") -> Client:
    """The client of a setting, greeted once."""
    return Client(model, alpha, precision)


def records(features: torch.Tensor, label: int) -> Records:
    """The attacked record in group 0, and one of group 1 that stays."""
    rows = torch.stack([features.float(), torch.zeros(FEATURES)])
    return Records(rows, torch.tensor([0, 1]), torch.tensor([label, 0]), torch.arange(2))


def lie(bins: int, direction: float) -> torch.Tensor:
    """Slot means that no honest server would send."""
    return torch.full((2, 1, bins), direction)


def attacked(found: Client, theta: torch.Tensor, pair: list[Records], sizes: list[int], direction: float) -> float:
    """How far a pair moves, 0 if the client declines; declined requests are not charged."""
    before = found.charged()
    try:
        return found.moved(theta, pair, sizes, lie(found.experiment.local.bins, direction))
    except ValueError as refusal:
        assert re.search(r"sizes came as .* to 2\^40\..*charged nothing", str(refusal))
        assert found.charged() == before
        return 0.0


def start(found: Client, seed: int, spread: float) -> torch.Tensor:
    """Parameters of the server's choice: powers of ten apart if `spread` is large."""
    generator = torch.Generator().manual_seed(seed)
    theta = flatten(found.node.model)
    scale = 10.0 ** (spread * torch.randn(theta.shape, generator=generator, dtype=torch.float64))
    return (torch.randn(theta.shape, generator=generator, dtype=torch.float64) * scale).to(found.node.task.dtype)


@pytest.mark.parametrize(
    "model, size, seeds",
    [
        ("logistic", 9e41, range(48)),
        pytest.param("mlp", 1.5e43, range(48), marks=SLOW),
        pytest.param("mlp", 2**60, range(48), marks=SLOW),
        ("mlp", 2**40, range(0, 48, 3)),
        ("logistic", 2**39, range(0, 48, 3)),
    ],
)
def test_no_sizes_that_a_server_may_say_move_a_flipped_label_beyond_the_claim(model, size, seeds):
    found = client(model, 0.0)
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        features = torch.randn(FEATURES, generator=generator) * 10.0 ** (seed % 8 / 2)
        if seed % 2:  # one feature, of all magnitudes at which a backprop is one or two of the smallest numbers
            features = torch.zeros(FEATURES).index_fill(0, torch.tensor([0]), 100 * 1.1**seed)
        pair = [records(features, 0), records(features, 1)]
        theta = flatten(found.node.model) if seed < 36 else start(found, seed, 0.1 * (seed - 36))
        assert attacked(found, theta, pair, [int(size), int(size)], 0.0) <= 1.0


@pytest.mark.parametrize("size", [2**60, pytest.param(2**39, marks=SLOW)])
def test_no_parameters_that_a_server_may_choose_move_a_flipped_label_beyond_the_claim(size):
    """Tiny weights after a layer of huge features: backprops are a few of the smallest numbers, and count."""
    found = client("mlp", 0.0)
    for step in range(60):
        magnitude = 10.0 ** (20 + step / 4)
        theta = torch.zeros_like(flatten(found.node.model))
        hidden = 1 + 31 * (step % 2)
        theta[-1025 : -1025 + hidden] = 10 / magnitude
        features = torch.zeros(FEATURES).index_fill(0, torch.tensor([0]), magnitude)
        pair = [records(features, 0), records(features, 1)]
        assert attacked(found, theta.to(found.node.task.dtype), pair, [size, size], 0.0) <= 1.0


@settings(max_examples=70)
@given(
    model=st.sampled_from(sorted(MODELS)),
    alpha=st.sampled_from([0.0, 0.5, 1.0]),
    precision=st.sampled_from(["float32", "float64"]),
    power=st.floats(0, 60),
    magnitude=st.floats(-44, 38),
    spread=st.floats(0, 12),
    opposite=st.sampled_from([1.0, -1.0, 1e-3, 1e6]),
    flipped=st.booleans(),
    direction=st.sampled_from([-1.0, 1.0, 0.0, math.nan, math.inf, 1e30]),
    seed=st.integers(0, 10**6),
)
def test_no_search_over_sizes_parameters_precisions_and_magnitudes_moves_a_record_beyond_the_claim(
    model, alpha, precision, power, magnitude, spread, opposite, flipped, direction, seed
):
    found = client(model, alpha, precision)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(FEATURES, generator=generator, dtype=torch.float64) * 10.0**magnitude
    pair = [records(features.clamp(-3e38, 3e38), 0), records((opposite * features).clamp(-3e38, 3e38), int(flipped))]
    size = int(2.0 ** (power * 2.5))
    assert attacked(found, start(found, seed, spread), pair, [size, size], direction) <= 1.0


@pytest.mark.parametrize("radius", [7.2e-46, 2e-45, 1e-42, 1e-38, 1e-30, 1.0, 1e30])
def test_no_radius_that_settings_take_is_exceeded_where_a_processor_keeps_subnormal_numbers(radius):
    """As GPUs do: an output that is cut to 7.2e-46 is rounded to 1.4e-45, and pulls half as much again."""
    try:
        task = Problem.from_experiment(small("privacy.trust=local-gradient", f"clip.output={radius}"))
    except ExperimentError as fault:
        assert "clip.output" in str(fault) and radius < 1e-30
        return
    outputs = task.clipped.in_balls(torch.tensor([[1.0], [-1.0], [0.3]])).to(task.dtype)  # as they travel
    parts = {"penalty": task.objective.parts[0], "cell": 0, "size": 10, "radius": radius}
    pulled = tables.cotangents(outputs, task.clipped.directions(1, 0)[0], torch.full((1, 8), -radius), **parts)
    most = tables.cotangent_bound(**parts, spread=1.0)
    assert float(pulled.norm(dim=1).max()) <= SLACK * most


@pytest.mark.parametrize("field", ["sizes", "records"])
def test_what_no_federation_has_is_declined_before_it_is_charged(field, monkeypatch):
    found = client("logistic", 0.5)
    own = split.own_batch(found.node.sizes, 1.0)
    asked = {"round": 10**6, "attempt": 0, "sizes": list(own), "records": 100}
    asked[field] = [2**41, 2**41] if field == "sizes" else 2**41
    theta = array_record("theta", flatten(found.node.model).to(found.node.task.dtype))
    before = found.charged()
    with pytest.raises(ValueError, match=rf"{field} came as .* to 2\^40\..*charged nothing"):
        found._ask(messages.TABLES.kind, {"model": theta, "config": ConfigRecord(asked)})
    assert found.charged() == before


def test_noise_that_cannot_be_drawn_is_declined_before_it_is_charged(monkeypatch):
    least = Sensitivity(2.0**-950, "any")
    found = client("logistic", 0.0)
    monkeypatch.setattr(split, "noise", lambda *a, **k: split.Noise(0.0, 2.0**-950, least, None, least))
    asked = {"round": 10**6 + 1, "attempt": 0, "sizes": [1, 1], "records": 100}
    theta = array_record("theta", flatten(found.node.model).to(found.node.task.dtype))
    before = found.charged()
    with pytest.raises(ValueError, match=r"noise of scale .* between 2\^-900 and 2\^900"):
        found._ask(messages.LOCAL_GRADIENTS.kind, {"model": theta, "config": ConfigRecord(asked)})
    assert found.charged() == before


def test_a_table_that_nothing_asks_for_is_declined_before_it_is_charged():
    found = client("logistic", 0.0)
    asked = {"round": 10**6 + 2, "attempt": 0, "sizes": [1, 1], "records": 100}
    theta = array_record("theta", flatten(found.node.model).to(found.node.task.dtype))
    before = found.charged()
    with pytest.raises(ValueError, match="nothing was charged"):
        found._ask(messages.TABLES.kind, {"model": theta, "config": ConfigRecord(asked)})
    assert found.charged() == before
