"""The folder of a run: what is written to it, read from it, and gone on from.

`run_files` names its files, `directory` makes it, `record` reads a finished one, `checkpoint` and `recovery` go on from
one, `releases` are what left, `steps_taken` what was made of it, `accounts` and `participation` what it cost and whom.
`observer` is the interface of who watches, `observers` the shipped ones, `telemetry` its logs. `evaluation` measures on
held-out records; `report` and `page` show runs on a screen and in a page; `single` is a run on one machine.
"""

__all__ = [
    "accounts", "checkpoint", "directory", "evaluation", "observer", "observers", "page", "participation", "record",
    "recovery", "releases", "report", "run_files", "single", "steps_taken", "telemetry",
]  # fmt: skip
