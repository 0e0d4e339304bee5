"""The bundle that Flower ships to the nodes of a run: two entries of a few lines over the installed fedsw.

`flwr run .` in a checkout ships the same two entries. A node runs the fedsw that its operator installed.
"""

from __future__ import annotations

from pathlib import Path

from fedsw.version import installed_version

_ENTRY = """\
\"\"\"The {kind} that Flower starts at {place}: the installed fedsw.\"\"\"

from fedsw.federation.{side}.app import app

__all__ = ["app"]
"""

_PROJECT = """\
[project]
name = "fedsw"
version = "{version}"
description = "Learning with optimal-transport losses on private data that stays where it is"
license = "Apache-2.0"
dependencies = []

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
"""


def bundle_files() -> dict[str, str]:
    """The content of the bundle by path. Only the version in its project file changes, with fedsw's."""
    return {
        "pyproject.toml": _PROJECT.format(version=installed_version().split("+")[0]),
        "clients/__init__.py": "",
        "clients/app.py": _ENTRY.format(kind="ClientApp", place="a client", side="client"),
        "server/__init__.py": "",
        "server/app.py": _ENTRY.format(kind="ServerApp", place="the server", side="server"),
    }


def write_bundle(folder: Path) -> Path:
    """Write the bundle into a folder, which `flwr run FOLDER` then takes; returns the folder."""
    for name, content in bundle_files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder
