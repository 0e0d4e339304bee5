"""Everything that is learnt: tasks, penalties between distributions, moments, sketches, and networks.

`tasks` (an experiment's problem and its measures), `objectives` (penalties and their sensitivity), `moments` (sums of
squares before the first round), `sketches` (sums of cosines by label, and generators fitted to them), `models`;
`shipped_models` has an entry for each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsw.data.settings import ENCODERS

if TYPE_CHECKING:
    from fedsw.data import Dataset

__all__ = ["encoded", "models", "moments", "objectives", "shipped_models", "sketches", "tasks"]


def _autoencoder(images: Dataset, latent: int, epochs: int) -> Dataset:
    from fedsw.learning.encoded import encoded

    return encoded(images, latent, epochs)


ENCODERS.register("autoencoder", _autoencoder)
