"""Local privacy: what a client protects before anything leaves it. Import from the modules of this folder."""
