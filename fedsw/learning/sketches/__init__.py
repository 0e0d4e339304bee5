"""Sketches: one sum of codes by label, that leaves once; its law, its bound, its losses, and what learns from it."""
