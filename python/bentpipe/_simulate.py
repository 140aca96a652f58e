"""One run."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, Mapping, Tuple

from . import _core
from ._core import Table
from ._extend import CongestionControl, LinkEffect
from ._scenario import AnyScenario, Settings, pairs, scenario_of


class Trace:
    """The variables of a run over time: a row for each sample. ``docs/results.md`` has the columns."""

    def __init__(self, tables: Dict[str, Table]) -> None:
        #: The sending end of each connection: windows, round trips, timeouts, counters.
        self.legs = tables["legs"]
        #: The bytes that each destination has received.
        self.flows = tables["flows"]
        #: Each direction of each link: the queue, and packets by fate.
        self.links = tables["links"]
        #: The bytes that each splitter holds.
        self.splitters = tables["splitters"]
        #: The bytes that each end of a link holds; None where no link has anything there.
        self.stations = tables.get("stations")

    def __repr__(self) -> str:
        return f"Trace({len(self.flows)} samples of flows)"


class Result:
    """The result of a run. ``docs/results.md`` has the columns of the tables."""

    def __init__(self, output: _core.Output) -> None:
        #: The scenario's title.
        self.title = output.title
        #: ``finished`` if each flow that has an end is finished, else ``unfinished``.
        self.state = output.state
        #: A row for each flow.
        self.flows = output.tables["flows"]
        #: A row for each connection of each flow.
        self.legs = output.tables["legs"]
        #: A row for each direction of each link.
        self.links = output.tables["links"]
        #: A row for each splitter of each flow.
        self.splitters = output.tables["splitters"]
        #: A row for each end of a link with agents, an ARQ or a protected leg.
        self.stations = output.tables["stations"]
        #: A row for each receiver of each UDP stream.
        self.udp = output.tables["udp"]
        #: The samples, if the run was traced.
        self.trace = None if output.trace is None else Trace(output.trace)
        self._json = output.json

    def to_dict(self) -> Dict[str, Any]:
        """The document of ``bentpipe sim --json``, without ``title``, ``settings`` and ``wall_s``."""
        document: Dict[str, Any] = json.loads(self._json)
        return document

    def __repr__(self) -> str:
        return f"Result({self.title!r}, {self.state}, {len(self.flows)} flows)"


def simulate(
    scenario: AnyScenario,
    *,
    settings: Settings = {},
    seed: int = 1,
    trace: bool = False,
    congestion: Mapping[str, Callable[[int, int], CongestionControl]] = {},
    effects: Mapping[str, LinkEffect] = {},
) -> Result:
    """Runs a scenario in virtual time. The same scenario, settings and seed give the same result.

    scenario: a path, a text of TOML, a dictionary of its sections, or a ``Scenario``.
    settings: parameters by their paths, as ``--set`` of ``bentpipe sim``: ``{"link.satellite.per": "1%"}``.
    seed: 0 to 2**64 - 1.
    trace: with the samples of ``Result.trace``, each ``sample_interval`` of the scenario.
    congestion: classes that the scenario calls ``custom:NAME``, by name: 1 to 32 letters, digits, ``-`` and ``_``.
    effects: objects by ``LINK.forward``, ``LINK.reverse``, or ``LINK`` for both directions.

    Raises ScenarioError for what cannot be run, OSError for a file that cannot be read, KeyError for an effect of a
    link that is none, KeyboardInterrupt within a tenth of a second after Ctrl-C, and what a congestion control or an
    effect raises.
    """
    source = scenario_of(scenario)._source
    output = _core.simulate(source, pairs(settings), seed, trace, list(congestion.items()), _directions(effects))
    return Result(output)


def _directions(effects: Mapping[str, LinkEffect]) -> List[Tuple[str, str, object]]:
    found: List[Tuple[str, str, object]] = []
    for key, effect in effects.items():
        link, _, direction = key.partition(".")
        if direction not in ("", "forward", "reverse"):
            raise KeyError(f"effects[{key!r}]: write LINK, LINK.forward or LINK.reverse")
        found.extend((link, one, effect) for one in ([direction] if direction else ["forward", "reverse"]))
    return found


