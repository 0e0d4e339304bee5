"""The folder of a run: what is written to it, read from it, gone on from, and shown of it.

`run_files` names its files, `directory` writes them; `checkpoint` and `recovery` go on from them, `releases` are what
left, `loop` orders rounds, `optimizer` steps along them; `accounts` and `client_status` say what it cost whom.
`roll_call` says who is there. `view` reads a folder once, `status` how far a run is, `additive_shapes` and
`group_names` parts of it; `report` makes words, figures, screens and pages of a view, `write` files of these;
`commands` go on with it.
`observer` is the interface of observers, `observers`, `progress` and `telemetry` the shipped ones. `evaluation`
measures on held-out records; `single` is a run on one machine.
"""

__all__ = [
    "accounts", "additive_shapes", "checkpoint", "client_status", "commands", "directory",
    "evaluation", "group_names", "loop", "observer", "observers", "optimizer", "progress",
    "recovery", "releases", "report", "roll_call", "run_files", "shapes_of_model", "single", "status", "stepping",
    "telemetry", "view", "write",
]  # fmt: skip
