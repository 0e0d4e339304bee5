"""The bundle that Flower ships to the nodes of a run: two entries of a few lines over the installed fedsw.

A node runs the fedsw that its operator installed, and can demand the bundle that this fedsw makes: `bundle_hash`. The
bundle has no dependencies: Flower would install them anew at every node and run, another torch among them. It names the
digest of the fedsw that made it, so that two versions never make the same one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from fedsw._tools.installed import code_digest
from fedsw._tools.text import installed_version
from fedsw.federation import flower

OWN = "own"
"""The word that stands for the hash of the installed fedsw's own bundle."""

_ENTRY = """\
\"\"\"The {kind} that Flower starts at {place}: the installed fedsw.\"\"\"

from fedsw.federation.{module} import app

__all__ = ["app"]
"""

_PROJECT = """\
[project]
name = "fedsw"
version = "{version}"
description = "Learning with optimal-transport losses on private data that stays where it is"
license = "Apache-2.0"
dependencies = []

[tool.fedsw]
code = "{code}"

[tool.flwr.app]
publisher = "fedsw"
fab-include = ["clients/*.py", "server/*.py"]

[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "clients.app:app"

[tool.flwr.app.config]
experiment = "fair-classification"
set = ""
runs = "runs"
directory = ""
resume = false
allow-modules = ""
"""


def run_config(directory: Path, modules: Sequence[str], *, resume: bool) -> str:
    """The run configuration that has the server run the prepared job of a folder, or go on with it."""
    folder = json.dumps(str(directory.resolve()), ensure_ascii=False)
    return f'directory={folder} resume={str(resume).lower()} allow-modules="{",".join(modules)}"'


def bundle_files() -> dict[str, str]:
    """The content of the bundle by path. Only its project file changes: with the version and the files of fedsw."""
    return {
        "pyproject.toml": _PROJECT.format(version=installed_version().split("+")[0], code=code_digest()),
        "clients/__init__.py": "",
        "clients/app.py": _ENTRY.format(kind="ClientApp", place="a client", module="client"),
        "server/__init__.py": "",
        "server/app.py": _ENTRY.format(kind="ServerApp", place="the server", module="server.app"),
    }


def write_bundle(folder: Path) -> Path:
    """Write the bundle into a folder, which `flwr run FOLDER` then takes; returns the folder."""
    for name, content in bundle_files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


def bundle_hash() -> str:
    """SHA-256, in 64 hexadecimal digits, of the archive that `flwr run` makes of `write_bundle`'s folder.

    The archive depends on the installed fedsw, file by file, on Flower's version and on zlib's compression, and on
    nothing else: its files are sorted and carry a fixed date.
    """
    content, _ = flower.build_fab_from_files({name: text.encode("utf-8") for name, text in bundle_files().items()})
    return hashlib.sha256(content).hexdigest()


def read_bundle(text: str) -> str:
    """The hash that an operator demands: 64 hexadecimal digits, or `own` for that of the installed fedsw's bundle."""
    digest = text.strip().lower()
    if digest == OWN:
        return bundle_hash()
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(
            f"the bundle {text!r} is neither a SHA-256 in 64 hexadecimal digits nor {OWN!r}; `fedsw bundle` prints it"
        )
    return digest
