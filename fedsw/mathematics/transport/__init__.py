"""Optimal transport between samples: slices and rank matching, entropic, smoothed and flow variants.

Every function takes numbers, arrays and tensors alike, and refuses by name what is not a finite number, no direction of
length 1, or no sample (`given`).
"""

__all__ = ["barycentre", "denoise", "entropic", "flow", "given", "sliced"]
