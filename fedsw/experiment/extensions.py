"""Objects of a user's own, named in an experiment as `module:name`: functions, classes, whatever a module holds."""

from __future__ import annotations

import importlib
import re

from fedsw.settings import ExperimentError

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_reference(text: str) -> bool:
    """Whether `text` is written as `module:name`, both of them possibly dotted; nothing is imported."""
    return _REFERENCE.fullmatch(text) is not None


def load_object(reference: str, *, what: str) -> object:
    """Import what `module:name` names; the module's own code runs.

    Args:
        reference: `package.module:name`, or `package.module:Class.name` for what is inside something.
        what: what it is meant to be, for messages: "metrics[0]".

    Raises:
        ExperimentError: if it is not written so, the module cannot be imported, or it holds nothing of that name.
    """
    if not is_reference(reference):
        raise ExperimentError(f"{what} is {reference!r}; write module:name, as in 'my_package.my_module:my_function'")
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
