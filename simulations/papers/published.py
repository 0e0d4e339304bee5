"""Numbers that other papers print, drawn and tabulated beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Points = tuple[tuple[float, float], ...]

DP_FERMI: Mapping[float, Points] = MappingProxyType(
    {
        0.5: ((0.1664, 0.1956), (0.1671, 0.1458), (0.1718, 0.1001), (0.1794, 0.0590), (0.1876, 0.0287)),
        1.0: ((0.1585, 0.2017), (0.1604, 0.1417), (0.1663, 0.0983), (0.1763, 0.0455), (0.1869, 0.0099)),
        3.0: ((0.1574, 0.1964), (0.1599, 0.1398), (0.1672, 0.0881), (0.1779, 0.0432), (0.1880, 0.0118)),
        9.0: ((0.1571, 0.1932), (0.1587, 0.1417), (0.1663, 0.0937), (0.1751, 0.0455), (0.1885, 0.0071)),
    }
)
"""(error, demographic-parity violation) on Adult at their weights 0, 1/4, 1/2, 3/4, 1, by epsilon; means of 15 runs.

Source: Lowy, Gupta, Razaviyayn 2023, logistic regression, delta = 1/n^2.
"""

ADULT_POSITIVE = 11208 / 45222
"""Part of Adult's complete records with an income above 50K: the error of who predicts none."""
