"""Sketches: one sum of codes by label, that leaves once; its law, its bound, its losses, and what learns from it.

`sketch_law` says what a sketch has, `from_settings` makes one of settings, `noised` bounds and noises a sum, `drift`
compares two; `fit` trains a generator on one, `table_counts` and `trees` are of tables, `learnt` of classifiers.
"""

from typing import TYPE_CHECKING

from fedsw._tools.later import named

if TYPE_CHECKING:
    from fedsw.learning.sketches.maps import FeatureMap as FeatureMap
    from fedsw.learning.sketches.maps import SharedMap as SharedMap
    from fedsw.learning.sketches.parts import GaussianKernel as GaussianKernel
    from fedsw.learning.sketches.parts import SlicedCramer as SlicedCramer

__all__ = ["FeatureMap", "GaussianKernel", "SharedMap", "SlicedCramer"]

__getattr__ = named(__name__, {"maps": ("FeatureMap", "SharedMap"), "parts": ("GaussianKernel", "SlicedCramer")})
