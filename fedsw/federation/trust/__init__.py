"""The trust models, a folder for each with all that is peculiar to it: who adds the noise, what leaves a client."""

NAMES = ("none", "central", "distributed", "local-gradient", "local-slices", "local-release", "sketch", "sketch-local")
"""The shipped ones, in the order in which they are shown; each is `TRUST_MODEL` of the package of its name."""
