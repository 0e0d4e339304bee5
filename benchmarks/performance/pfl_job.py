"""Federated averaging with central Gaussian noise in pfl: run by pfl's own interpreter, without fedsw.

    PYTHON pfl_job.py '{"data": "records.npz", "users": ..., "records_per_user": ..., "cohort": ..., ...}'

Prints the seconds of every central iteration as JSON. The leanest job that pfl makes: its simulated backend with one
postprocessor (clip every user's update, noise on their sum), one local step on all of a user's records, no metrics but
those of the first iteration, users' records as tensors that are ready beforehand.
"""

import json
import sys
import time
from itertools import pairwise

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism


class Classifier(torch.nn.Module):
    """A perceptron with one logit, with the two functions that pfl asks of a model."""

    def __init__(self, features, hidden):
        super().__init__()
        widths = [features, *hidden]
        layers = []
        for before, after in pairwise(widths):
            layers += [torch.nn.Linear(before, after), torch.nn.Tanh()]
        self.net = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 1))

    def forward(self, features):
        """Logits (n,)."""
        return self.net(features).squeeze(1)

    def loss(self, features, target):
        """Mean loss of a user's records."""
        return torch.nn.functional.binary_cross_entropy_with_logits(self(features), target)

    @torch.no_grad()
    def metrics(self, features, target):
        """What pfl shows of the first iteration."""
        return {"loss": Weighted(float(self.loss(features, target)) * len(target), len(target))}


class Clock(TrainingProcessCallback):
    """When every central iteration ended."""

    def __init__(self):
        self.times = []

    def on_train_begin(self, *, model):
        """Begin the first iteration."""
        self.times.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """End an iteration; False: go on."""
        self.times.append(time.perf_counter())
        return False, Metrics()


def main(job):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    stored = np.load(job["data"])
    features, target = torch.from_numpy(stored["features"]), torch.from_numpy(stored["target"]).float()
    each = job["records_per_user"]
    parts = [slice(user * each, (user + 1) * each) for user in range(job["users"])]
    users = {user: (features[part], target[part]) for user, part in enumerate(parts)}
    training = FederatedDataset.from_slices(users, get_user_sampler("random", range(job["users"])))
    module = Classifier(features.shape[1], job["hidden"])
    optimizer = torch.optim.SGD(module.parameters(), lr=job["learning_rate"])
    model = PyTorchModel(module, local_optimizer_create=torch.optim.SGD, central_optimizer=optimizer)
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(job["clip"], job["noise"]))
    backend = SimulatedBackend(training_data=training, val_data=None, postprocessors=[noise])
    clock = Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job["iterations"],
            evaluation_frequency=job["iterations"] + 1,
            train_cohort_size=job["cohort"],
            val_cohort_size=None,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=1.0, local_batch_size=None),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    print(json.dumps([after - before for before, after in pairwise(clock.times)]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
