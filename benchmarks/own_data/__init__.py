"""What records of one's own lose by privacy, and whether what a run prints of them is true: docs/measured/own-data.md."""
