"""The trust models, a folder for each with all that is peculiar to it: who adds the noise, what leaves a client."""

FOLDERS = ("central", "distributed", "local_gradient", "local_slices", "local_release", "sketch")
"""Of the shipped ones, in the order in which they are shown: the objects are `TRUST_MODELS` of each."""
