"""The ServerApp and the loop of a run."""
