"""The `fedsw` command: one file for each verb. What a command needs is imported when it runs.

`app` has the command and its groups of verbs; the entry point of the package is `app.program`. Every other file is a
verb's, or what verbs share: options, and how a run is carried out.
"""

__all__ = ["app"]
