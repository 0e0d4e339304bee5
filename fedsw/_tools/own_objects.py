"""Load objects that settings name as `module:name`, or that this process holds; refuse modules that are not allowed."""

from __future__ import annotations

import importlib
import re
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

from fedsw._tools.settings import ExperimentError

OBJECT = "object"
"""The word before the colon of a name of an object that a process holds, where other names have a module."""

held_objects: dict[str, object] = {}


def is_held(text: str) -> bool:
    """True if `text` names an object that a process holds, and not something in a module."""
    return text.startswith(f"{OBJECT}:")


def absence(source: str) -> str | None:
    """Return the refusal of a run if its records are Python objects that are not at hand; None for other sources."""
    if source == OBJECT:
        return "data.source 'object' is passed in Python: fedsw.run(experiment, data=...)"
    if is_held(source):
        return (
            "the records of this run were Python objects of the process that started it, and are on no disk; pass them "
            "again: fedsw.resume(directory, data=...)"
        )
    return None


def fresh_name() -> str:
    """An unguessable name for an object of this process; it is written as `module:name` is."""
    return f"{OBJECT}:x{secrets.token_hex(16)}"


@contextmanager
def held(thing: object, name: str | None = None) -> Iterator[str]:
    """Let this process find an object by its name, a fresh one by default, until the block ends."""
    known = name or fresh_name()
    before = {known: held_objects[known]} if known in held_objects else {}
    held_objects[known] = thing
    try:
        yield known
    finally:
        del held_objects[known]
        held_objects.update(before)


def in_this_process(name: str) -> object | None:
    """The object that is held under a name; None if there is none."""
    return held_objects.get(name)


def named(setting: str, name: str) -> str:
    """Return a setting and its value for a message; an object held by this process goes by its name or its type's."""
    if (thing := in_this_process(name)) is None:
        return f"{setting} {name!r}"
    return f"{setting} (your {getattr(thing, '__name__', type(thing).__name__)})"


_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_reference(text: str) -> bool:
    """True if `text` is written as `module:name`, both of them possibly dotted; nothing is imported."""
    return _REFERENCE.fullmatch(text) is not None


def require_allowed(reference: str, *, what: str, allowed: Collection[str] | None) -> None:
    """Refuse a module that is not among those allowed (None for any), before any code of it runs."""
    module = reference.partition(":")[0]
    if allowed is None or module in allowed:
        return
    names = ", ".join(sorted(allowed)) or "none"
    raise ExperimentError(
        f"{what} is {reference!r}; modules whose code may run on this node: {names}. Its operator adds {module!r} to "
        "the node configuration's 'modules' (names separated by commas), or it takes no part"
    )


def load_object(reference: str, *, what: str, allowed: Collection[str] | None = None) -> object:
    """Import what `module:name` names; the module's own code runs. Or give the object that this process holds.

    A function or class must be the module's own where ``allowed`` is given (`require_allowed`). ExperimentError if it
    is not written so, the module may not or cannot be imported, or it holds nothing of that name that is its own; or if
    the object is one of a process that is gone.
    """
    if not is_reference(reference):
        raise ExperimentError(f"{what} is {reference!r}; write module:name, as in 'my_package.my_module:my_function'")
    if is_held(reference):
        if (thing := in_this_process(reference)) is None:
            raise ExperimentError(
                f"{what} is {reference!r}, an object that was handed to another run of Python and is not at hand here; "
                "hand it over again (driver.resume(folder, model=..., task=...)), or name it as module:name"
            )
        return thing
    require_allowed(reference, what=what, allowed=allowed)
    module, _, name = reference.partition(":")
    try:
        loaded: object = importlib.import_module(module)
    except Exception as fault:  # a module's own code runs here, and may raise anything
        raise ExperimentError(
            f"{what} is {reference!r}, and the module {module!r} cannot be imported ({type(fault).__name__}: {fault}); "
            "install its package, or add its folder to PYTHONPATH"
        ) from fault
    for part in name.split("."):
        if not hasattr(loaded, part):
            raise ExperimentError(
                f"{what} is {reference!r}, and {module!r} has no {name!r}; define it there, or mend the name"
            )
        loaded = getattr(loaded, part)
    if allowed is not None:
        _require_own(loaded, reference, what=what)
    return loaded


def _require_own(thing: object, reference: str, *, what: str) -> None:
    """Refuse a function or class that the allowed module only imports: allowing it would allow all imports.

    `hospital:os.system` is a name in `hospital`, and so is `hospital:run` after `from subprocess import run`.
    """
    module = reference.partition(":")[0]
    home = _home(thing)
    if home is None or home == module or home.startswith(f"{module}."):
        return
    raise ExperimentError(
        f"{what} is {reference!r}, which is defined in {home or 'no module'!r} and not in {module!r}; only what "
        f"{module!r} defines itself is allowed with it: define a function or class there"
    )


def _home(thing: object) -> str | None:
    """Return the module that defines a function or class; None for a table or a finished model, which is not called."""
    if isinstance(thing, ModuleType):
        return thing.__name__
    if isinstance(thing, type | FunctionType | BuiltinFunctionType | MethodType):
        return str(thing.__module__ or "")
    made = not callable(thing) or any(kind.__module__.startswith("torch.nn.") for kind in type(thing).__mro__)
    return None if made else type(thing).__module__
