"""A classifier trained again on what a released transport makes of public images."""

from __future__ import annotations

from typing import cast

import torch
from torch.nn import functional as F

from fedsw._tools.randomness import Stream, smallest_keys
from fedsw.learning.models import TransportedAdaptor
from simulations.papers.finished import Finished
from simulations.papers.store import Measured

_STEPS, _STEPS_A_ROUND = 2_000, 100
_BATCH = 128


def retrained(run: Finished) -> Measured:
    """`accuracy` on held-out private images of a classifier trained on transported public ones: post-processing.

    Under trust "central" noise is on every trained number, the classifier's too; what moves the images are 32 of them.

    Raises:
        ValueError: for a run of another model.
    """
    if run.experiment.model.kind != "transported-adaptor" or run.public is None:
        raise ValueError(f"the run in {run.directory} has no transport; its model is {run.experiment.model.kind!r}")
    released, fresh = cast(TransportedAdaptor, run.model), cast(TransportedAdaptor, run.problem.build_model())
    records, test = run.public.train, run.dataset.test
    optimizer = torch.optim.Adam(fresh.classifier.parameters(), lr=1e-3)
    for step in range(min(_STEPS, _STEPS_A_ROUND * run.experiment.training.rounds)):
        keys = Stream.seeded(run.experiment.slicing.seed, "retrained", step).words(len(records))
        batch = records.take(smallest_keys(keys, _BATCH))
        with torch.no_grad():
            moved = released.transported(batch.features)
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(fresh.classifier(moved), batch.target))
        optimizer.step()
    with torch.no_grad():
        logits = torch.cat([fresh.classifier(part) for part in torch.split(test.features, 2_000)])
    return Measured({"accuracy": float((logits.argmax(dim=1) == test.target).float().mean())})
