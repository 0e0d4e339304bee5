"""Moments of all records, released once before the first round: their sum, bound, noise, and what is made of them."""
