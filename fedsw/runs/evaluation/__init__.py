"""Measures of a run: metrics on held-out records, their intervals, qualities of predictions, and a verdict."""
