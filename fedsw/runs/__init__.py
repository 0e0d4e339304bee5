"""The folder of a run: what is written to it, read from it, and gone on from."""
