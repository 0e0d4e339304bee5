"""
A private autoencoder
=====================

Codes of images are pulled to a prior, and the decoder draws new images from that prior. The private images are
scikit-learn's 8×8 digits, at four clients, ε = 10.
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

import fedsw

settings = ["training.rounds=80", "privacy.epsilon=10", "seed=1"]
result = fedsw.run("swae-digits", *settings, runs=Path(mkdtemp()))
held_out = np.load(Path(result.directory, "outputs.npz"))
figure, panels = plt.subplots(3, 12, figsize=(9, 2.6), layout="constrained")
for row, name in zip(panels, ("images", "reconstructions", "samples"), strict=True):
    for panel, image in zip(row, held_out[name], strict=False):
        panel.imshow(image.reshape(8, 8), cmap="gray_r")
        panel.set(xticks=[], yticks=[])
    row[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()
