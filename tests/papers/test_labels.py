"""Laws of RLL's tables with labels inside the guarantee."""

from __future__ import annotations

import torch

from fedsw.data import digits, resized
from fedsw.mathematics.transport.sliced import project
from simulations.papers.computed.labels import fitted_autoencoder
from simulations.papers.measures.autoencoders import in_parts


def test_an_autoencoder_of_released_images_remakes_others_from_codes_near_its_prior() -> None:
    data = resized(digits(), 28)
    network = fitted_autoencoder(data.train.features[:240], epochs=20, batch=40)
    unseen = data.test.features[:200]
    codes = in_parts(network.encoder, unseen)
    remade = torch.sigmoid(in_parts(network.decoder, codes))
    constant = data.train.features[:240].mean(dim=0)
    assert (remade - unseen).square().mean() < 0.75 * (constant - unseen).square().mean()
    assert (project(codes.double(), 1.0) - codes).norm(dim=1).mean() < 0.3
