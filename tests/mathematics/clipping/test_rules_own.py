"""Laws of rules for layers of a user's own: exact for an LSTM, found where they are wrong, and never above the clip."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from fedsw.mathematics.clipping import (
    Term,
    UnsupportedModule,
    check,
    clipped_sum,
    layer_rule,
    record,
    require_exact,
    rules,
)

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "lstm_rule.py"


@pytest.fixture
def known():
    """The rules that there are; what a test registers is gone after it."""
    table = rules.RULES
    before = dict(table._things)
    yield table
    table._things = before


@pytest.fixture
def example(known):
    spec = importlib.util.spec_from_file_location("lstm_rule", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def naive(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Jacobians (n, d, r) of the model's outputs, record by record."""
    found = []
    for each in x:
        output = model(each[None])[0]
        rows = [torch.autograd.grad(value, list(model.parameters()), retain_graph=True) for value in output]
        found.append(torch.stack([torch.cat([part.flatten() for part in row]) for row in rows]))
    return torch.stack(found)


@pytest.mark.parametrize(("records", "sites", "outputs"), [(1, 1, 1), (6, 5, 1), (9, 4, 3)])
def test_an_lstm_with_a_rule_is_measured_and_clipped_exactly(example, records, sites, outputs):
    torch.manual_seed(records)
    model = nn.Sequential(example.Recurrent(3, 4), nn.Flatten(), nn.Linear(4 * sites, outputs)).double()
    x = torch.randn(records, sites, 3, dtype=torch.float64)
    jacobians = naive(model, x)
    tape = record(model, x)
    gram = tape.gram(tape.raw)
    assert torch.allclose(gram, jacobians @ jacobians.mT, rtol=1e-9)
    cotangents = torch.randn(records, outputs, dtype=torch.float64)
    limit = 0.7 * float(torch.linalg.matrix_norm(jacobians, ord=2).median())
    fresh = record(model, x)
    total = clipped_sum(fresh, [Term(fresh.raw, cotangents, limit)])
    left, sizes, right = torch.linalg.svd(jacobians, full_matrices=False)
    clipped = left @ torch.diag_embed(sizes.clamp(max=limit)) @ right
    true = torch.einsum("ndr,nd->r", clipped, cotangents)
    assert torch.allclose(total, true, rtol=1e-3, atol=1e-3 * float(true.norm()))


def test_without_a_rule_it_is_refused_and_a_subclass_needs_its_own(example, known):
    class Other(example.Recurrent):
        """Might compute anything."""

    with pytest.raises(UnsupportedModule, match="its per-sample gradient has no rule"):
        check(Other(3, 4))
    with pytest.raises(ValueError, match="Recurrent has a rule already"):
        layer_rule(example.Recurrent, parameters=example.NAMES)(example.gradients)
    del known._things[example.Recurrent]
    with pytest.raises(UnsupportedModule, match="has no rule"):
        check(example.Diagnosis())


class Scaled(nn.Module):
    """y = w x, a number for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(1.0, 2.0, 3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x


def scaled(factor):
    """The rule of `Scaled`, right for factor 1."""
    return layer_rule(Scaled, parameters=("weight",))(lambda layer, a, delta: {"weight": factor * a * delta})


def test_a_right_rule_passes_and_keeps_the_clip(known):
    scaled(1.0)
    x, layer = torch.randn(8, 3, dtype=torch.float64), Scaled()
    require_exact(layer, x)
    tape = record(layer, x)
    alone = clipped_sum(tape, [Term(tape.raw, torch.ones(8, 3, dtype=torch.float64) / 3**0.5, 0.25)])
    assert 0 < float(alone.norm()) <= 8 * 0.25 * (1 + 1e-9)


@pytest.mark.parametrize("factor", [1.01, 1e6, 0.0, float("nan")])
def test_a_wrong_rule_is_found_and_never_trains(known, factor):
    scaled(factor)
    x, layer = torch.randn(8, 3, dtype=torch.float64), Scaled()
    with pytest.raises(ValueError, match="the rule of Scaled is off by .* in weight"):
        require_exact(layer, x)
    with pytest.raises(UnsupportedModule, match="differs between the batch and the record alone"):
        record(layer, x)


def test_a_rule_that_is_wrong_for_one_record_alone_never_trains(known):
    layer_rule(Scaled, parameters=("weight",))(lambda layer, a, delta: {"weight": (1 + (len(a) < 2)) * a * delta})
    with pytest.raises(UnsupportedModule, match="differs between the batch and the record alone"):
        record(Scaled(), torch.randn(8, 3, dtype=torch.float64))


def test_a_rule_of_the_wrong_sign_is_found_though_its_sizes_are_right(known):
    scaled(-1.0)
    with pytest.raises(ValueError, match="the rule of Scaled is off by .* in weight"):
        require_exact(Scaled(), torch.randn(8, 3, dtype=torch.float64))


def test_a_layer_with_a_rule_returns_one_tensor_and_trains_nothing_else(known):
    class Pair(Scaled):
        def forward(self, x):
            return self.weight * x, x

    class More(Scaled):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(3, dtype=torch.float64))

        def forward(self, x):
            return self.weight * x + self.shift

    for kind in (Pair, More):
        layer_rule(kind, parameters=("weight",))(lambda layer, a, delta: {"weight": a * delta})
    with pytest.raises(UnsupportedModule, match="a layer with a rule returns one tensor"):
        record(Pair(), torch.randn(4, 3, dtype=torch.float64))
    with pytest.raises(UnsupportedModule, match="'weight', 'shift'"):
        check(More())


def test_only_formed_rules_are_compared():
    with pytest.raises(ValueError, match="Embedding has no rule of formed gradients"):
        require_exact(nn.Embedding(4, 2), torch.zeros(3, dtype=torch.int64))


def test_the_example_runs(example, capsys):
    assert 0 < example.main() <= 4.0
    assert "206 parameters" in capsys.readouterr().out
