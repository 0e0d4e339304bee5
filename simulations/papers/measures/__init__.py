"""What is measured on a finished run for a figure, beside its held-out metrics: one file a subject."""
