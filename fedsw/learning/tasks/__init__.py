"""Tasks: models with their outputs, losses and held-out measures, and the public side of a matching."""
