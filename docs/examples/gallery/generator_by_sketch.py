"""
A generator, by one noised sketch
=================================

All records leave once, as one noised sum of cosines and sines. A generator is trained on that sum for as long as
one likes, at no further cost in privacy.
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import torch

import fedsw
from fedsw.learning.models import VectorGenerator
from fedsw.learning.sketches import GaussianKernel
from fedsw.learning.sketches.fit import FitSettings
from fedsw.learning.sketches.sketch_law import Law

torch.manual_seed(1)
angles = 2 * torch.pi * torch.rand(5000, dtype=torch.float64)
records = torch.stack([angles.cos(), angles.sin()], dim=1) + 0.05 * torch.randn(5000, 2, dtype=torch.float64)

law = Law(features=2, parts=(GaussianKernel(bandwidths=(0.2, 0.5, 1.0), pairs=200),))
plan = fedsw.plan_sketch(law, records=5000, epsilon=2, delta=1e-6, seed=1)
with fedsw.Ledger.create(Path(mkdtemp()) / "ledger.sqlite", plan) as ledger:
    sketcher = law.drawn()
    sketch = fedsw.release_sketch(sketcher, records.float(), torch.zeros(5000, dtype=torch.int64), plan, ledger)

network = VectorGenerator(features=2, cells=1, hidden=(64, 64))
fedsw.fit_generator(sketch, network, FitSettings(steps=500), sketcher=sketcher)
generated, _ = fedsw.generate(network, sketch.proportions, 2000)

figure, panels = plt.subplots(1, 2, figsize=(7, 3.5), sharex=True, sharey=True, layout="constrained")
for panel, points, title in zip(
    panels, (records[:2000], generated), ("private records", "generated, ε = 2"), strict=True
):
    panel.scatter(*points.T, s=3, alpha=0.5)
    panel.set(title=title, aspect="equal")
plt.show()
