"""The ClientApp."""
