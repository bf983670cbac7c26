"""Ctrl-C and SIGTERM end a run after the current step, so that it can be saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupt:
    """Inside the context, the first signal is a request; the second one ends the process as usual."""

    def __init__(self) -> None:
        self.requested = False
        self._at_once = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                self._previous[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        self._previous = {}

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Work that may be aborted: a signal ends it with KeyboardInterrupt."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _handle(self, _signum: int, _frame: FrameType | None) -> None:
        self.requested = True
        self.__exit__()
        if self._at_once:
            raise KeyboardInterrupt
