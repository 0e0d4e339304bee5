"""Trust model `local-release`: clients release privatised records, once."""
