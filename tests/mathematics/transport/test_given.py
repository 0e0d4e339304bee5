"""Every public function of the room takes numbers, arrays and tensors alike, and refuses what is no finite number."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.mathematics import transport
from fedsw.mathematics.transport import barycentre, denoise, entropic, flow, sliced


@dataclass(frozen=True)
class Table:
    """Numbers of an array or a tensor, finite ones; `directions` are unit columns beside."""

    values: Tensor
    directions: bool = False
    any_number: str = ""  # reason why NaN and infinities are taken


@dataclass(frozen=True)
class Number:
    """One finite number."""

    value: float


@dataclass(frozen=True)
class Count:
    """A whole number of 1 or more."""

    value: int


def points(n: int, d: int, seed: int = 0) -> Table:
    return Table(torch.from_numpy(Stream.seeded(seed, "given").normals(n * d)).reshape(n, d))


THETA = Table(sliced.public_directions(2, 4, "orthogonal", 0), directions=True)
SLICES = flow.Slices(THETA.values, points(5, 4).values, 0.5)
EDGES = Table(torch.linspace(0, 1, 4, dtype=torch.float64))
COUNTS = Table(torch.tensor([[3.0, 1.0, 2.0], [1.0, 4.0, 1.0]], dtype=torch.float64))
PRIVATE = "private numbers pass through it: nothing raises because of one"
SAMPLES: dict[str, Any] = {"sample": points(5, 2), "other": points(3, 2, 1)}
CLOUDS: dict[str, Any] = {"generated": points(5, 2), "released": points(3, 2, 1)}
SOLVED = {"order": 2, "scale": Number(0.7), "tolerance": Number(1e-4), "iterations": Count(99), "fixed": Count(9)}
COSTS = {"costs": Table(points(4, 3).values.abs()), "regulariser": Number(0.5), "iterations": Count(9)}

CALLS: dict[Callable[..., Any], dict[str, Any]] = {
    sliced.direction_shape: {"d": Count(3), "k": Count(2), "scheme": "iid"},
    sliced.directions: {"d": Count(3), "k": Count(2), "normals": points(3, 2), "scheme": "iid"},
    sliced.public_directions: {"d": Count(3), "k": Count(2), "scheme": "iid", "seed": 1, "purpose": None},
    sliced.spread: {"directions": THETA},
    sliced.orthogonal_spread: {"d": Count(3), "k": Count(2)},
    sliced.project: {"outputs": Table(points(4, 2).values, any_number=PRIVATE), "radius": Number(0.6)},
    sliced.slot_means: {**SAMPLES, "ties": "stable", "memory_limit": Count(999)},
    sliced.cotangents: {
        **SAMPLES,
        "directions": THETA,
        "order": Number(3.0),
        "ties": "stable",
        "memory_limit": Count(999),
    },
    sliced.sliced_w2: {**SAMPLES, "directions": THETA, "dtype": torch.float64, "memory_limit": Count(999)},
    sliced.w2_squared_of_columns: SAMPLES,
    entropic.l1_distances: {"x": points(5, 2), "y": points(3, 2, 1)},
    entropic.entropic_plan: {**COSTS, "tolerance": Number(1e-4)},
    entropic.plain_plan: COSTS,
    entropic.entropic_loss: {**CLOUDS, **SOLVED},
    entropic.plain_loss: {**CLOUDS, "order": 2},
    entropic.sinkhorn_divergence: {**CLOUDS, "solved": SOLVED},
    flow.Slices: {"directions": THETA, "projections": points(5, 4), "sigma": Number(0.5)},
    flow.UnprotectedSlices: {"directions": THETA, "projections": points(5, 4), "sigma": 0},
    flow.noised_swd: {
        "generated": points(3, 2),
        "releases": [SLICES],
        "order": 1,
        "towards": "barycentre",
        "dummy": True,
        "stream": 0,
    },
    flow.flow_step: {
        "particles": points(3, 2),
        "slices": [SLICES],
        "step": Number(0.5),
        "diffusion": Number(0.1),
        "towards": "barycentre",
        "dummy": True,
        "stream": 0,
    },
    flow.draw_stored: {"releases": [SLICES], "count": Count(2), "stream": 0},
    denoise.wavelet_denoise: {
        "released": points(3, 16),
        "deviation": Number(0.5),
        "shape": "image",
        "wavelet": "haar",
        "thresholds": (),
    },
    denoise.image_side: {"features": Count(16)},
    denoise.cosine_matrix: {"side": Count(3)},
    barycentre.bins_of: {"scores": Table(points(6, 1).values[:, 0], any_number=PRIVATE), "edges": EDGES},
    barycentre.distributions_of: {"counts": COUNTS},
    barycentre.fair_maps: {
        "distributions": Table(COUNTS.values / 6),
        "weights": Table(torch.tensor([0.5, 0.5])),
        "edges": EDGES,
        "radius": Number(0.5),
    },
}
"""Every public function of the room, and each of its arguments."""

OF_A_ROUND = {sliced.cotangents_of_projected}
"""What takes only what this room has made, and looks at no number of it: `tests/laws/devices/test_transfers.py`."""

RESULTS = {entropic.EntropicMatching, flow.Match, barycentre.FairMaps}
"""Classes of what functions return."""

KINDS = {
    "list": (lambda table: table.tolist(), lambda number: number),
    "array": (lambda table: table.numpy(), lambda number: np.asarray(number)[()]),
    "float32": (lambda table: table.numpy().astype(np.float32), lambda number: np.asarray(number)),
    "tensor": (lambda table: table, lambda number: torch.tensor(number, dtype=torch.float64)),
}


def called(function: Callable[..., Any], arguments: dict[str, Any], kind: str = "tensor") -> Any:
    """Call with arguments as one kind; the streams are new ones."""
    table, number = KINDS[kind]

    def plain(name: str, value: Any) -> Any:
        if name == "stream":
            return Stream.seeded(0)
        if isinstance(value, Table):
            return table(value.values)
        if isinstance(value, Count) and kind == "tensor":
            return torch.tensor(value.value)
        return number(value.value) if isinstance(value, Number | Count) else value

    values = {name: plain(name, value) for name, value in arguments.items() if name != "purpose"}
    values |= {name: plain(name, value) for name, value in values.pop("solved", {}).items()}
    return function(**values)


def numbers(result: Any) -> list[float]:
    """All numbers of a result, whatever holds them."""
    if isinstance(result, tuple | list):
        return [number for part in result for number in numbers(part)]
    if hasattr(result, "__dataclass_fields__"):
        return numbers([getattr(result, name) for name in result.__dataclass_fields__])
    return np.asarray(result.detach() if isinstance(result, Tensor) else result, dtype=np.float64).ravel().tolist()


def public(module: str) -> list[Callable[..., Any]]:
    home = importlib.import_module(f"{transport.__name__}.{module}")
    return [
        value
        for name, value in vars(home).items()
        if isinstance(value, FunctionType | type) and value.__module__ == home.__name__ and not name.startswith("_")
    ]


def test_every_public_function_and_every_argument_of_the_room_is_called_here() -> None:
    functions = {function for module in transport.__all__ if module != "given" for function in public(module)}
    assert functions == CALLS.keys() | RESULTS | OF_A_ROUND
    for function, arguments in CALLS.items():
        assert arguments.keys() == inspect.signature(function).parameters.keys(), function


@pytest.mark.parametrize("kind", ["list", "array", "float32"])
@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_numbers_arrays_and_tensors_are_taken_alike(function: Callable[..., Any], kind: str) -> None:
    expected, found = (numbers(called(function, CALLS[function], each)) for each in ("tensor", kind))
    assert found == pytest.approx(expected, rel=2e-4 if kind == "float32" else 0, abs=2e-5 if kind == "float32" else 0)


def _broken() -> list[Any]:
    cases = []
    for function, whole_call in CALLS.items():
        arguments = {**whole_call, **whole_call.get("solved", {})}
        for name, value in arguments.items():
            if isinstance(value, Table) and not value.any_number:
                for odd in (math.nan, math.inf, -math.inf):
                    table = value.values.clone()
                    table.view(-1)[-1] = odd
                    cases.append((function, name, Table(table), "finite|unit columns"))
                empty = value.values[:, :0] if value.values.ndim == 2 else value.values[:0]
                cases.append((function, name, Table(empty), "shape|empty|edges|bins"))
            if isinstance(value, Table) and value.directions:
                cases.append((function, name, Table(value.values * 1.001), "unit columns"))
                cases.append((function, name, Table(value.values[:, 0]), "directions have shape"))
            if isinstance(value, Number):
                cases += [(function, name, Number(odd), name.split("_")[0]) for odd in (math.nan, math.inf, -1.0)]
            if isinstance(value, Count):
                cases += [(function, name, Number(odd), "whole number") for odd in (math.nan, math.inf, 0, 1.5)]
    return [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}-{number}") for number, case in enumerate(cases)]


@pytest.mark.parametrize(("function", "name", "value", "why"), _broken())
def test_what_is_no_finite_number_no_direction_or_no_sample_is_refused(
    function: Callable[..., Any], name: str, value: Any, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        called(function, {**CALLS[function], **CALLS[function].get("solved", {}), name: value} | {"solved": {}})


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_texts_and_ragged_rows_are_refused_where_numbers_are_taken(function: Callable[..., Any]) -> None:
    for name, value in CALLS[function].items():
        for odd in ([["1", "2"], ["3", "4"]], [[1.0, 2.0], [3.0]], np.array([[None, 1.0]]), "a", torch.ones(2, 2) * 1j):
            if isinstance(value, Table | Number | Count):
                with pytest.raises(ValueError, match=r"."):
                    called(function, CALLS[function] | {name: odd})


def test_what_private_numbers_pass_through_takes_any() -> None:
    odd = torch.tensor([[math.nan, 1.0], [math.inf, 0.0], [0.1, 0.0]], dtype=torch.float64)
    assert sliced.project(odd.tolist(), 1.0).tolist() == [[0.0, 0.0], [0.0, 0.0], [0.1, 0.0]]
    assert barycentre.bins_of(odd[:, 0].numpy(), EDGES.values.numpy()).tolist() == [2, 2, 0]


@pytest.mark.parametrize("sizes", [(40, 40), (40, 25), (7, 40)])
@pytest.mark.parametrize("offset", [1e4, 1e8, 1e12])
def test_an_offset_common_to_both_samples_changes_no_distance(sizes: tuple[int, int], offset: float) -> None:
    own, other = (points(n, 2, seed).values for n, seed in zip(sizes, (3, 4), strict=True))
    own, other = ((side * 2**10).round() / 2**10 for side in (own, other))  # so that the offset loses none of its bits
    tolerance = {"rel": 1e-12} if offset < 1e12 else {"rel": 1e-2}
    for dtype in (torch.float64, torch.float32):
        apart, moved = (
            float(sliced.sliced_w2(own + move, other + move, THETA.values, dtype=dtype)) for move in (0.0, offset)
        )
        assert moved == pytest.approx(apart, **(tolerance if dtype == torch.float64 else {"rel": 1e-2}))
    near, far = (sliced.w2_squared_of_columns(own + move, other + move) for move in (0.0, offset))
    for one, shifted in zip(near, far, strict=True):
        assert shifted.tolist() == [pytest.approx(row, rel=1e-2, abs=1e-3) for row in one.tolist()]
    means = sliced.slot_means(own + offset, other + offset) - offset
    torch.testing.assert_close(means, sliced.slot_means(own, other), rtol=0, atol=4 * offset * 2**-52)
