"""Ctrl-C and SIGTERM as a request to save and stop."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from amata.errors import Interrupted


class Interrupt:
    """While active, the first SIGINT or SIGTERM sets `number`. A second one acts as usual.

    A request that nobody acted on ends the block with `Interrupted`: no signal is lost.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()
        if self.number is not None and not isinstance(error, KeyboardInterrupt):
            text = f"interrupted; {error}" if error else "interrupted"
            raise Interrupted(text, self.number) from error

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}
