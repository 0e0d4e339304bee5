"""
What came of the papers' claims
===============================

Every claim of a paper has a verdict on its page. Here they are counted from those tables: how many hold, how many
fail, and how many are not tested.
"""

import matplotlib.pyplot as plt

from simulations.papers.verdicts import counted

shades = {"holds": "#0072B2", "fails": "#D55E00", "not tested": "0.8"}
counts = counted()
figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
left = dict.fromkeys(counts, 0)
for verdict, shade in shades.items():
    numbers = [counts[paper][verdict] for paper in counts]
    bars = axes.barh(list(counts), numbers, left=list(left.values()), color=shade, label=verdict)
    axes.bar_label(bars, [number or "" for number in numbers], label_type="center")
    left = {paper: left[paper] + counts[paper][verdict] for paper in counts}
axes.invert_yaxis()
axes.set_xlabel("claims")
axes.legend()
plt.show()
