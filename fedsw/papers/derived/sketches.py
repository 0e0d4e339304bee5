"""What sketches lose where nobody is trusted."""

from __future__ import annotations

import numpy as np

from fedsw.papers.study import Result, Study

_TRUSTED = "best"


def price_of_trust(study: Study) -> list[Result]:
    """`lost_without_trust`: the accuracy of the trusted server's generator minus that of the others, at equal epsilon.

    Means over seeds; the number stands in the column of the trusted server, where the goal is.
    """
    found = []
    for source in study.along("source", _TRUSTED):
        for epsilon in study.along("epsilon", _TRUSTED):
            point = {"source": source, "epsilon": epsilon}
            trusted = study.numbers("accuracy_generated", _TRUSTED, point)
            for series in study.series:
                own = study.numbers("accuracy_generated", series, point)
                if series != _TRUSTED and own and trusted:
                    lost = {"lost_without_trust": float(np.mean(trusted) - np.mean(own))}
                    found.append(Result(_TRUSTED, point, 0, lost, {}, {}))
    return found
