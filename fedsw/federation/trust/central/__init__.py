"""Trust model `central`: the server adds the noise."""
