"""Scenarios and settings: from files, texts and dictionaries."""

from __future__ import annotations

import json
import math
import os
from typing import Any, Iterable, List, Mapping, Tuple, Union

from . import _core

#: A value of a setting: as in a scenario's file. A text needs no quotation marks: ``"1%"``, ``"300ms"``.
Value = Union[str, bool, int, float, Iterable[Any], Mapping[str, Any]]
#: Parameters by the path to each, as ``--set`` of ``bentpipe sim`` has them: ``{"link.satellite.per": "1%"}``.
Settings = Mapping[str, Value]

_BARE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


class Scenario:
    """A scenario: links, flows and TCP. Every key is in ``docs/scenarios.md`` of the project.

    It is made by ``load``, ``parse`` or ``from_dict``. It does not change; ``settings`` of ``simulate`` and ``sweep``
    change values for their runs.
    """

    def __init__(self, source: _core.Source) -> None:
        self._source = source

    @classmethod
    def load(cls, path: Union[str, os.PathLike[str]]) -> Scenario:
        """Reads a file. OSError if it cannot be read."""
        return cls(_core.Source.load(path))

    @classmethod
    def parse(cls, text: str, name: str = "<text>") -> Scenario:
        """Reads a text of TOML. ``name`` is what errors call it; files that it names are looked for beside it."""
        return cls(_core.Source(name, text))

    @classmethod
    def from_dict(cls, scenario: Mapping[str, Any], name: str = "<dict>") -> Scenario:
        """The scenario with these sections: ``{"duration": "60s", "link": [{…}], "flow": [{…}]}``.

        TypeError if a value has no form in TOML.
        """
        return cls.parse(_document(scenario), name)

    @property
    def name(self) -> str:
        """The file's path, or what stands for it."""
        return self._source.name

    @property
    def text(self) -> str:
        """The TOML."""
        return self._source.text

    @property
    def sha256(self) -> str:
        """SHA-256 of the text, in hexadecimal, as a manifest has it."""
        return self._source.sha256

    def check(self, settings: Settings = {}) -> str:
        """The title, if the scenario with these settings can be run; ScenarioError if not."""
        return self._source.check(pairs(settings))[0]

    def links(self, settings: Settings = {}) -> List[str]:
        """The names of the links."""
        return self._source.check(pairs(settings))[1][1]

    def flows(self, settings: Settings = {}) -> List[str]:
        """The names of the flows, copies as flows of their own."""
        return self._source.check(pairs(settings))[1][2]

    def __reduce__(self) -> Tuple[Any, ...]:
        return Scenario.parse, (self.text, self.name)

    def __repr__(self) -> str:
        return f"Scenario({self.name!r})"


#: What ``simulate`` and ``sweep`` take: a path, a text of TOML with more than one line, sections, or a Scenario.
AnyScenario = Union[str, "os.PathLike[str]", Mapping[str, Any], Scenario]


def load(path: Union[str, os.PathLike[str]]) -> Scenario:
    """Reads a scenario's file. OSError if it cannot be read, ScenarioError if its sweeps are none."""
    return Scenario.load(path)


def scenario_of(scenario: AnyScenario) -> Scenario:
    """The scenario, whatever it comes as."""
    if isinstance(scenario, Scenario):
        return scenario
    if isinstance(scenario, Mapping):
        return Scenario.from_dict(scenario)
    if isinstance(scenario, str) and "\n" in scenario:
        return Scenario.parse(scenario)
    return Scenario.load(scenario)


def pairs(settings: Settings) -> List[Tuple[str, str]]:
    """Settings as the core takes them: keys and texts."""
    return [(key, setting(value)) for key, value in settings.items()]


def setting(value: Value) -> str:
    """A value as it stands behind the ``=`` of a setting. A text stays what it is."""
    return value if isinstance(value, str) else _value(value)


def _document(sections: Mapping[str, Any]) -> str:
    # Each section in a line of its own, lists of sections under headings: lines in errors are then near the mistake.
    lines = []
    nested = []
    for key, value in sections.items():
        if isinstance(value, Mapping) or (_is_list(value) and value and all(isinstance(one, Mapping) for one in value)):
            nested.append((key, value))
        else:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in nested:
        for section in [value] if isinstance(value, Mapping) else value:
            lines.append(f"[{_key(key)}]" if isinstance(value, Mapping) else f"[[{_key(key)}]]")
            lines.extend(f"{_key(name)} = {_value(entry)}" for name, entry in section.items())
    return "\n".join(lines) + "\n"


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{key!r} is no key of a scenario: keys are texts")
    return key if key and _BARE.issuperset(key) else json.dumps(key)


def _is_list(value: object) -> bool:
    return isinstance(value, (list, tuple))


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    if isinstance(value, str):
        # A basic string of TOML has the escapes of JSON; DEL must be escaped there, too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items()) + " }" if value else "{}"
    if hasattr(value, "item"):
        # A number of NumPy.
        return _value(value.item())
    raise TypeError(f"{value!r} is no value of a scenario: texts, numbers, booleans, lists and dictionaries are")
