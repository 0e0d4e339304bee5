"""The ClientApp that Flower starts at a client: the installed fedsw."""

from fedsw.federation.client import app

__all__ = ["app"]
