"""
Nobody sees a sum
=================

Under the trust model `distributed` the server adds up masked numbers, and each client brings a share of the noise:
no server has to be trusted with a sum before noise is in it. It learns as `central` does, where the server adds the
noise.
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt

import fedsw

place, settings = Path(mkdtemp()), ["data.records=4000", "training.rounds=25", "training.learning_rate=3.0", "seed=1"]
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for trust, style in (("central", "-"), ("distributed", "--")):
    result = fedsw.run("fair-classification", *settings, f"privacy.trust={trust}", "privacy.epsilon=3", runs=place)
    left.plot(
        [line["round"] for line in result.history], [line["epsilon"] for line in result.history], style, label=trust
    )
    right.bar(trust, result.summary["held_out"]["accuracy"])
left.set(xlabel="round", ylabel="ε spent")
left.legend()
right.set(ylabel="accuracy on held-out records", ylim=(0, 1))
plt.show()
