"""What several runs of a figure come to together: one file a subject, for the rows of its table."""
