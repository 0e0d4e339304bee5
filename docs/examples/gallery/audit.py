"""
An attack on a guarantee
========================

Whoever knows every record but one sees a noised sum, and tries to tell which of two values that one record has. The
line is the most that the guarantee allows at any threshold; the dots are what the best attacker reaches, in 4000
real releases.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import norm

from fedsw.privacy.accounting import noise_multiplier

delta, allowed = 1e-5, 1.0
multiplier = noise_multiplier(allowed, delta, sampling_rate=1.0, steps=1)
torch.manual_seed(1)
scores = {name: (torch.randn(2000) * multiplier + value).numpy() for name, value in (("without", 0.0), ("with", 1.0))}
thresholds = np.linspace(-3, 4, 15) * multiplier
false = np.array([(scores["without"] > threshold).mean() for threshold in thresholds])
true = np.array([(scores["with"] > threshold).mean() for threshold in thresholds])

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for name, values in scores.items():
    left.hist(values, bins=50, alpha=0.5, density=True, label=f"{name} the record")
left.set(xlabel="released number", ylabel="density")
left.set_ylim(0, 1.4 * left.get_ylim()[1])
left.legend()
rates = np.linspace(1e-4, 1 - 1e-4, 300)
right.plot(rates, norm.cdf(norm.ppf(rates) + 1 / multiplier), label=f"allowed by ε = {allowed:g}")
right.plot(false, true, "o", label="the attacker")
right.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle="--", label="guessing")
right.set(xlabel="false positive rate", ylabel="true positive rate")
right.legend()
plt.show()
