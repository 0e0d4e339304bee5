"""
A fair classifier
=================

Four clients, a trusted server, ε = 3. The penalty is the squared Wasserstein distance between the two groups'
predicted probabilities: with more weight α on it the groups are drawn together.
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

import fedsw

place = Path(mkdtemp())
figure, panels = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
for alpha, panel in zip((0.0, 0.75), panels, strict=True):
    # A seed makes the picture repeatable, and epsilon nominal: leave it out for real records.
    settings = f"objective.alpha={alpha} data.records=6000 training.rounds=60 training.learning_rate=2.0 seed=1".split()
    result = fedsw.run("fair-classification", *settings, "privacy.epsilon=3", runs=place)
    held_out = np.load(Path(result.directory, "outputs.npz"))
    for group in (0, 1):
        outputs = held_out["outputs"][held_out["sensitive"] == group, 0]
        panel.hist(outputs, bins=np.linspace(0, 1, 40), density=True, alpha=0.5, label=f"group {group}")
    found = result.summary["held_out"]
    panel.set(xlabel="predicted probability", title=f"α = {alpha:g}")
    panel.text(
        0.02,
        0.97,
        f"accuracy {found['accuracy']:.2f}\nDI {found['disparate_impact']:.2f}",
        va="top",
        transform=panel.transAxes,
    )
panels[0].legend(loc="upper right")
plt.show()
