"""Runs in which nobody is trusted, and what tests read of them."""

from __future__ import annotations

import torch
from safetensors.torch import load_file

from fedsw.experiment import Experiment
from fedsw.privacy.accounting import Ledger

TRUST = ("privacy.trust=local-gradient", "privacy.epsilon=inf", "privacy.noise_multiplier=1.5")


class Runs:
    """Runs in folders of a name."""

    def __init__(self, federation) -> None:
        self._federation = federation

    def __call__(self, experiment: Experiment, name: str = "run", **settings):
        directory = self._federation.folder / name
        return self._federation.run(experiment, directory=directory, **settings), directory


def kind_of(message) -> str:
    return message.metadata.message_type


def client_of(context) -> int:
    return int(context.node_config["partition-id"])


def attempts_in(directory, client: int) -> list[tuple[int, int]]:
    with Ledger.open(directory / "clients" / f"client-{client}.sqlite", read_only=True) as ledger:
        return [(entry.round, entry.attempt) for entry in ledger.entries()]


def parameters_of(directory) -> torch.Tensor:
    return torch.cat([t.reshape(-1).double() for t in load_file(directory / "model.safetensors").values()])
