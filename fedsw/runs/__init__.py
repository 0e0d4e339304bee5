"""A run and its folder: the loop of rounds, what it writes, and what is read and shown of it.

`loop` orders rounds, `optimizer` steps along releases; `single` is a run on one machine, `fedsw.federation` has that of
many. `run_files` names the files of a folder, `directory` writes them, `releases` are clients' single releases;
`checkpoint` and `recovery` resume from them, by the commands in `commands`. `accounts` and `client_status` have what it
cost its records. `view` reads a folder once, `status` its progress, `roll_call` its clients, `additive_shapes` and
`group_names` parts of it; `report` makes words, figures, screens and pages of a view, `write` files of these.
`observer` is the interface of observers, `observers`, `progress` and `telemetry` the shipped ones. `evaluation`
measures on held-out records.
"""

__all__ = [
    "accounts", "additive_shapes", "checkpoint", "client_status", "commands", "directory",
    "evaluation", "group_names", "loop", "observer", "observers", "optimizer", "progress",
    "recovery", "releases", "report", "roll_call", "run_files", "shapes_of_model", "single", "status", "stepping",
    "telemetry", "view", "write",
]  # fmt: skip
