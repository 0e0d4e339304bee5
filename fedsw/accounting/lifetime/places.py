"""Where accounts of data sets are kept."""

from __future__ import annotations

import os
from pathlib import Path

ACCOUNTS_VARIABLE = "FEDSW_ACCOUNTS"
SUFFIX = ".account"


def accounts_folder() -> Path:
    """The folder of this machine's accounts: $FEDSW_ACCOUNTS, else ~/.fedsw/accounts."""
    named = os.environ.get(ACCOUNTS_VARIABLE)
    return Path(named).expanduser() if named else Path.home() / ".fedsw" / "accounts"
