"""Optimal transport between samples: slices and rank matching, entropic, smoothed and flow variants."""
