"""The `fedsw` command: a file for a group of verbs (`run`: run, resume), which imports what it needs when it runs.

`app` has the command and its groups of verbs; the entry point of the package is `app.program`. Every other file is a
group's, or what groups share: options, and how a run is carried out.
"""

__all__ = ["app", "columns", "demo", "deploy", "execution", "options", "run", "show"]
