"""Runs whose metrics nobody looks at closely end sooner: import `brief` into a folder's `conftest.py`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from fedsw.federation.server import from_sketch as synthesis
from fedsw.learning.sketches.learnt import Lessons
from fedsw.learning.tasks import generated_samples
from fedsw.runs.evaluation import evaluator as evaluation


@pytest.fixture(autouse=True, scope="module")
def brief() -> Iterator[None]:
    """Metrics are measured without each half of the held-out records, not without each tenth; lessons are few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "_PARTS", 2)
        few = partial(generated_samples.classifier_accuracy, epochs=2)
        patch.setattr(generated_samples, "classifier_accuracy", few)
        patch.setattr(synthesis, "Lessons", partial(Lessons, steps=4, batch=30, shifts=1))
        yield
