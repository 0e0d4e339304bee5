"""What sketches lose where nobody is trusted."""

from __future__ import annotations

import numpy as np

from simulations.papers.study import Result, Study

_BEST = "best"


def price_of_trust(study: Study) -> list[Result]:
    """`lost_without_trust`: the accuracy of the trusted server's generator minus that where nobody is.

    Means over seeds, at equal epsilon; the number stands in the column *best*, where the goal is.
    """
    return _lost(study, "nobody trusted", _BEST)


def price_of_masks(study: Study) -> list[Result]:
    """The same where the server sees one masked sum of all clients and is not trusted; both of the smaller network."""
    return _lost(study, "distributed", "smaller network")


def _lost(study: Study, series: str, trusting: str) -> list[Result]:
    """What a series loses against one that trusts the server, wherever both are."""
    found = []
    for source in study.along("source", trusting):
        for epsilon in study.along("epsilon", trusting):
            point = {"source": source, "epsilon": epsilon}
            trusted = study.numbers("accuracy_generated", trusting, point)
            own = study.numbers("accuracy_generated", series, point)
            if own and trusted:
                lost = {"lost_without_trust": float(np.mean(trusted) - np.mean(own))}
                found.append(Result(_BEST, point, 0, lost, {}, {}))
    return found
