"""
A fair representation
=====================

Records become codes of two numbers, from which a later model may predict whatever it likes. The codes of the two
groups are pulled onto each other, so that no later model finds the group in them. Above each picture: how often a
linear probe on held-out codes tells the group.
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

import fedsw

place = Path(mkdtemp())
figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for alpha, panel in zip((0.0, 0.9), panels, strict=True):
    settings = f"objective.alpha={alpha} data.records=6000 training.rounds=50 seed=1".split()
    result = fedsw.run("fair-representation", *settings, "privacy.epsilon=5", runs=place)
    held_out = np.load(Path(result.directory, "outputs.npz"))
    for group in (0, 1):
        codes = held_out["outputs"][held_out["sensitive"] == group]
        panel.scatter(*codes.T, s=4, alpha=0.4, label=f"group {group}")
    guessed = result.summary["held_out"]["linear_probe_group"]
    panel.set(xlabel="first code", title=f"α = {alpha:g}: group guessed in {guessed:.0%}")
panels[0].set_ylabel("second code")
panels[0].legend(markerscale=3)
plt.show()
