"""TCP over satellite links in virtual time.

    >>> import bentpipe
    >>> result = bentpipe.simulate("scenarios/geo-download.toml", settings={"link.satellite.per": "0.1%"})
    >>> result.flows["goodput_bps"][0]

The same scenario, settings and seed give the same result as ``bentpipe sim``, to the bit, on any machine. Times are in
seconds, sizes in bytes, rates in bits per second; ``docs/results.md`` of the project has each column.
"""

from ._core import Column, Table, __version__
from ._errors import LabError, ResumeError, ScenarioError, SweepInterrupted
from ._extend import Ack, CongestionControl, LinkEffect, Packet
from ._program import lab, radius
from ._scenario import Scenario, load
from ._simulate import Result, Trace, simulate
from ._sweep import sweep

__all__ = [
    "Ack",
    "Column",
    "CongestionControl",
    "LabError",
    "LinkEffect",
    "Packet",
    "Result",
    "ResumeError",
    "Scenario",
    "ScenarioError",
    "SweepInterrupted",
    "Table",
    "Trace",
    "__version__",
    "lab",
    "load",
    "radius",
    "simulate",
    "sweep",
]
