"""Flower's three processes with one warm Python process each, instead of a new one for every message."""
