"""Pages in a headless Chromium: what they ask for, what goes wrong in them, and what axe-core finds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
MISSING = "no Chromium is installed: Debian's package chromium brings it"


@dataclass
class Opened:
    """A page in a browser.

    Attributes:
        page: playwright's.
        asked: addresses that it asked for.
        faults: errors of its scripts and its console.
    """

    page: Any
    asked: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def goto(self, path: Path, query: str = "") -> None:
        """Open a file and wait until it has loaded."""
        self.page.goto(path.as_uri() + query, wait_until="load")

    def outside(self) -> list[str]:
        """The addresses that are neither files nor in the page itself."""
        return [address for address in self.asked if not address.startswith(("file:", "data:", "blob:", "about:"))]

    def violations(self) -> dict[str, list[str]]:
        """Rules of axe-core that the page breaks, each with the elements that break it."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page, options={"preload": False}).response["violations"]
        return {each["id"]: [node["html"][:160] for node in each["nodes"]] for each in found}


@contextmanager
def opened(width: int = 1200) -> Iterator[Opened]:
    """An empty page in a browser of its own; skipped where none is installed."""
    if BROWSER is None:
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        view = Opened(browser.new_page(viewport={"width": width, "height": 900}))
        view.page.on("request", lambda request: view.asked.append(request.url))
        view.page.on("pageerror", lambda error: view.faults.append(str(error)))
        view.page.on("console", lambda said: view.faults.append(said.text) if said.type == "error" else None)
        try:
            yield view
        finally:
            browser.close()
