"""Samples of a generator, and held-out images privatised and denoised, to look at."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsw._tools.randomness import Stream
from fedsw.experiment import resolve_delta
from fedsw.experiment.sections import ReleaseSettings
from fedsw.federation.trust.local_release.released_records import release_of
from fedsw.mathematics.transport.denoise import wavelet_denoise
from fedsw.privacy.local_release import RecordRelease
from simulations.papers.finished import Finished
from simulations.papers.store import Measured

_SAMPLES = 100
_SHOWN = 10


def samples(run: Finished) -> Measured:
    """Generated images (100, side^2) as `samples`, bytes 0 to 255; the same public noise for every run."""
    return Measured(arrays={"samples": _bytes(generated(run, _SAMPLES))})


def privatised(run: Finished) -> Measured:
    """Ten held-out images: `original`, and `privatised` and `denoised` as the run's settings would (10, side^2), bytes.

    No private record is read: the noise is seeded and the images are held out. Privatised pixels are shown from three
    deviations of the noise below 0 to three above 1. Where the run's loss does not denoise, BayesShrink does.
    """
    images = run.dataset.test.features[:_SHOWN].double()
    released, release = seen_through(run, images)
    local, centre = run.experiment.own(ReleaseSettings), run.experiment.clip.centre
    smooth = wavelet_denoise(
        release.decode(released), release.deviation, wavelet=local.wavelet or "db2", thresholds=local.thresholds
    )
    reach = 3 * release.deviation
    return Measured(
        arrays={
            "original": _bytes(images),
            "privatised": _bytes((release.decode(released) + centre + reach) / (1 + 2 * reach)),
            "denoised": _bytes(smooth + centre),
        }
    )


def seen_through(run: Finished, images: Tensor) -> tuple[Tensor, RecordRelease]:
    """Images (n, p) as the run's clients would release them, with seeded noise; about the centre, in released space.

    For images that no run releases: it protects nobody.
    """
    delta = resolve_delta(run.experiment.privacy.delta, records=len(run.dataset.train))
    release = release_of(run.experiment, delta)
    inside = release.project(images - run.experiment.clip.centre)
    return inside + noise_of(release, inside.shape, Stream.seeded(0, "shown")), release


def noise_of(release: RecordRelease, shape: torch.Size, stream: Stream) -> Tensor:
    """Seeded noise of a release's law, float64, of a shape (n, p): for pictures and measures, nobody's protection."""
    if release.mechanism == "gaussian":
        return release.scale * torch.from_numpy(stream.normals(shape.numel())).reshape(shape)
    centred = torch.from_numpy(stream.uniforms(shape.numel())).reshape(shape) - 0.5
    return -release.scale * centred.sign() * torch.log1p(-2 * centred.abs())


def generated(run: Finished, count: int) -> Tensor:
    """Points (count, p), float64, of fresh public noise under the released model."""
    latents = run.problem.latents(count, "shown")
    with torch.no_grad():
        raw = run.model(latents)
        found = run.problem.task.outputs(raw, run.problem.imagined(latents))
    return found.detach().to("cpu", torch.float64)


def _bytes(images: Tensor) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = (images.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    return found
