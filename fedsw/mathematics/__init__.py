"""Mathematics without a word of privacy: optimal transport in one dimension and many, and clipping by record.

`transport` (ranks, slices, barycentres, entropic matching), `clipping` (per-sample spectral clipping by layer rules).
"""

__all__ = ["clipping", "transport"]
