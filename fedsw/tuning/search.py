"""Trying candidates one by one where every try is free."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedsw.randomness import Stream
from fedsw.tuning.candidates import Candidate, Score


@dataclass(frozen=True)
class Tried:
    """A candidate with its score, and why it has none."""

    candidate: Candidate
    score: float
    fault: str | None = None


def search(
    found: Sequence[Candidate], score: Score, *, most: int, said: Callable[[Tried], None] = lambda tried: None
) -> list[Tried]:
    """Score candidates, the best first; of more than `most` a random choice of that many.

    A candidate that cannot be run scores -inf and says why: the others go on.

    Args:
        score: how good an experiment turns out; it must not look at private records.
        said: called after every candidate.
    """
    tried = []
    for candidate in _chosen(found, most):
        try:
            result = Tried(candidate, score(candidate.experiment))
        except (ValueError, RuntimeError) as fault:
            result = Tried(candidate, -math.inf, f"{type(fault).__name__}: {fault}")
        tried.append(result)
        said(result)
    return sorted(tried, key=lambda each: -each.score)


def _chosen(found: Sequence[Candidate], most: int) -> list[Candidate]:
    if len(found) <= most:
        return list(found)
    keys = Stream.seeded(0, "tuning").words(len(found))
    return [found[place] for place in sorted(range(len(found)), key=lambda place: int(keys[place]))[:most]]
