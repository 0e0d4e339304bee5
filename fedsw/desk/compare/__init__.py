"""Comparisons of methods (trust models, baselines) on one task, over budgets and seeds."""
