"""Trust model `none`: no noise; the non-private reference."""
