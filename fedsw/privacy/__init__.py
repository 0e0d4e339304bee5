"""Sensitivities, noise, and what may be released of private records."""
