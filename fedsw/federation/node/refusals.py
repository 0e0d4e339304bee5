"""What a node tells the server when it does not answer: a reason in a few words, and no path of its machine."""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message

from fedsw.federation import wire
from fedsw.federation.node.simulated import of_one_person
from fedsw.text import shown

_log = logging.getLogger("fedsw.clients")

HIDDEN = "[a path of this client]"
"""What stands for a path in what is sent."""
_OWN_PATHS = ("data-path", "data-dir", "state-dir", "schema", "accounts")
_OF_ENVIRONMENT = ("FEDSW_DATA", "FEDSW_STATE", "FEDSW_ACCOUNTS", "FLWR_HOME", "HOME")
_MOST_FILES = 10_000
_MOST_READ = 20_000
"""Letters of a reason that are looked at."""
_WORD = r"[^\s'\"`,;:()\[\]<>|]"
_ABSOLUTE = re.compile(rf"""(?P<quote>['"`])~?/.*?(?P=quote)|(?<![\w.:/~)])~?/(?!/){_WORD}+""")


def refusing(message: Message, context: Context, answering: Callable[[Message, Context], Message]) -> Message:
    """Answer; whatever keeps a node from it leaves as one error, as `reason_of` writes it.

    The whole of it is in the node's own log.
    """
    faults: tuple[BaseException, ...] = ()
    try:
        reply = answering(message, context)
    except Exception as fault:
        faults = tuple(_chain(fault))
        reply = Message(Error(wire.APP_RAISED, f"{type(fault).__name__}: {fault}"), reply_to=message)
    if not reply.has_error():
        return reply
    reason = str(reply.error.reason)
    if not of_one_person(context.node_config):
        _log.error("%s was refused: %s", message.metadata.message_type, shown(reason))
    told = reason_of(reason, context.node_config, faults, said=_said_by_server(message))
    return Message(Error(reply.error.code, told), reply_to=message)


def reason_of(
    text: str, node_config: Mapping[str, Any], faults: tuple[BaseException, ...] = (), *, said: str = ""
) -> str:
    """A reason as it may be sent: at most 500 letters, and on a machine of the client's own without a path of it.

    Args:
        faults: what was raised; the files that they name are paths, whatever they look like.
        said: by the server: a path in it is no news to the server.
    """
    if of_one_person(node_config):
        return shown(text)
    text = text[:_MOST_READ]
    for path in sorted(_known_paths(node_config, faults), key=len, reverse=True):
        text = re.sub(rf"(?<![\w/]){re.escape(path)}(/{_WORD}*)?(?![\w/])", HIDDEN, text)

    def hidden(found: re.Match[str]) -> str:
        quote = found["quote"] or ""
        path = found[0].strip(quote) if quote else found[0]
        return found[0] if f'"{path}"' in said else f"{quote}{HIDDEN}{quote}"

    return shown(_ABSOLUTE.sub(hidden, text))


def _said_by_server(message: Message) -> str:
    record = message.content.get("config") if message.has_content() else None
    said = record.get("experiment") if isinstance(record, ConfigRecord) else None
    return said if isinstance(said, str) else ""


def _known_paths(node_config: Mapping[str, Any], faults: tuple[BaseException, ...]) -> Iterator[str]:
    """Paths of this machine that a reason may name; the longest that fits a place is the one that stands there."""
    own = [str(node_config[key]) for key in _OWN_PATHS if node_config.get(key)]
    named = [str(name) for fault in faults for name in _files_of(fault)]
    for path in (*own, *named, *(os.environ.get(name, "") for name in _OF_ENVIRONMENT)):
        whole = os.path.abspath(os.path.expanduser(path)) if path else ""
        yield from (each for each in (path, whole, os.path.realpath(whole)) if _is_path(each))
        yield from (name for name in (Path(path).name,) if _is_path(name))
    for path in own:
        for each in islice(Path(path).rglob("*"), _MOST_FILES):
            yield from (name for name in (str(each), each.name) if _is_path(name))
    yield from (path for path in (os.getcwd(), tempfile.gettempdir(), sys.prefix) if _is_path(path))


def _is_path(text: str) -> bool:
    """Whether a text can stand for a path in a sentence, and for nothing else."""
    return len(text) > 1 and (os.sep in text or "." in text.strip("."))


def _files_of(fault: BaseException) -> Iterator[str]:
    if isinstance(fault, OSError):
        yield from (os.fsdecode(name) for name in (fault.filename, fault.filename2) if isinstance(name, str | bytes))


def _chain(fault: BaseException | None) -> Iterator[BaseException]:
    while fault is not None:
        yield fault
        fault = fault.__cause__ or fault.__context__
