"""Parts of sketches that are tables: which ranges of columns' codes they take."""

from __future__ import annotations

import pytest

from fedsw.learning.sketches.table_counts import Pairs
from fedsw.learning.sketches.table_parts import Triples


@pytest.mark.parametrize("ranges", [(), ((0, 3), (2, 5), (5, 6)), ((3, 5), (0, 3), (5, 6)), ((0, 2), (2, 2), (2, 3))])
def test_ranges_that_overlap_or_fall_or_are_empty_are_refused_of_pairs_and_of_triples(ranges):
    with pytest.raises(ValueError, match="without overlap"):
        Pairs(ranges)
    with pytest.raises(ValueError, match="without overlap"):
        Triples(ranges, ((0, 1, 2),))
