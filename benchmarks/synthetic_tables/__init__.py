"""Synthetic tables: what classifiers learn from them, and how far their marginals are from real ones, beside MST and AIM."""
