"""Suspension of sites that made an attempt fail which other sites had already been charged for."""

from __future__ import annotations

import logging
import math
from collections import Counter

from fedsw.federation.exchange.availability import Away, named
from fedsw.federation.exchange.participants import Site
from fedsw.runs.telemetry import event

_log = logging.getLogger("fedsw.server")


class Suspensions:
    """Failed attempts that others were charged for, by the site at fault, and how long it is suspended.

    After its k-th such failure a site sits out 2^k rounds. It sits out for good after more than its equal share of the
    failed attempts that the plan has a budget for, or once all of those together are used up: another would take a
    round from all clients. One failure is let pass where the plan has a budget for none. That lasts as long as the
    server's process: resuming the run asserts that the site is mended.
    """

    def __init__(self) -> None:
        self._failed = Counter[int]()
        self._out: dict[int, tuple[Site, float]] = {}
        self._why: dict[int, str] = {}

    def fail(self, site: Site, round_: int, *, planned: int, sites: int) -> None:
        """Take note of a site's failure in a round; ``planned`` is how many the budget is for, among all ``sites``."""
        self._failed[site.node] += 1
        times = self._failed[site.node]
        planned = max(planned, 1)
        for_good = times > math.ceil(planned / sites) or self._failed.total() > planned
        self._out[site.node] = site, math.inf if for_good else round_ + 2**times
        about = event("site suspended", client=int(site.clients[0]), round=round_)
        _log.warning("%s %s", named(site), self._reason(site.node), extra=about)

    def exclude(self, site: Site, why: str) -> None:
        """Suspend a site for good."""
        self._failed[site.node] += 1
        self._out[site.node] = site, math.inf
        self._why[site.node] = f"sits out for good: {why}"
        _log.warning("%s %s", named(site), self._why[site.node], extra=event("site suspended"))

    def away(self, round_: int, *, for_good: bool) -> Away:
        """Sites suspended in a round, with the reasons; `for_good` only, or also those that come back later."""
        away = Away()
        for node, (site, last) in self._out.items():
            if math.isinf(last) or (not for_good and round_ <= last):
                away.lose(site, self._reason(node))
        return away

    def _reason(self, node: int) -> str:
        if node in self._why:
            return self._why[node]
        times, last = self._failed[node], self._out[node][1]
        until = "for good" if math.isinf(last) else f"to round {last:g}"
        what = "an attempt" if times == 1 else f"{times} attempts"
        return f"sits out {until}: {what} that others were charged for failed on its account"
