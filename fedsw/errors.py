"""Errors that several layers raise."""


class FederationError(RuntimeError):
    """The federation cannot go on; the message names the client, the reason and the remedy.

    It is for the terminal: it repeats what clients said, which may quote a record. `recorded` may be written.
    """

    def __init__(self, message: str, *, recorded: str = "the federation could not go on") -> None:
        super().__init__(message)
        self.recorded = recorded
