"""Labelled synthetic digits from one noised sketch: all of it on one machine, in a minute.

    python docs/examples/synthetic_digits.py

1437 private digits of 8x8 pixels leave once, as a sum of cosines and sines by label, labels inside the guarantee. A
generator is trained on that sum; a classifier trained on generated digits is tested on 360 real ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import fedsw
from fedsw.learning.models.labelled import ImageGenerator
from fedsw.learning.sketches import GaussianKernel
from fedsw.learning.sketches.fit import FitSettings
from fedsw.learning.sketches.sketch_law import Law

PRIVATE = 1437


def main(epsilon: float = 10.0, steps: int = 600) -> float:
    """Accuracy on real digits of a classifier that saw generated ones only."""
    digits = load_digits()
    images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    law = Law(features=64, parts=(GaussianKernel(bandwidths=(0.7, 1.2, 2.0, 3.5), pairs=600),), classes=10)
    sketcher = law.drawn()

    plan = fedsw.plan_sketch(law, records=PRIVATE, epsilon=epsilon, delta=1e-5, seed=1)  # no seed for real records
    print(plan)
    with tempfile.TemporaryDirectory() as folder, fedsw.Ledger.create(Path(folder) / "ledger.sqlite", plan) as ledger:
        sketch = fedsw.release_sketch(sketcher, images[:PRIVATE], labels[:PRIVATE], plan, ledger)

    network = ImageGenerator(side=8, cells=10)
    fedsw.fit_generator(sketch, network, FitSettings(steps, batch=200), sketcher=sketcher)  # costs no privacy
    generated, cells = fedsw.generate(network, sketch.proportions, 4000)

    classifier = LogisticRegression(max_iter=500).fit(generated.numpy(), cells.numpy())
    return float(classifier.score(images[PRIVATE:].numpy(), labels[PRIVATE:].numpy()))


if __name__ == "__main__":
    print(f"accuracy on real digits: {main():.3f}")
