"""What a researcher runs in a checkout beside the package."""
