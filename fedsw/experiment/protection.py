"""Why the reader of a run has no guarantee, whatever its ledger says."""

from __future__ import annotations

from fedsw.experiment.load import Experiment


def unprotected(experiment: Experiment) -> str | None:
    """The setting that takes the guarantee away, in words; None if there is one."""
    if not experiment.privacy.noisy:
        return "no noise would be added (privacy.trust 'none' or epsilon inf)"
    if experiment.seed is not None:
        return f"seed is {experiment.seed}: whoever knows it can undo sampling and noise"
    if experiment.unsafe_metrics:
        return "unsafe_metrics asks for un-noised training losses"
    if experiment.data.shows_private_rows:
        return "data.held_out_overlap 'allow' publishes metrics of records that may be private, without noise"
    return None
