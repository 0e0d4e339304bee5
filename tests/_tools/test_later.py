"""Imports of a command look for no garbage and are left out of later looks; who had turned these off keeps them off."""

from __future__ import annotations

import gc

import pytest

from fedsw._tools.later import loading


def test_garbage_is_looked_for_again_after_imports_and_what_they_made_is_left_out():
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), loading():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() and gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()


def test_who_looks_for_no_garbage_still_does_not():
    gc.disable()
    try:
        with loading():
            pass
        assert not gc.isenabled() and not gc.get_freeze_count()
    finally:
        gc.enable()
