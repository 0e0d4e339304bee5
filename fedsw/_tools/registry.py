"""Things by name or by class: one `Registry` for each kind of thing, and `Unknown` for a name that is in none.

Code that decides by a name asks the registry for the object and the object for what differs, so that an unknown name
stops the run instead of passing for a known one.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Generic, Literal, TypeVar

T = TypeVar("T")

Word = Literal["proven", "stated", "none"]
"""Basis of a bound: a proof in docs/guarantees, the user's statement, or none, so that it is not a guarantee."""


class Unknown(ValueError):
    """A name that a registry does not hold; the message lists those that it does."""


class Registry(Generic[T]):
    """Things of one kind by name, or by a class that they belong to, in the order in which they were registered.

    By class, as layers' rules are, a thing is found for that class only: a subclass may do anything, and has its own.

    Args:
        what: the setting or the kind of thing, for messages: "objective.penalty".
        kind: what every thing is an instance of; None if that says nothing, as of functions.
        custom: from `module:Name` to a thing of a user's own; it raises where that may not or cannot be loaded. None
            where such a thing is registered by the module that defines it, and not named so.
        group: entry points by which installed packages bring things of their own, in every process.
        shipped: called once, before the first name is looked up, to import the modules that register what is shipped.
    """

    def __init__(
        self,
        what: str,
        kind: type | None = None,
        *,
        custom: Callable[[str], T] | None = None,
        group: str | None = None,
        shipped: Callable[[], None] | None = None,
    ) -> None:
        self._what, self._kind, self._custom = what, kind, custom
        self._group, self._shipped = group, shipped
        self._things: dict[str | type, T] = {}
        self._loaded = False

    def register(self, name: str | type, thing: T) -> T:
        """Make a thing known by a name or a class, in this process.

        ValueError if another thing has the name, or a name is written as `module:Name`; TypeError for another kind.
        """
        if not name or (isinstance(name, str) and ":" in name):
            raise ValueError(f"{self._what}: {name!r} is no name; use letters, digits and '-'")
        if self._kind is not None and not isinstance(thing, self._kind):
            raise TypeError(
                f"{self._what} {_title(name)!r} is a {type(thing).__name__}, and not a {self._kind.__name__}"
            )
        self._load()
        if name in self._things and self._things[name] is not thing:
            raise ValueError(f"there is a {self._what} {_title(name)!r}; give yours another name")
        self._things[name] = thing
        return thing

    def amend(self, name: str | type, thing: T) -> None:
        """Put a thing in the place of the one that has its name: the same, of which more is known now.

        `Unknown`, listing all names, if there is none.
        """
        self.get(name)
        self._things[name] = thing

    def get(self, name: str | type) -> T:
        """The thing of a name or class, or what `module:Name` names; `Unknown`, listing all names, if there is none."""
        self._load()
        if name in self._things:
            return self._things[name]
        if self._custom is not None and isinstance(name, str) and ":" in name:
            return self._custom(name)
        raise Unknown(self.unknown(name))

    def unknown(self, name: object) -> str:
        """A sentence that refuses a name and lists those that there are."""
        custom = "" if self._custom is None else ", or 'module:Name' for one of your own"
        return f"{self._what} is {_title(name)!r}; there are {', '.join(map(repr, self.names()))}{custom}"

    def names(self) -> tuple[str, ...]:
        """All names, in the order in which they were registered."""
        self._load()
        return tuple(str(_title(key)) for key in self._things)

    def classes(self) -> tuple[type, ...]:
        """All classes that things are known by, in the order in which they were registered."""
        self._load()
        return tuple(key for key in self._things if isinstance(key, type))

    def items(self) -> Iterator[tuple[str, T]]:
        """Every name with its thing."""
        self._load()
        return iter(tuple((str(_title(key)), thing) for key, thing in self._things.items()))

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def _load(self) -> None:
        """Register what is shipped, then what installed packages bring; nothing of it is half loaded after a fault."""
        if self._loaded:
            return
        self._loaded = True  # those that are imported here register themselves
        try:
            if self._shipped is not None:
                self._shipped()
            for point in importlib.metadata.entry_points(group=self._group) if self._group else ():
                try:
                    thing = point.load()
                except Exception as fault:  # a package's own code runs here, and may raise anything
                    raise ValueError(
                        f"the {self._what} {point.value!r} of an installed package cannot be loaded "
                        f"({type(fault).__name__}: {fault}); mend or uninstall the package"
                    ) from fault
                self.register(point.name, thing)
        except Exception:
            self._loaded = False
            raise


def _title(key: object) -> object:
    """A name as it is; of a class its name."""
    return key.__name__ if isinstance(key, type) else key
