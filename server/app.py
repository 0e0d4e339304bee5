"""The ServerApp that Flower starts at the server: the installed fedsw."""

from fedsw.federation.server.app import app

__all__ = ["app"]
