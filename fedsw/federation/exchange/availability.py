"""Availability of clients for a round: their site is online and, if they were away, has been greeted since.

A site that made attempts fail which others had been charged for is suspended (`Suspensions`).
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedsw._tools.settings import FederationError
from fedsw._tools.text import upward
from fedsw.federation import messages, wire
from fedsw.federation.exchange.exchange import Traffic, answers_to
from fedsw.federation.exchange.participants import Present, Site, clients_of, greeting, site_of
from fedsw.federation.exchange.roll import Roll
from fedsw.federation.messages import Fault
from fedsw.learning.tasks.problem import Problem
from fedsw.runs.telemetry import event

_TOLERANCE = 1e-6  # relative; a release costs more


class ReportedEpsilons:
    """The epsilon that each client last reported. A lower one than before means that its ledger was replaced."""

    def __init__(self) -> None:
        self._reported: dict[int, float] = {}

    def recall(self, before: Iterable[Mapping[int, float]]) -> None:
        """Remember what clients reported to earlier processes of the run, in one mapping or several."""
        for report in before:
            for client, epsilon in report.items():
                self._reported[client] = max(epsilon, self._reported.get(client, 0.0))

    def hear(self, client: int, epsilon: float) -> None:
        """Remember the epsilon that a client reports, unless it is less than before: its ledger was then replaced."""
        before = self._reported.get(client, 0.0)
        if epsilon < before * (1 - _TOLERANCE):
            raise FederationError(
                f"client {client}'s privacy ledger has spent epsilon {upward(epsilon, 6)}, but it reported "
                f"{upward(before, 6)} in "
                "this run before: the ledger was replaced, and would forget what was spent. Start the client with the "
                "state-dir that it had"
            )
        self._reported[client] = max(epsilon, before)

    def worst(self) -> float:
        """The largest epsilon that a client reported; 0 before any report."""
        return max(self._reported.values(), default=0.0)

    def by_client(self) -> dict[int, float]:
        """The last epsilon of every client that reported one."""
        return dict(sorted(self._reported.items()))


_log = logging.getLogger("fedsw.server")

_AGREES = "it has not agreed to the bins of columns yet"
_LOOK_SECONDS = 5.0  # polling for replies of dead nodes takes Flower up to a second
_POLL_SECONDS = 0.02


class Away:
    """Clients that cannot be asked, with the reasons: whole sites by node, and single clients of sites by number."""

    def __init__(self) -> None:
        self.sites: dict[int, str] = {}
        self.clients: dict[int, str] = {}

    def lose(self, site: Site, reason: str) -> None:
        """Count a site with all its clients as away."""
        self.sites[site.node] = reason

    def lose_client(self, site: Site, client: int, reason: str) -> None:
        """Count one client as away; a site of one client is away with it."""
        if len(site.clients) == 1:
            self.lose(site, reason)
        else:
            self.clients[client] = reason

    def back(self, site: Site) -> None:
        """Forget that a site, or a client of it, was away."""
        self.sites.pop(site.node, None)
        for client in [client for client in self.clients if client in site.clients]:
            del self.clients[client]

    def concerns(self, site: Site) -> bool:
        """True if the site or a client of it is away."""
        return site.node in self.sites or any(client in site.clients for client in self.clients)

    def here(self, site: Site) -> Present:
        """The site with its clients that are not away."""
        here = np.full(len(site.clients), site.node not in self.sites)
        if self.clients:
            here &= ~np.isin(site.clients, list(self.clients))
        return Present(site, here)

    def joined(self, other: Away) -> Away:
        """Sites and clients that are away in either of two mappings; where they are in both, the other's reason."""
        both = Away()
        both.sites, both.clients = self.sites | other.sites, self.clients | other.clients
        return both

    def describe(self, sites: Sequence[Site]) -> str:
        """One sentence for each site or client that is away."""
        of_node = {site.node: site for site in sites}
        reasons = {named(of_node[node]): reason for node, reason in self.sites.items() if node in of_node}
        reasons |= {f"Client {client}": reason for client, reason in self.clients.items()}
        return " ".join(f"{who}: {reason}." for who, reason in reasons.items())


def named(site: Site) -> str:
    """A site's name at the beginning of a sentence."""
    first, last = int(site.clients[0]), int(site.clients[-1])
    return f"Client {first}" if first == last else f"The site of clients {first} to {last}"


@dataclass(frozen=True)
class _Greeting:
    site: Site
    until: float


class Availability:
    """Keeps the sites and clients of a run that can be asked for a batch.

    A site that was lost may have been started again: it then knows nothing of this run. It is greeted as in the
    beginning, and asked again once it answers with the records it had; no round waits for it. Who is away is settled
    before counts are drawn, and not by what a record holds: a greeting is about the settings and the public sizes.
    """

    def __init__(
        self,
        grid: Grid,
        task: Problem,
        sites: Sequence[Site],
        run: str,
        traffic: Traffic,
        spending: ReportedEpsilons,
        roll: Roll | None = None,
    ) -> None:
        self._grid, self._sites, self._traffic, self.spending = grid, sites, traffic, spending
        self._task, self._run, self._timeout = task, run, task.experiment.federation.timeout
        self._greetings: dict[str, _Greeting] = {}
        self._next_look = 0.0
        self._roll = roll or Roll(grid, run)
        self.away = Away()

    def lose(self, site: Site, reason: str, client: int | None = None) -> None:
        """Count a site with all its clients as away, or one client of it, and say so in the roll call."""
        if client is None:
            self.away.lose(site, reason)
        else:
            self.away.lose_client(site, client, reason)
        self._roll.mark(site.node, "away", reason)

    def agree_again(self, task: Problem) -> None:
        """Greet all sites with a run's new settings, and wait for those that are online; the others agree once back."""
        self._task = task
        for site in self._sites:
            self.away.lose(site, _AGREES)
        self.present(sum(len(site.clients) for site in self._sites))

    def hear_clients(self) -> None:
        """Take note of what the clients' own ledgers have spent; see `ReportedEpsilons`."""
        for site in self._sites:
            self._hear_spent(site)

    def present(self, least: int, *, without: Away | None = None, patient: bool = False) -> tuple[Present, ...]:
        """The sites with a client that can be asked now; those that are away are greeted meanwhile.

        Waits for answers to greetings only if fewer than `least` clients are there, and only until messages expire; if
        `patient`, also for sites that are offline, as long as a message would be waited for: one that stood
        still for half a minute, or is started again, is back by then. After that time no site is greeted again: one
        that answers every greeting too late would be waited for without end. Those `without` do not count, whether
        they are there or not.
        """
        last_greeting = time.monotonic() + self._timeout
        until = last_greeting if patient else 0.0
        here = self._online()
        if self._greet(here) or time.monotonic() >= self._next_look:
            self._look()
        sites = self._found(here, without)
        while clients_of(sites) < least and (self._awaited(here, without) or self._returning(here, without, until)):
            time.sleep(_POLL_SECONDS)
            self._look()
            here = self._online()
            if time.monotonic() < last_greeting:
                self._greet(here)
            sites = self._found(here, without)
        return sites

    def _online(self) -> frozenset[int]:
        here = frozenset(self._grid.get_node_ids()) & {site.node for site in self._sites}
        for site in self._sites:
            if site.node not in here and site.node not in self.away.sites:
                self.lose(site, "it is offline")
        return here

    def _found(self, here: frozenset[int], without: Away | None) -> tuple[Present, ...]:
        away = self.away if without is None else self.away.joined(without)
        parts = (away.here(site) for site in self._sites if site.node in here)
        return tuple(part for part in parts if part.count)

    def _returning(self, here: frozenset[int], without: Away | None, until: float) -> bool:
        """True while there is time for an offline site to come back."""
        lost = without or Away()
        away = [site for site in self._sites if site.node not in here and site.node not in lost.sites]
        return bool(away) and time.monotonic() < until

    def _awaited(self, here: frozenset[int], without: Away | None) -> bool:
        now = time.monotonic()
        pending = [sent.site for sent in self._greetings.values() if sent.until > now]
        lost = without or Away()
        return any(site.node in here and site.node not in lost.sites for site in pending)

    def _greet(self, here: frozenset[int]) -> bool:
        """Greet clients that are online, away, and were not greeted lately; returns whether there was any."""
        now = time.monotonic()
        self._greetings = {name: sent for name, sent in self._greetings.items() if sent.until > now}
        greeted = {sent.site.node for sent in self._greetings.values()}
        fresh = [s for s in self._sites if s.node in here and s.node not in greeted and self.away.concerns(s)]
        if not fresh:
            return False
        content, kind = greeting(self._task, self._run), messages.HELLO.kind
        sent = [Message(content, s.node, kind, group_id="hello", ttl=self._timeout) for s in fresh]
        for name, site in zip(self._grid.push_messages(sent), fresh, strict=True):
            if name:
                self._greetings[name] = _Greeting(site, now + self._timeout)
        self._roll.call_again([site.node for site in fresh])
        return True

    def _look(self) -> None:
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._roll.hear()
        if not self._greetings:
            return
        nodes = {name: sent.site.node for name, sent in self._greetings.items()}
        for name, reply in answers_to(self._grid, nodes).items():
            self._hear(self._greetings.pop(name).site, reply)

    def _hear(self, site: Site, reply: RecordDict | Fault) -> None:
        if isinstance(reply, Fault):
            self.away.lose(site, reply.reason)
            self._roll.mark(site.node, "away" if reply.code in wire.ABSENT else "not taken", reply.reason)
            return
        self._traffic.up += messages.bytes_of(reply)
        try:
            back = site_of(site.node, reply, self._task)
            if not _same(back, site):
                raise FederationError("it came back as another client, or with other records")
            self._hear_spent(back)
        except FederationError as fault:
            self.away.lose(site, str(fault))
            self._roll.mark(site.node, "not taken", str(fault))
            return
        agreed = self.away.sites.get(site.node) == _AGREES
        self.away.back(site)
        if agreed:
            self._roll.mark(site.node, "greeted")
            return
        self._roll.mark(site.node, "back")
        name = named(site)
        _log.info("%s is back", name[0].lower() + name[1:], extra=event("client back", client=int(site.clients[0])))

    def _hear_spent(self, site: Site) -> None:
        if site.spent is not None:
            for client, epsilon in zip(site.clients, site.spent, strict=True):
                self.spending.hear(int(client), float(epsilon))


def _same(one: Site, other: Site) -> bool:
    """True if a site that came back has the node, the clients and the records that the plan was made with."""
    if one.node != other.node or not np.array_equal(one.clients, other.clients):
        return False
    return (
        np.array_equal(one.sizes, other.sizes)
        and (one.held_out is None) == (other.held_out is None)
        and (one.held_out is None or other.held_out is None or np.array_equal(one.held_out, other.held_out))
        and (one.ids is None) == (other.ids is None)
        and all(map(np.array_equal, one.ids or (), other.ids or ()))
    )


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
