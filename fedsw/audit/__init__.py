"""Attacks on a run's guarantee, and a finished run recomputed: lower bounds on epsilon, and what contradicts it.

`canary` trains with and without a record of the worst kind and guesses which; `one_run` guesses many coins of one run;
`finding` is what both make of hits and false alarms. `record` recomputes a run from what its folder has, and imports of
fedsw only what its head names.
"""

__all__ = [
    "bounds", "canary", "canary_masked", "canary_once", "canary_pairs", "finding", "neighbours", "one_run", "record",
]  # fmt: skip
