"""What clients release once: it is stored as it arrives, so that no client is asked for it again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from fedsw import files

_REPORTED = "round and epsilon"


class Releases:
    """The releases of a run, a file for each client in a folder: paid for, and read when the run is resumed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        clients = sorted(int(path.stem.removeprefix("client-")) for path in folder.glob("client-*.safetensors"))
        self._reported = {client: _reported_in(self._file(client)) for client in clients}

    @property
    def clients(self) -> Collection[int]:
        """Who has released."""
        return self._reported.keys()

    def keep(self, client: int, arrays: Mapping[str, Tensor], round_: int, epsilon: float) -> None:
        """Put a release on disk, whole or not at all.

        Args:
            arrays: what the client released, of any shape, by name.
            round_: that asked for it.
            epsilon: what the client's ledger has spent with it.
        """
        self._folder.mkdir(exist_ok=True)
        own = {name: array.clone().contiguous() for name, array in arrays.items()}  # a file holds no shared tensors
        reported = torch.tensor([round_, epsilon], dtype=torch.float64)
        files.replace(self._file(client), save({**own, _REPORTED: reported}))
        self._reported[client] = (round_, epsilon)

    def read(self) -> list[Mapping[str, Tensor]]:
        """The arrays of every release, of any shape, in client order."""
        found: list[Mapping[str, Tensor]] = []
        for client in sorted(self._reported):
            arrays = load_file(self._file(client))
            del arrays[_REPORTED]
            found.append(arrays)
        return found

    def rounds(self) -> set[int]:
        """The rounds that asked for them."""
        return {round_ for round_, _ in self._reported.values()}

    def epsilons(self) -> dict[int, float]:
        """The epsilon that each client's ledger had spent with its release."""
        return {client: epsilon for client, (_, epsilon) in self._reported.items()}

    def _file(self, client: int) -> Path:
        return self._folder / f"client-{client}.safetensors"


def _reported_in(path: Path) -> tuple[int, float]:
    with safe_open(path, framework="pt") as file:
        round_, epsilon = file.get_tensor(_REPORTED).tolist()
    return int(round_), float(epsilon)
