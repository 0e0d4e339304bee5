"""Before the first round: counts, means and second moments of all records, released once."""
