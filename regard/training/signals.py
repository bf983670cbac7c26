"""Ctrl-C and SIGTERM end a run after the step at work, so that it can be saved."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """While the context lasts, the first signal is a request; the second one ends the process as usual."""

    def __init__(self) -> None:
        self.requested = False
        self._at_once = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._handle) for each in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        self._before = {}

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Work that may be thrown away: a signal breaks it off with KeyboardInterrupt."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.requested = True
        self.__exit__()
        if self._at_once:
            raise KeyboardInterrupt
