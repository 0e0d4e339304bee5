"""Penalties between the distributions of outputs: cotangents, and what one replaced record moves."""

from fedsw.learning.objectives.groups import Clip, Objective, contribution_bound

__all__ = ["Clip", "Objective", "contribution_bound"]
