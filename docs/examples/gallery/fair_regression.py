"""
A fair regression
=================

Two numbers are predicted for each record. The penalty compares the two groups' predictions in the plane, along
random directions: a sliced Wasserstein distance.
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

import fedsw

place = Path(mkdtemp())
figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharex=True, sharey=True, layout="constrained")
for alpha, panel in zip((0.0, 0.9), panels, strict=True):
    settings = f"objective.alpha={alpha} data.records=6000 training.rounds=50 training.learning_rate=4.0 seed=1".split()
    result = fedsw.run("fair-regression", *settings, "privacy.epsilon=5", runs=place)
    held_out = np.load(Path(result.directory, "outputs.npz"))
    for group in (0, 1):
        outputs = held_out["outputs"][held_out["sensitive"] == group]
        panel.scatter(*outputs.T, s=4, alpha=0.4, label=f"group {group}")
    panel.set(xlabel="first prediction", title=f"α = {alpha:g}, SW² = {result.summary['held_out']['w2_squared']:.4f}")
panels[0].set_ylabel("second prediction")
panels[0].legend(markerscale=3)
plt.show()
