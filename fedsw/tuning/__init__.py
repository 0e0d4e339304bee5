"""Searching settings: free of charge on public twins, or on the records by a private selection that is accounted."""
