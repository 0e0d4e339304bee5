"""Objects of a user's own: named in an experiment as `module:name`, or held by this process under a name of theirs."""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection

from fedsw.experiment.held import in_this_process, is_held
from fedsw.settings import ExperimentError

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_reference(text: str) -> bool:
    """Whether `text` is written as `module:name`, both of them possibly dotted; nothing is imported."""
    return _REFERENCE.fullmatch(text) is not None


def require_allowed(reference: str, *, what: str, allowed: Collection[str] | None) -> None:
    """Refuse a module that is not among those allowed, before any code of it runs.

    Args:
        reference: `module:name`.
        what: what it is meant to be, for messages.
        allowed: whole names of modules; None for any.

    Raises:
        ExperimentError: naming the module and what is allowed.
    """
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

    Args:
        reference: `package.module:name`, or `package.module:Class.name` for what is inside something.
        what: what it is meant to be, for messages: "metrics[0]".
        allowed: as in `require_allowed`.

    Raises:
        ExperimentError: if it is not written so, the module may not or cannot be imported, or it holds nothing of that
            name; or if the object is one of a process that is gone.
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
        found: object = importlib.import_module(module)
    except Exception as fault:  # a module's own code runs here, and may raise anything
        raise ExperimentError(
            f"{what} is {reference!r}, and the module {module!r} cannot be imported ({type(fault).__name__}: {fault}); "
            "install its package, or add its folder to PYTHONPATH"
        ) from fault
    for part in name.split("."):
        if not hasattr(found, part):
            raise ExperimentError(
                f"{what} is {reference!r}, and {module!r} has no {name!r}; define it there, or mend the name"
            )
        found = getattr(found, part)
    return found
