"""The trust models, a folder for each with all that is peculiar to it: who adds the noise, what leaves a client."""

FOLDERS = ("central", "distributed", "local_gradient", "local_slices", "local_release", "sketch")
"""Folders of the shipped trust models, in the order in which they are shown; each lists its own in `TRUST_MODELS`."""
