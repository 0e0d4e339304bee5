"""Laws of parts on a pretended device: they compute what the processor does, and nothing of the host is mixed in."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch

from fedsw.learning.models.labelled import VectorGenerator, generate, proportions_of
from fedsw.learning.sketches.fit import FitSettings, fit_generator
from fedsw.learning.sketches.noised import NoisedSketch
from fedsw.mathematics.clipping import Safety, Term, clipped_sum, record
from fedsw.privacy.accounting import Step, composition, epsilon
from tests.learning.sketches.samples import LAWS, cells_of, normal
from tests.mathematics.clipping.layers import NAMES, make
from tests.mathematics.clipping.naive import double_by_default
from tests.pretended import ELSEWHERE, Pretended, Seen

CONVOLUTIONS = [name for name in NAMES if name.startswith("conv")]


@pytest.mark.parametrize("step", [Step(0.01, 1.0), Step(0.3, 0.5), Step(0.01, 1.0, sampling="poisson")])
def test_epsilon_is_the_processors_or_hardly_above(step):
    here = epsilon({step: 500}, 1e-5)
    with patch.object(composition, "accounting_device", torch.device), Pretended().entered():
        there = epsilon({step: 500}, 1e-5, device=ELSEWHERE)
    assert here < there <= here * (1 + 1e-6)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_records_of_a_convolution_are_added_together_as_one_by_one(name):
    with double_by_default():
        model, x = make(name, 2, True, 5)
        q = torch.randn(5, 2)
        tape = record(model, x)
        here = clipped_sum(tape, [Term(tape.raw, q, 0.4)], safety=Safety.off())
        with Pretended().entered() as pretended:
            tape = record(model.to(ELSEWHERE), x.to(ELSEWHERE))
            term = Term(tape.raw, q.to(ELSEWHERE), 0.4)
            with pretended.part("sum"):
                there = clipped_sum(tape, [term], safety=Safety.off()).cpu()
    torch.testing.assert_close(there, here, rtol=1e-10, atol=1e-13)
    assert pretended.seen["sum"].counts == (1, 1, 0, 0)  # the bound; the sum


@pytest.mark.parametrize("name", ["kernel, groups", "cramer"])
def test_a_sketch_is_the_processors_and_leaves_in_one_piece(name, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # with more, another one would compute, which pretends not
    law = LAWS[name]
    rows, cells = normal(50, law.features).float(), cells_of(law, 50)
    here = law.drawn().sums(rows, cells)
    with Pretended().entered() as pretended:
        drawn, there, where = law.drawn().to(ELSEWHERE), rows.to(ELSEWHERE), cells.to(ELSEWHERE)
        with pretended.part("sums"):
            total = drawn.sums(there, where, chunk=7).cpu()
    torch.testing.assert_close(total, here, rtol=0, atol=1e-5)
    assert pretended.seen["sums"].counts == (0, 1, 0, 0)


def _fitted(steps: int, place: torch.device) -> tuple[torch.Tensor, Seen]:
    law = LAWS["kernel, groups"]
    rows, cells = normal(50, law.features).float(), cells_of(law, 50)
    sketch = NoisedSketch(law, law.drawn().sums(rows, cells), 0.1, 50)
    with Pretended().entered() as pretended:
        network = VectorGenerator(law.features, law.cells, latent=2, hidden=(8,)).to(place)
        with pretended.part("fit"):
            settings = FitSettings(steps, batch=4 * law.cells, fraction=0.5)
            fit_generator(sketch, network, settings, sketcher=law.drawn(), every=steps, observer=lambda progress: None)
        features, _ = generate(network, proportions_of(network), 30)
        return features.cpu(), pretended.seen["fit"]


def test_a_generator_learns_the_same_and_no_step_waits_for_the_device():
    (few, short), (_, long) = (_fitted(steps, ELSEWHERE) for steps in (2, 6))
    torch.testing.assert_close(few, _fitted(2, torch.device("cpu"))[0], rtol=0, atol=1e-6)
    assert short.counts[1:] == long.counts[1:], "what comes back does not grow with the steps"
