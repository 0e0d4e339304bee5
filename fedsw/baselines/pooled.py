"""DP-SGD with Opacus' PrivacyEngine on the records of all clients in one place, with or without a penalty.

Source: Abadi and others 2016, Deep learning with differential privacy; Yousefpour and others 2021, Opacus.
"""

from __future__ import annotations

import torch

from fedsw import models
from fedsw.baselines.asked import Asked, Average, Guarantee, Trained
from fedsw.baselines.opacus_parts import Rows, made_private, poisson
from fedsw.baselines.penalised import Scored, contrasts, shares_of, squared


def train(asked: Asked) -> Trained:
    """One Poisson batch a round; alpha > 0 adds the squared gap of the groups' mean scores.

    Guarantee: (epsilon, delta) of all iterates for adding or removing one record of the pool, against whoever reads
    them; the pool's keeper sees every record.
    """
    problem, records = asked.problem, asked.records
    experiment = problem.experiment
    training, penalised = experiment.training, experiment.objective.alpha > 0
    accountant = str(asked.arguments.get("accountant", "prv"))
    contrast = contrasts(problem, records, shares_of(problem, records)) if penalised else torch.zeros(len(records))
    scored = Scored(problem.build_model(), problem, follows=penalised)
    private = made_private(
        scored,
        torch.optim.SGD(list(scored.groups(training))),
        poisson(
            Rows(problem.inputs(records), contrast.to(problem.dtype), records.target),
            training.batch_fraction,
            asked.generator(),
        ),
        epsilon=asked.epsilon,
        delta=asked.delta,
        steps=training.rounds,
        clip=experiment.clip.loss,
        accountant=accountant,
        noise=asked.generator(),
    )
    average = Average(asked.averaged_after)
    for features, sides, target in private.batches(training.rounds):
        private.step(squared(scored, problem, private.module(features, sides), target))
        average.add(scored.model)
    return Trained(
        average.mean,
        Guarantee(
            protects="each record of every client",
            against="readers of the models; whoever pools the records sees them all",
            public=("the number of records", *(["the share of each group"] if penalised else [])),
            accountant=f"opacus {accountant}",
            multiplier=private.multiplier,
            local=False,
        ),
        epsilon=private.epsilon(asked.delta),
        clients=experiment.federation.clients,
        bytes_up=len(records) * (records.features.shape[1] + 2) * 4,
        bytes_down=experiment.federation.clients * models.count_parameters(scored.model) * 4,
        notes={"gap": scored.followed} if penalised else {},
    )
