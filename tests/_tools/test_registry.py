"""What is unknown raises: a registry gives what is registered under a name, and nothing in its place."""

from __future__ import annotations

from importlib import metadata

import pytest

from fedsw._tools.registry import Registry, Unknown


def shelf(**more) -> Registry[int]:
    registry: Registry[int] = Registry("shelf", int, **more)
    registry.register("one", 1)
    registry.register("two", 2)
    return registry


def test_an_unknown_name_raises_and_all_names_are_listed():
    registry = shelf()
    assert [registry.get(name) for name in registry] == [1, 2] and "two" in registry and len(registry) == 2
    for name in ("three", "", "One", "m:three", None, 1):
        with pytest.raises(Unknown, match=r"shelf is .*; there are 'one', 'two'$"):
            registry.get(name)


def test_a_name_is_one_things_and_things_are_of_one_kind():
    registry = shelf()
    registry.register("one", 1)  # a module that is imported again
    with pytest.raises(ValueError, match="there is a shelf 'one'"):
        registry.register("one", 3)
    with pytest.raises(TypeError, match="'text' is a str, and not a int"):
        registry.register("text", "1")
    for name in ("", "a:b"):
        with pytest.raises(ValueError, match="is no name"):
            registry.register(name, 3)
    assert dict(registry.items()) == {"one": 1, "two": 2}


def test_ones_own_is_named_by_its_module_where_the_registry_takes_such_names():
    registry = shelf(custom=lambda reference: len(reference))
    assert registry.get("a:b") == 3
    with pytest.raises(Unknown, match="or 'module:Name' for one of your own"):
        registry.get("b")


def test_shipped_things_and_those_of_packages_are_there_before_the_first_look(monkeypatch):
    point = metadata.EntryPoint("four", "json:decoder", "fedsw.shelves")
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: [point] if group == "fedsw.shelves" else [])
    made: list[Registry] = []
    registry = Registry("shelf", group="fedsw.shelves", shipped=lambda: made[0].register("shipped", 0))
    made.append(registry)
    registry.register("own", 1)
    assert registry.names() == ("shipped", "four", "own") and registry.get("four").__name__ == "json.decoder"


def test_a_package_that_cannot_be_loaded_is_named_at_every_look(monkeypatch):
    point = metadata.EntryPoint("four", "no_such_package:four", "fedsw.shelves")
    monkeypatch.setattr(metadata, "entry_points", lambda *, group: [point])
    registry: Registry[int] = Registry("shelf", group="fedsw.shelves")
    for _ in range(2):
        with pytest.raises(ValueError, match="'no_such_package:four' of an installed package cannot be loaded"):
            registry.names()


def test_what_is_amended_keeps_its_name_and_its_place_and_nothing_new_comes_so() -> None:
    registry: Registry[int] = Registry("a number", int)
    for name, number in (("one", 1), ("two", 2)):
        registry.register(name, number)
    registry.amend("one", 11)
    assert [*registry.items()] == [("one", 11), ("two", 2)]
    with pytest.raises(Unknown, match="a number is 'three'; there are 'one', 'two'"):
        registry.amend("three", 3)
