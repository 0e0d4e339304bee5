"""Figures that come from a computation and not from a run: one file a subject."""
