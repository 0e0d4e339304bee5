"""
What if there were more records?
================================

Noise is settled before any record is read, from public numbers alone. The picture says what ε and the number of
records do to it: σ, the standard deviation of the noise in every coordinate of a round's gradient.
"""

import matplotlib.pyplot as plt

import fedsw

objective = fedsw.Objective("classification", [fedsw.Parity(0.5)], classes=2)
clip = fedsw.Clip(output=0.5, jacobian=1, loss=2)
figure, panel = plt.subplots(figsize=(6, 3.4), layout="constrained")
for epsilon in (0.3, 1, 3, 10):
    plans = {
        n: fedsw.plan(
            objective, clip, sizes=(n // 2, n // 2), batch_fraction=0.1, rounds=100, epsilon=epsilon, delta=1e-6
        )
        for n in (1_000, 3_000, 10_000, 30_000)
    }
    panel.loglog(list(plans), [plan.sigma for plan in plans.values()], marker="o", label=f"ε = {epsilon}")
panel.set(xlabel="records", ylabel="σ of a round's gradient")
panel.legend()
plt.show()
