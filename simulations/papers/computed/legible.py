"""RCO's stored samples in a LeNet's features, beside as many real training digits: blur does not win there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedsw.data.image_sets import DIGITS, mnist
from simulations.papers.figure import load_figure
from simulations.papers.measures.frechet import features_of, lenet_features
from simulations.papers.measures.transport import w2
from simulations.papers.store import Measured
from simulations.papers.study import Study, read_study

_COMPARED, _SURE = 2000, 0.9


def digits(
    *, results: Path, figure: str, cases: Sequence[Mapping[str, str | float]], small: bool = False, seed: int = 0
) -> Measured:
    """Of the 100 samples that a run of `figure` stored, and of 100 real training digits: `<case>_w2`, `<case>_sure`.

    `w2` is W2 in the features of a LeNet (84 units) to 2000 held-out digits; `sure` is the share of images to which a
    logistic regression on the features gives one class with probability above .9. Both learn from the held-out digits
    at even positions, the distance is to those at odd ones. A case has `name`, `series` and `epsilon`; `real` is the
    training digits', the floor of both. Whoever owns the records may compare so: training digits are outside the
    guarantee, stored samples are inside it.
    """
    from sklearn.linear_model import LogisticRegression

    whole = load_figure(figure)
    data, study = mnist(), read_study(results, whole.smallest() if small else whole)
    held_out = data.test
    network = lenet_features(held_out.features[::2], held_out.target[::2], classes=len(DIGITS), seed=seed)
    judge = LogisticRegression(max_iter=300)
    judge.fit(features_of(network, held_out.features[::2]), held_out.target[::2].numpy())
    others = features_of(network, held_out.features[1::2][:_COMPARED])
    samples = {str(case["name"]): _samples(study, case) for case in cases}
    samples["real"] = data.train.features[: min(map(len, samples.values()))].numpy()
    values: dict[str, float] = {}
    for name, images in samples.items():
        own = features_of(network, _unit(images))
        values[f"{name}_w2"] = w2(torch.from_numpy(own), torch.from_numpy(others))
        values[f"{name}_sure"] = float((judge.predict_proba(own).max(axis=1) > _SURE).mean())
    return Measured(values)


def _samples(study: Study, case: Mapping[str, str | float]) -> NDArray[np.uint8]:
    for result in study.of(str(case["series"]), epsilon=case["epsilon"]):
        if "samples" in result.arrays:
            return result.arrays["samples"]
    raise ValueError(
        f"no samples are stored of {study.figure.id}, series {case['series']!r}, ε = {case['epsilon']}: the "
        f"committed results leave them out. Run {study.figure.id} with this figure, --results naming an empty folder"
    )


def _unit(images: NDArray[np.generic]) -> torch.Tensor:
    """Pixels in [0, 1] of bytes, or of numbers that are there already."""
    scale = 255 if images.dtype == np.uint8 else 1
    return torch.from_numpy(images.astype(np.float32) / scale).clamp(0, 1)
