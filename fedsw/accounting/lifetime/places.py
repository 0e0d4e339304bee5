"""Where accounts of data sets are kept, and what a data set may be called."""

from __future__ import annotations

import os
import re
from pathlib import Path

ACCOUNTS_VARIABLE = "FEDSW_ACCOUNTS"
SUFFIX = ".account"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def accounts_folder() -> Path:
    """The folder of this machine's accounts: $FEDSW_ACCOUNTS, else ~/.fedsw/accounts."""
    named = os.environ.get(ACCOUNTS_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".fedsw" / "accounts"


def require_name(name: str) -> str:
    """The name of a data set.

    Raises:
        ValueError: unless it can name a file.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"the data set is called {name!r}; its account needs a name of at most 100 letters, digits, '.', '_' and "
            "'-' that begins with a letter or digit"
        )
    return name
