"""What goes on beside a campaign, in a thread of its own, until the campaign ends."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Background(ABC):
    """Work in a thread, from the beginning of the context to its end; `failure` is what ended it before.

    `_work` returns soon after `_stop` is set.
    """

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *ended: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as failure:  # the campaign goes on; who waits for this sees the failure
            self.failure = failure

    @abstractmethod
    def _work(self) -> None:
        """What is done."""
