"""Where the two apps run: in this process, or on Flower's own simulation engine."""
