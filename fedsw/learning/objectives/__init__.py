"""Objectives: a task loss and weighted penalties between distributions of outputs, with what one record moves."""

from fedsw.learning.objectives._weighted_penalty import Clip, WeightedPenalty
from fedsw.learning.objectives.distances import contribution_bound
from fedsw.learning.objectives.weighted_sum import WeightedSum

__all__ = ["Clip", "WeightedSum", "WeightedPenalty", "contribution_bound"]
