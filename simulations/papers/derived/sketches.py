"""What sketches lose where nobody is trusted."""

from __future__ import annotations

import numpy as np

from simulations.papers.study import Result, Study

_TRUSTED, _NOBODY, _MASKED = "best", "nobody trusted", "distributed"


def price_of_trust(study: Study) -> list[Result]:
    """`lost_without_trust`: the accuracy of the trusted server's generator minus that where nobody is.

    Means over seeds, at equal epsilon; the number stands in the column of the trusted server, where the goal is.
    """
    return _lost(study, _NOBODY)


def price_of_masks(study: Study) -> list[Result]:
    """The same where the server sees one masked sum of all clients and is not trusted."""
    return _lost(study, _MASKED)


def _lost(study: Study, series: str) -> list[Result]:
    """What a series loses against the trusted server, wherever both are."""
    found = []
    for source in study.along("source", _TRUSTED):
        for epsilon in study.along("epsilon", _TRUSTED):
            point = {"source": source, "epsilon": epsilon}
            trusted = study.numbers("accuracy_generated", _TRUSTED, point)
            own = study.numbers("accuracy_generated", series, point)
            if own and trusted:
                lost = {"lost_without_trust": float(np.mean(trusted) - np.mean(own))}
                found.append(Result(_TRUSTED, point, 0, lost, {}, {}))
    return found
