"""Trust model `local-slices`: clients release noisy random slices."""
