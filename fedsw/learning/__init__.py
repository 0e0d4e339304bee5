"""Everything that is learnt: tasks, penalties between distributions, moments, sketches, and networks.

`tasks` (an experiment's problem and its measures), `objectives` (penalties and their sensitivity), `moments` (sums of
squares before the first round), `sketches` (sums of cosines by label, and generators fitted to them), `models`;
`shipped_models` has an entry for each of them; `encoded` is data that a public network has encoded.
"""

__all__ = ["encoded", "models", "moments", "objectives", "shipped_models", "sketches", "tasks"]
