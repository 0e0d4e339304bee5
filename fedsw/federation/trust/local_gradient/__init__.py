"""Trust model `local-gradient`: clients release noised tables and their own noised contribution."""
