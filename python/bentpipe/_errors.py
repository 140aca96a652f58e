"""The exceptions of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, NamedTuple, Optional, Sequence, Tuple

if TYPE_CHECKING:
    from ._core import Table


class Fault(NamedTuple):
    """Something in a scenario that is not accepted."""

    #: The file's path, or what stands for it.
    file: str
    #: The line of the file, from 1 on; None if it is in a setting.
    line: Optional[int]
    #: The setting, ``KEY=VALUE``; None if it is in the file.
    setting: Optional[str]
    #: The path of the key; empty for the whole file.
    key: str
    #: What is wrong, and what is accepted.
    what: str


class ScenarioError(ValueError):
    """A scenario, a setting or a sweep that cannot be run. The message has a line for each fault.

    ``file``, ``line`` and ``key`` are those of the first fault; ``faults`` has all of them.
    """

    def __init__(self, message: str, faults: Sequence[Tuple[str, Optional[int], Optional[str], str, str]] = ()) -> None:
        super().__init__(message, faults)
        self.message = message
        self.faults: List[Fault] = [Fault(*fault) for fault in faults]
        first = self.faults[0] if self.faults else Fault("", None, None, "", message)
        self.file = first.file
        self.line = first.line
        self.key = first.key

    def __str__(self) -> str:
        return self.message


class ResumeError(ValueError):
    """A folder to resume from that is one of other runs, or of another version."""


class SweepInterrupted(KeyboardInterrupt):
    """A sweep that was stopped. ``table`` has the rows of the runs that were done until then, in order."""

    def __init__(self, message: str, table: Table) -> None:
        super().__init__(message)
        self.table = table


class LabError(RuntimeError):
    """The program bentpipe is not installed, or an experiment failed."""
