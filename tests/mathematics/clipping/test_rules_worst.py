"""Laws of the worst neighbours that a layer's rule carries: they attain the clip, and see a rule that measures less."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from opacus import layers
from torch import nn

from fedsw.audit.neighbours import Freely
from fedsw.experiment.sections import Model
from fedsw.experiment.task_kinds import MODELS, ModelSizes
from fedsw.mathematics.clipping import Term, UnsupportedModule, Worst, clipped_sum, layer_rule, record
from fedsw.mathematics.clipping.rules import RULES, HatLinear, register_imported, worst_of
from fedsw.mathematics.clipping.rules.attention import OUTPUT

SEQUENCE_BIAS = sys.modules["opacus.layers.dp_multihead_attention"].SequenceBias

LAYERS = {
    nn.Linear: lambda: nn.Linear(5, 3),
    OUTPUT: lambda: OUTPUT(4, 4),
    HatLinear: lambda: HatLinear([5, 5, 4], 3**-0.5, 2),
    nn.Conv1d: lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2),
    nn.Conv2d: lambda: nn.Conv2d(3, 6, 3, groups=3, padding="same", padding_mode="circular"),
    nn.Conv3d: lambda: nn.Conv3d(1, 2, 2),
    nn.ConvTranspose1d: lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
    nn.ConvTranspose2d: lambda: nn.ConvTranspose2d(2, 4, (3, 2), stride=(2, 3), padding=1, output_padding=(1, 2)),
    nn.ConvTranspose3d: lambda: nn.ConvTranspose3d(2, 2, 2),
    nn.Embedding: lambda: nn.Embedding(5, 3, padding_idx=0),
    nn.LayerNorm: lambda: nn.LayerNorm((3, 4)),
    nn.RMSNorm: lambda: nn.RMSNorm(6),
    nn.GroupNorm: lambda: nn.GroupNorm(3, 6),
    nn.InstanceNorm1d: lambda: nn.InstanceNorm1d(3, affine=True),
    nn.InstanceNorm2d: lambda: nn.InstanceNorm2d(3, affine=True),
    nn.InstanceNorm3d: lambda: nn.InstanceNorm3d(2, affine=True),
    nn.EmbeddingBag: lambda: nn.EmbeddingBag(5, 3, padding_idx=0, mode="sum"),
    nn.MultiheadAttention: lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True),
    nn.RNN: lambda: nn.RNN(3, 4, bidirectional=True, batch_first=True),
    nn.GRU: lambda: nn.GRU(3, 4, 2, batch_first=True),
    nn.LSTM: lambda: nn.LSTM(3, 4, proj_size=2, batch_first=True),
    layers.DPRNN: lambda: layers.DPRNN(3, 4, batch_first=True),
    layers.DPGRU: lambda: layers.DPGRU(3, 4, batch_first=True),
    layers.DPLSTM: lambda: layers.DPLSTM(3, 4, bidirectional=True, batch_first=True),
    SEQUENCE_BIAS: lambda: SEQUENCE_BIAS(4, batch_first=True),
}
"""A layer of every class that has a rule, those of Opacus too."""

CLIP = 0.01


def shipped() -> list[type]:
    """The classes in the registry, without those that tests and examples of this process gave a rule."""
    return [kind for kind in RULES._things if kind.__module__.startswith(("torch.", "fedsw.", "opacus."))]


def test_every_rule_of_the_registry_carries_its_worst_neighbours():
    register_imported(RULES)
    assert {*shipped()} == LAYERS.keys()
    assert all(RULES.get(kind).worst is not None for kind in shipped())
    for kind, make in LAYERS.items():
        named = [case.why for case in worst_of(make()) if case.why.startswith(f"{kind.__name__}, ")]
        assert named and len(set(named)) == len(named)


def moved(case: Worst, dtype: torch.dtype) -> float:
    """How far the canary's value moves a clipped sum, in units of what two records may: its gradients turn round."""
    model = Freely(1, case).to(dtype)
    sums = []
    for side in (1.0, -1.0):
        tape = record(model, torch.tensor([[1e4, side, 0.0, 0.3, side]], dtype=dtype))
        output, compared = tape.raw
        terms = [Term(output, torch.ones(1, 1), CLIP), Term(compared.square().sum(1), torch.ones(1), CLIP)]
        sums.append(clipped_sum(tape, terms))
    return float((sums[0] - sums[1]).norm()) / (2 * len(terms) * CLIP)


def cases(kind: type) -> list[Worst]:
    torch.manual_seed(0)
    return worst_of(LAYERS[kind]())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", LAYERS)
def test_worst_neighbours_move_a_sum_by_nearly_all_that_a_clip_allows_and_never_more(kind, dtype):
    for case in cases(kind):
        assert 0.999 <= moved(case, dtype) <= 1.0, case.why


@pytest.mark.parametrize("kind", LAYERS)
def test_worst_neighbours_see_a_rule_that_measures_a_thousandth(kind, monkeypatch):
    """Of formed gradients the same numbers are measured and added: nothing that they are can be above the clip."""
    for name, rule in ((kind, RULES.get(kind)) for kind in shipped()):
        if rule.factored is not None:
            monkeypatch.setitem(
                RULES._things, name, replace(rule, factored=_measuring_less(rule.factored), formed=None)
            )
    for module in ("attention", "_recurrent"):
        monkeypatch.setattr(f"fedsw.mathematics.clipping.rules.{module}.PROJECTION", _without_measure())
    monkeypatch.setattr("fedsw.mathematics.clipping.rules._dense.EMBEDDING", RULES.get(nn.Embedding))
    for case in cases(kind):
        if kind in (layers.DPRNN, layers.DPGRU, layers.DPLSTM):  # not torch's code, so that it is rehearsed
            with pytest.raises(UnsupportedModule, match="gradient of record 0 differs"):
                moved(case, torch.float64)
        elif kind in FACTORED or RULES.get(kind).factored is not None:
            assert moved(case, torch.float64) > 100, case.why
        else:
            assert moved(case, torch.float64) <= 1.0, case.why


FACTORED = (nn.MultiheadAttention, nn.EmbeddingBag, nn.RNN, nn.GRU, nn.LSTM)
"""Layers of several maps, which are measured by their factors."""


def _measuring_less(factored):
    def gram(layer, a, deltas):
        return 1e-6 * factored.gram(layer, a, deltas)

    return replace(factored, gram=gram, shared=lambda layer, a: None)


def _without_measure():
    from fedsw.mathematics.clipping.rules.attention import PROJECTION

    return replace(PROJECTION, factored=_measuring_less(PROJECTION.factored), formed=None)


ATTACKED = [name for name, kind in MODELS.items() if {"predictor", "representation", "autoencoder"} & {*kind.roles}]
"""The shipped models that records pass through in what `--canary` attacks."""


@pytest.mark.parametrize("name", ATTACKED)
def test_every_layer_that_trains_in_a_shipped_model_has_worst_neighbours(name):
    model = MODELS.get(name).make(Model(kind=name, latent=3, hidden=(4,)), ModelSizes(28**2, 2, 2))
    kinds = {type(layer) for layer in model.modules() if any(p.requires_grad for p in layer.parameters(recurse=False))}
    assert {case.why.split(",")[0] for case in worst_of(model)} == {kind.__name__ for kind in kinds}


class Doubled(nn.Linear):
    """A layer of somebody's own."""


def test_a_layers_own_rule_is_attacked_with_its_own_neighbours_and_refused_by_name_without(monkeypatch):
    monkeypatch.setattr(RULES, "_things", dict(RULES._things))

    def gradients(layer, a, delta):
        return {"weight": delta.unsqueeze(2) * a.unsqueeze(1), "bias": delta}

    layer_rule(Doubled)(gradients)
    with pytest.raises(ValueError, match=r"Doubled trains.*no worst neighbours: give them, as in layer_rule\(Doubled"):
        worst_of(nn.Sequential(nn.Linear(4, 3), Doubled(3, 1)))
    monkeypatch.setattr(RULES, "_things", {kind: rule for kind, rule in RULES._things.items() if kind is not Doubled})
    layer_rule(Doubled, worst=lambda layer: [Worst(layer, torch.ones(1, layer.in_features), "ones")])(gradients)
    (case,) = worst_of(Doubled(3, 1))
    assert case.why == "Doubled, ones" and moved(case, torch.float32) > 0.999


def test_a_layer_is_copied_and_the_smallest_of_its_kind_is_taken():
    small, large = nn.Linear(2, 2), nn.Linear(9, 9)
    frozen = nn.Linear(1, 1).requires_grad_(False)
    for case in worst_of(nn.Sequential(large, small, frozen)):
        assert case.module is not small and case.module.in_features == 2


def test_the_map_behind_a_layer_of_hats_keeps_the_precision_in_which_lengths_were_measured():
    """A wide map in float32 is another one: what is hidden behind it would be longer than was measured."""
    _, behind = worst_of(LAYERS[HatLinear]())
    layer = behind.module
    before = layer.centre.clone(), layer.matrix.clone()
    layer.to(torch.float64).to(torch.float32).half()
    assert layer.weight.dtype == torch.float16
    assert torch.equal(layer.centre, before[0]) and torch.equal(layer.matrix, before[1])
