"""A bar on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Callable, Optional, Type, Union

_WIDTH = 40
#: Nothing is drawn before, nor more often, seconds.
_EVERY_S = 0.2


class Progress:
    """How many of all runs are done."""

    def __init__(self, total: int, wanted: Union[bool, Callable[[int, int], None]]) -> None:
        self._total = total
        self._tell = wanted if callable(wanted) else None
        self._draws = wanted is True and (sys.stderr.isatty() or "ipykernel" in sys.modules)
        self._started = self._drawn = time.monotonic()
        self._before: Optional[int] = None
        self._told = -1
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def show(self, done: int) -> None:
        """So many are done."""
        if self._before is None:
            self._before = done
        if self._tell is not None and done != self._told:
            self._told = done
            self._tell(done, self._total)
        now = time.monotonic()
        if self._draws and now - self._drawn >= _EVERY_S:
            self._drawn = now
            self._draw(done, now - self._started)

    def _draw(self, done: int, seconds: float) -> None:
        full = _WIDTH * done // max(1, self._total)
        fresh = done - (self._before or 0)
        left = f", {seconds / fresh * (self._total - done):.0f} s left" if fresh > 0 else ""
        text = f"{'#' * full}{'-' * (_WIDTH - full)} {done} of {self._total} runs{left}"
        self._write(text)

    def _write(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._width:
            self._write("")
            sys.stderr.write("\r")
