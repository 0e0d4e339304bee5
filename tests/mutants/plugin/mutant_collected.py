"""A pytest plugin that collects once: every mutant is a fork with its functions changed, which runs its own tests.

Most of a short run of tests is spent on imports and on collecting. A function's code is put in place of the one before
in the function itself, so that all that hold it have the change: a module that imported it, a decorator, a table.
A mutant that changes more than functions (a constant, a default, a class) is not tried here.
"""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from inspect import CO_OPTIMIZED
from multiprocessing.connection import Connection
from types import CodeType, FunctionType

import pytest
from nursery import ended

_NOT_HERE = 71


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Serve until the other end of the connection is closed; a fork returns, and pytest runs the tests left to it."""
    gc.unfreeze()
    functions = defaultdict(list)
    for found in gc.get_objects():
        if isinstance(found, FunctionType):
            functions[found.__code__.co_filename].append(found)
    gc.freeze()
    tests = {item.nodeid: item for item in session.items}
    asks = Connection(int(os.environ["MUTANTS_ASKED"]))
    while True:
        try:
            path, before, after, wanted, witness, patience = asks.recv()
        except EOFError:
            os._exit(0)
        if child := os.fork():
            asks.send(ended(child, patience))
            continue
        os.setsid()
        asks.close()
        os.environ["MUTANT_WITNESS"] = witness
        if not _changed(functions[path], *(compile(text, path, "exec", dont_inherit=True) for text in (before, after))):
            os._exit(_NOT_HERE)
        chosen = [tests[name] for test in wanted for name in tests if f"{name}[".startswith((f"{test}[", f"{test}::"))]
        session.items[:], session.testscollected = chosen, len(chosen)
        return


def _changed(functions: list[FunctionType], before: CodeType, after: CodeType) -> bool:
    """Give the functions of one file their changed code; False if that is not all that the change does."""
    pairs = dict(_pairs(before, after))
    if any(not one.co_flags & CO_OPTIMIZED and _own(one) != _own(other) for one, other in pairs.items()):
        return False
    for function in functions:
        code = pairs.get(function.__code__)
        if code is None or code.co_freevars != function.__code__.co_freevars:
            return False
        function.__code__ = code
    return True


def _pairs(before: CodeType, after: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Every code of a file, and what has its name and its turn after the change."""
    yield before, after
    inner = [[code for code in whole.co_consts if isinstance(code, CodeType)] for whole in (before, after)]
    for one in inner[0]:
        if same := [code for code in inner[1] if code.co_qualname == one.co_qualname]:
            inner[1].remove(same[0])
            yield from _pairs(one, same[0])


def _own(code: CodeType) -> tuple[object, ...]:
    """What a module or a class does itself, without what its functions do."""
    constants = ["a function" if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return code.co_code, code.co_names, constants, code.co_exceptiontable
