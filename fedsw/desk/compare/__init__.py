"""Comparisons of methods (trust models, baselines) on one task, over budgets and seeds."""

GRID = "grid.json"
"""File by which a comparison's folder is known."""
