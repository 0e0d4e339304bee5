"""Steps of every handler: find the greeted node, decode the request, let its clients pay and answer, or refuse.

First which of its errors a client shows to a server that is not trusted, and how it joins a run: the operator's limits
are checked, then the records are read, once per process.
"""

from __future__ import annotations

import dis
import logging
import os
import re
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedsw._tools.text import shown
from fedsw.data import BadRecords
from fedsw.data.downloads import without_downloads
from fedsw.data.units import repeats_of_records
from fedsw.experiment import Experiment, ExperimentError
from fedsw.experiment.preset_rules import same_but_for_chosen
from fedsw.experiment.trust import answering
from fedsw.federation import messages, wire
from fedsw.federation.messages import Broadcast, Exchange, Terms
from fedsw.federation.node import own_ledger as account
from fedsw.federation.node.held_records import held_out_records, held_records, require_agreement, require_units
from fedsw.federation.node.limits import (
    require_delta,
    require_limits,
    require_modules,
    require_own_folder,
    require_proven,
    require_room,
    withholds_records,
)
from fedsw.federation.node.node import Node
from fedsw.federation.node.own_ledger import Answered, Promise, ledger_path, opened, require_planned
from fedsw.federation.node.roster import NotInRoster
from fedsw.federation.node.simulated import is_simulated, of_one_person
from fedsw.learning.moments.beside_rounds import require_histograms, require_moments, require_scorable
from fedsw.learning.tasks.problem import Problem
from fedsw.mathematics.clipping import UnsupportedModule
from fedsw.privacy.accounting import BudgetExhausted, Charge, Ledger
from fedsw.privacy.accounting.lifetime import Cost, Counts
from fedsw.privacy.release import Bill, Paid, Part, pay_together
from fedsw.runs.recovery import is_of_disk

WITHHELD = "what went wrong is withheld from a server that is not trusted; this client's own log says it"
_RAISE = dis.opmap["RAISE_VARARGS"]


def may_be_reported(fault: BaseException) -> bool:
    """True if an error speaks of a request and settings only: a `raise` statement of fedsw made it.

    Other code that handles records may quote one in its errors: a task, map or network of the experiment's own, and
    every library. An error of fedsw that repeats the text of such an error is withheld, too.
    """
    if not _raised_here(fault):
        return False
    others = [other for other in chain(fault) if other is not fault and not _raised_here(other)]
    return not any(str(other) and str(other) in str(fault) for other in others)


def chain(fault: BaseException | None) -> Iterator[BaseException]:
    """An error, and those that it followed from, the latest first."""
    while fault is not None:
        yield fault
        fault = fault.__cause__ or fault.__context__


def _raised_here(fault: BaseException) -> bool:
    trace: TracebackType | None = fault.__traceback__
    if trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    return package == "fedsw" and trace.tb_frame.f_code.co_code[trace.tb_lasti] == _RAISE


_log = logging.getLogger("fedsw.clients")

_MOST_NODES_KEPT = 256
_nodes: OrderedDict[int, dict[int, Node]] = OrderedDict()
"""Nodes of this process, by run and number; those of the latest run stay, however many they are."""


def join(experiment_json: str, run: str, run_id: int, node_config: Mapping[str, Any]) -> Node:
    """This node in a run: loaded and validated on the first message, remembered while the process runs.

    Flower's number `run_id` is another one when the run is resumed.
    """
    part = int(node_config.get("partition-id", 0))
    of_run = _nodes.setdefault(run_id, {})
    _nodes.move_to_end(run_id)
    while len(_nodes) > 1 and sum(map(len, _nodes.values())) > _MOST_NODES_KEPT:
        _nodes.popitem(last=False)
    known = of_run.get(part)
    if known is None or known.settings != experiment_json:
        of_run[part] = _load(experiment_json, run, node_config, client=part, known=known)
    return of_run[part]


def _load(experiment_json: str, run: str, node_config: Mapping[str, Any], *, client: int, known: Node | None) -> Node:
    """Load the node; records are not read again if only preset settings differ from the `known` one's experiment.

    The operator's limits are checked before a file is opened. An untrusted server does not learn what is wrong with a
    record: errors that quote one go to the log.
    """
    experiment = Experiment.model_validate_json(experiment_json)
    require_limits(experiment, node_config)
    require_own_folder(experiment, node_config)
    require_agreement(experiment.data.columns, node_config)
    require_modules(experiment, node_config)
    require_room(experiment, node_config)
    torch.set_num_threads(experiment.federation.cores)
    try:
        with nullcontext() if is_simulated(node_config) else without_downloads():
            task = Problem.from_json(experiment_json, node_config.get("data-dir"))
            require_histograms(task)
            require_moments(task)
            require_scorable(task)
            require_proven(task, node_config)
            if known is not None and same_but_for_chosen(known.task.experiment, experiment):
                node = known.under(task)
            else:
                node = _read(task, run, node_config)
    except Exception as fault:
        of_settings = isinstance(fault, ExperimentError | UnsupportedModule | FileNotFoundError)
        if (of_settings and may_be_reported(fault)) or not withholds_records(experiment, node_config):
            raise
        _log.error("%s", fault)
        unfit = isinstance(fault, BadRecords)
        why = "do not fit the declared columns; its own log says where" if unfit else "cannot be used; see its own log"
        raise ValueError(f"client {client}'s records {why}") from None
    require_delta(experiment, node_config, records=len(node.units))
    require_room(experiment, node_config, task=node.task, records=len(node.units))
    node.settings = experiment_json
    return node


def _read(task: Problem, run: str, node_config: Mapping[str, Any]) -> Node:
    held = held_records(task, node_config)
    require_units(task.experiment, held.records)
    if task.experiment.data.own and repeats_of_records(held.records) is not None:
        # Without their number: a simulation's log is the run's screen, and no count of private records leaves unnoised.
        _log.warning(
            "rows equal others exactly, and epsilon is for one row: larger for a person with several. Name the column "
            "with persons (unit in [data]); fedsw check counts equal rows"
        )
    node = Node.of(task, held, run)
    if task.experiment.data.held_out_released:
        node.held_out = Node.of(task, held_out_records(task, node_config), run)
    return node


STATE = "fedsw"
COUNTED = "fedsw-counted"
"""Key of the node's state with the experiment for which it has reported its sizes."""
Down = TypeVar("Down", bound=messages.Message)
Up = TypeVar("Up", bound=messages.Message)


@dataclass(frozen=True)
class Due:
    """A client's payment for an attempt, with its ledger's file; see `fedsw.privacy.release.pay`.

    In a run with releases of several kinds, `most` is all that it plans to release; see `own_ledger.require_planned`.
    """

    ledger: Path
    promise: Promise
    round: int
    attempt: int
    charges: Sequence[Charge]
    sigma: float
    parts: Sequence[Part]
    most: Counts | Cost | None = None


def paid_together(dues: Sequence[Due]) -> list[Paid | Exception]:
    """Charge an attempt to the ledgers of many clients, with one wait for the disk per batch of ledgers.

    Guarantee: that of `fedsw.privacy.release.pay_together`; a client that cannot pay keeps no other from paying.

    Returns for each, in order, the payment, which is on disk, or the error that `opened` or `pay` raised.
    """
    size = max(1, account.most_open() // 2)
    return [payment for start in range(0, len(dues), size) for payment in _paid(dues[start : start + size])]


def _paid(dues: Sequence[Due]) -> list[Paid | Exception]:
    results: dict[int, Paid | Exception] = {}
    uses: dict[int, AbstractContextManager[Ledger]] = {}
    bills: dict[int, Bill] = {}
    try:
        for index, due in enumerate(dues):
            use = opened(due.ledger, due.promise)
            try:
                ledger = use.__enter__()
                uses[index] = use
                ledger.require_fresh(due.round, due.attempt)
                require_planned(ledger, due.most, due.charges, due.sigma)
                bills[index] = Bill(ledger, due.round, due.attempt, due.charges, due.sigma, due.parts)
            except Exception as fault:
                results[index] = fault
        results |= dict(zip(bills, pay_together(list(bills.values())), strict=True))
        paid = [index for index, said in results.items() if isinstance(said, Paid)]
        _charged.update({dues[index].ledger: (_run(dues[index].promise.run), dues[index].round) for index in paid})
    finally:
        # Leaving a ledger remembers its last row beside it, so that an older copy in its place is noticed.
        for index, used in uses.items():
            try:
                used.__exit__(None, None, None)
            except Exception as fault:  # what is charged is charged; without its memory beside it nothing leaves
                results[index] = fault
    return [results[index] for index in range(len(dues))]


_charged: dict[Path, tuple[str, int]] = {}
"""The run, and the last round of it, that each ledger was charged for in this process."""


def _run(name: str) -> str:
    """A run's name as the server gave it; a ledger's may say how records were split."""
    return name.partition(".")[0]


def require_charged(kind: str, message: Message, reply: Message, context: Context) -> None:
    """Withhold a client's answer in a round that its own ledger has no row for: RuntimeError names both.

    For trust models with ledgers at the clients: a handler that charges nothing releases nothing. Exchanges that only
    ask ("query.…") release nothing.
    """
    if reply.has_error() or kind.startswith("query."):
        return
    node = join_of(context)
    privacy = node.task.experiment.privacy
    if not privacy.paying(range(len(node.clients))):
        return
    config = message.content.get("config")
    round_ = config.get("round") if isinstance(config, ConfigRecord) else None
    positions = messages.answered_for(reply.content, len(node.clients))
    places = ledgers_of(node, context, positions).values()
    missing = [path.stem for path in places if not _has_round(path, node.run, round_)]
    # A site's one sum is also of clients that are not in it: that all those in it have paid, the door has required.
    if missing and (len(missing) == len(positions) or messages.is_packed(reply.content)):
        raise RuntimeError(
            f"something would leave in round {round_!r} under trust {privacy.trust!r}, and the ledger of "
            f"{', '.join(missing)} has no row of it: whatever leaves goes through fedsw.privacy.release. Nothing left"
        )


def _has_round(path: Path, run: str, round_: object) -> bool:
    if _charged.get(path) == (_run(run), round_):
        return True
    if not path.exists():
        return False
    with Ledger.open(path, read_only=True) as ledger:
        return any(charged == round_ for charged, _ in ledger.attempts())


Together = Callable[[Node, Down, Sequence[int], Context], Mapping[int, Up | Exception]]
"""Computes the answers of a node's asked clients, by position; an exception stands for a client that has none."""
Handler = Callable[[Message, Context], Message]
"""Answers a server's request at a client."""


def each_pays(
    due: Callable[[Node, Down, Path], Due], release: Callable[[Node, Down, Paid | None], Up]
) -> Together[Down, Up]:
    """Let clients pay together, each from its own ledger (nothing without noise), and then release one by one."""

    def together(node: Node, request: Down, positions: Sequence[int], context: Context) -> dict[int, Up | Exception]:
        answers: dict[int, Up | Exception] = {}
        dues: dict[int, Due] = {}
        for position in node.task.experiment.privacy.paying(positions):
            try:
                dues[position] = due(alone := node.alone(position), request, ledger_of(alone, context))
            except Exception as fault:  # of this client alone: the others answer
                answers[position] = fault
        paid = dict(zip(dues, paid_together(list(dues.values())), strict=True))
        for position in [other for other in positions if other not in answers]:
            said = paid.get(position)
            try:
                answers[position] = (
                    said if isinstance(said, Exception) else release(node.alone(position), request, said)
                )
            except Exception as fault:
                answers[position] = fault
        return answers

    return together


def answer_together(exchange: Exchange[Down, Up], together: Together[Down, Up]) -> Handler:
    """Make the handler that answers for the asked clients of a node, each with its own ledger and noise.

    A node of one client answers as that client. A site packs the answers that its clients would send by themselves.
    """

    def answer(message: Message, context: Context) -> Message:
        node = greeted(exchange, context)
        alone, content, positions = len(node.clients) == 1, message.content, [0]
        if not alone:
            content, positions = messages.opened(content, len(node.clients))
        request = asked_of(exchange, content, Terms.of(node.task))
        _prepare(node, request)
        terms, outcomes = Terms.of(node.task), together(node, request, positions, context)
        if alone and isinstance(outcomes[0], Exception):
            raise outcomes[0]
        answers = {position: _packable(outcomes[position], terms, context) for position in positions}
        note(exchange, request, node, context)  # charged once, by the ledger; where there is none, refused here
        reply = answers[0] if alone else messages.packed(answers)
        assert isinstance(reply, RecordDict)
        return Message(reply, reply_to=message)

    return answer


def _packable(answer: messages.Message | Exception, terms: Terms, context: Context) -> RecordDict | messages.Fault:
    """A client's answer, or why it has none."""
    if isinstance(answer, BudgetExhausted):
        return messages.Fault(reason_of(str(answer), context.node_config), wire.BUDGET_EXHAUSTED)
    if isinstance(answer, Exception):
        return messages.Fault(_reported(answer, terms.agreed.experiment, context.node_config), wire.APP_RAISED)
    return messages.encode(answer, terms)


def node_of(exchange: Exchange[Down, Up], message: Message, context: Context) -> tuple[Node, Down]:
    """This node and the request of a trusted server, decoded."""
    node = greeted(exchange, context)
    request = asked_of(exchange, message.content, Terms.of(node.task, S=len(node.clients)))
    _prepare(node, request)
    return node, request


def fresh(exchange: Exchange[Down, Up], message: Message, context: Context) -> tuple[Node, Down]:
    """As `node_of`, for an attempt that this node has not answered; raises `AlreadyAnswered` before any work."""
    node, request = node_of(exchange, message, context)
    note(exchange, request, node, context)
    return node, request


def answered_by(node: Node, context: Context) -> Answered:
    """The attempts that this node has answered in its run."""
    return Answered.of(context.node_config, int(node.clients[0]), node.run, _state(f"{STATE}-answered", context))


def note(exchange: Exchange[Down, Up], request: Any, node: Node, context: Context) -> None:
    """Write down that a request for an attempt is answered, before the answer leaves."""
    answered_by(node, context).note(exchange, request.round, request.attempt)


def join_of(context: Context) -> Node:
    """This node, as it was greeted; RuntimeError if it was not."""
    if STATE not in context.state:
        raise RuntimeError("this node was never greeted in this run (query.hello); the server must start with it")
    state = state_of_node(context)
    return join(str(state["experiment"]), str(state["run"]), context.run_id, context.node_config)


def greeted(exchange: Exchange[Down, Up], context: Context) -> Node:
    """This node, as it was greeted; a message of another trust model than the agreed one is refused."""
    node = join_of(context)
    agreed = node.task.experiment.privacy
    if exchange.kind not in agreed.model.exchanges():
        trusts = answering(exchange.kind)
        of = "tasks of another kind" if agreed.trust in trusts else f"trust {' or '.join(trusts)}"
        raise RuntimeError(f"this message belongs to {of}; this node agreed to {agreed.trust}")
    return node


def _prepare(node: Node, request: messages.Message) -> None:
    """Let the node's features go through the map that came with a request, where one did."""
    prepared: Broadcast | None = getattr(request, "prepared", None)
    if prepared is not None:
        node.prepare(prepared.tensor())


def asked_of(exchange: Exchange[Down, Up], content: RecordDict, terms: Terms) -> Down:
    """The server's request, decoded and checked; it is refused before anything private is read, or charged."""
    try:
        return messages.decode(exchange.down, content, terms)
    except messages.Malformed as fault:
        raise ValueError(f"{fault}. This client refuses {exchange.kind} and charged nothing") from None


def answered(answer: messages.Message, node: Node, message: Message, **sizes: int) -> Message:
    """The reply that carries an answer."""
    return Message(messages.encode(answer, Terms.of(node.task, **sizes)), reply_to=message)


def ledger_of(node: Node, context: Context) -> Path:
    """The ledger file of a node of one client."""
    return ledger_path(context.node_config, int(node.clients[0]))


def ledgers_of(site: Node, context: Context, positions: Sequence[int]) -> dict[int, Path]:
    """The ledger files of some of a site's clients, by position."""
    return {position: ledger_path(context.node_config, int(site.clients[position])) for position in positions}


def state_of_node(context: Context) -> dict[str, Any]:
    """This node's state between messages; Flower's record behaves like a dict."""
    return cast(dict[str, Any], context.state[STATE])


def state_of_site(context: Context) -> dict[str, Any]:
    """The state of all of a node's clients between messages."""
    return _state(f"{STATE}-site", context)


def _state(name: str, context: Context) -> dict[str, Any]:
    return cast(dict[str, Any], context.state.setdefault(name, ConfigRecord()))


HIDDEN = "[a path of this client]"
"""The words sent in place of a path."""
_OWN_PATHS = ("data-path", "data-dir", "state-dir", "schema", "accounts")
_OF_ENVIRONMENT = ("FEDSW_DATA", "FEDSW_STATE", "FEDSW_ACCOUNTS", "FLWR_HOME", "HOME")
_MOST_FILES = 10_000
_MOST_READ = 20_000
"""Letters of a reason that are looked at."""
_WORD = r"[^\s'\"`,;:()\[\]<>|]"
_ABSOLUTE = re.compile(rf"""(?P<quote>['"`])~?/.*?(?P=quote)|(?<![\w.:/~)])~?/(?!/){_WORD}+""")


def refusing(message: Message, context: Context, answering: Callable[[Message, Context], Message]) -> Message:
    """Answer; whatever keeps a node from it leaves as one error, as `reason_of` writes it.

    The node's own log has the full error. An untrusted server sees nothing of an error that fedsw did not raise,
    which may quote a record.
    """
    try:
        reply = answering(message, context)
    except Exception as fault:
        said = _said_by_server(message)
        code = wire.BUDGET_EXHAUSTED if isinstance(fault, BudgetExhausted) else wire.APP_RAISED
        code = wire.NOT_IN_ROSTER if isinstance(fault, NotInRoster) else code
        reason = str(fault) if code == wire.BUDGET_EXHAUSTED else f"{type(fault).__name__}: {fault}"
        # Records were read for the experiment that was agreed to, or are by the one that this request asks for.
        settings = str(state_of_node(context)["experiment"]) if STATE in context.state else said
        try:
            experiment = Experiment.model_validate_json(settings)
        except ValueError:
            experiment = None
        reported = _reported(fault, experiment, context.node_config, said)
        if not of_one_person(context.node_config) or reported == WITHHELD:
            _say_refused(message, shown(reason) + _remedy(fault, context.node_config))
        return Message(Error(code, reported), reply_to=message)
    if not reply.has_error():
        return reply
    reason = str(reply.error.reason)
    if not of_one_person(context.node_config):
        _say_refused(message, shown(reason))
    return Message(
        Error(reply.error.code, reason_of(reason, context.node_config, said=_said_by_server(message))), reply_to=message
    )


def _remedy(fault: BaseException, node_config: Mapping[str, Any]) -> str:
    """Tell the operator where to make room on a disk that does not take what a node must keep; "" for other errors."""
    if not any(is_of_disk(cause) for cause in chain(fault)):
        return ""
    folders = (f"{key} {node_config[key]}" for key in ("state-dir", "accounts") if node_config.get(key))
    where = " and ".join(folders) or "the folder of FEDSW_STATE"
    return f". Nothing of it was answered. Make room on the disk of {where}; the server's next request is then answered"


_said: dict[int, tuple[str, str]] = {}
"""The last refusal of each run that was said."""


def _say_refused(message: Message, why: str) -> None:
    """Log a refusal, once while nothing else is refused: a server greets lost clients every few seconds."""
    kind, run = message.metadata.message_type, int(message.metadata.run_id)
    if kind == messages.HELLO.kind and _said.get(run) == (kind, why):
        return
    _said.clear()
    _said[run] = (kind, why)
    _log.error("%s was refused: %s", kind, why)


def _reported(fault: Exception, experiment: Experiment | None, node_config: Mapping[str, Any], said: str = "") -> str:
    """The text that a server gets of an error, under an experiment that this node agreed to or was asked to."""
    if withholds_records(experiment, node_config) and not may_be_reported(fault):
        return WITHHELD
    text = str(fault) if isinstance(fault, BudgetExhausted) else f"{type(fault).__name__}: {fault}"
    return reason_of(text, node_config, tuple(chain(fault)), said=said)


def reason_of(
    text: str, node_config: Mapping[str, Any], faults: tuple[BaseException, ...] = (), *, said: str = ""
) -> str:
    """Shorten a reason to 500 letters for sending; on a client's own machine also hide that machine's paths.

    File names in `faults` are hidden whatever they look like; a path that the server itself `said` stays.
    """
    if of_one_person(node_config):
        return shown(text)
    text = text[:_MOST_READ]
    for path in sorted(_known_paths(node_config, faults), key=len, reverse=True):
        text = re.sub(rf"(?<![\w/]){re.escape(path)}(/{_WORD}*)?(?![\w/])", HIDDEN, text)

    def hidden(match: re.Match[str]) -> str:
        quote = match["quote"] or ""
        path = match[0].strip(quote) if quote else match[0]
        return match[0] if f'"{path}"' in said else f"{quote}{HIDDEN}{quote}"

    return shown(_ABSOLUTE.sub(hidden, text))


def _said_by_server(message: Message) -> str:
    record = message.content.get("config") if message.has_content() else None
    said = record.get("experiment") if isinstance(record, ConfigRecord) else None
    return said if isinstance(said, str) else ""


def _known_paths(node_config: Mapping[str, Any], faults: tuple[BaseException, ...]) -> Iterator[str]:
    """Paths of this machine that a reason may name; callers replace the longest ones first."""
    configured = [str(node_config[key]) for key in _OWN_PATHS if node_config.get(key)]
    files = [name for fault in faults if isinstance(fault, OSError) for name in (fault.filename, fault.filename2)]
    named = [os.fsdecode(name) for name in files if isinstance(name, str | bytes)]
    for path in (*configured, *named, *(os.environ.get(name, "") for name in _OF_ENVIRONMENT)):
        whole = os.path.abspath(os.path.expanduser(path)) if path else ""
        yield from (candidate for candidate in (path, whole, os.path.realpath(whole)) if _is_path(candidate))
        yield from (name for name in (Path(path).name,) if _is_path(name))
    for path in configured:
        for candidate in islice(Path(path).rglob("*"), _MOST_FILES):
            yield from (name for name in (str(candidate), candidate.name) if _is_path(name))
    yield from (path for path in (os.getcwd(), tempfile.gettempdir(), sys.prefix) if _is_path(path))


def _is_path(text: str) -> bool:
    """True if a text in a sentence can only be a path."""
    return len(text) > 1 and (os.sep in text or "." in text.strip("."))
