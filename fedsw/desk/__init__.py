"""For deciding: tables are described and drafted, runs planned, tuned, compared, used, and made into tables.

`own_data` (from a user's own tables to an experiment and back), `planning` (plan, forecast, search), `compare` and
`baselines` (the same task by other methods), `use` (load, predict, export), `run_grid` (many runs, made once each);
`verbs` and `budget` are what the command's verbs are called in Python.
"""

__all__ = ["baselines", "budget", "compare", "own_data", "planning", "run_grid", "use", "verbs"]
