"""Imports of a command look for no garbage and are left out of later looks; who had turned these off keeps them off."""

from __future__ import annotations

import gc
import sys

import pytest

from fedsw._tools.later import loading


def test_garbage_is_looked_for_again_after_imports_and_what_they_made_is_left_out(monkeypatch):
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), loading():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() and gc.get_freeze_count() == frozen  # nothing is new
        with loading():
            monkeypatch.setitem(sys.modules, "made_up", gc)
        assert gc.isenabled() and gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


def test_who_looks_for_no_garbage_still_does_not():
    gc.disable()
    try:
        with loading():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
