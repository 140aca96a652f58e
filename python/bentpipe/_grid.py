"""What is swept: a grid's entries as steps."""

from __future__ import annotations

from typing import Any, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from ._scenario import pairs, setting

#: The name, of a case, and what it sets.
Step = Tuple[Optional[str], List[Tuple[str, str]]]

_CASE = "case"


def steps_of(key: Union[str, Tuple[str, ...]], what: Any) -> List[Step]:
    """The steps of an entry. TypeError if it has no form that ``sweep`` describes."""
    if key == _CASE:
        if not isinstance(what, Mapping):
            raise TypeError('grid["case"] is no dictionary: write {"lossy": {"link.satellite.per": "1%"}, …}')
        return [(name, pairs(settings)) for name, settings in what.items()]
    keys = key if isinstance(key, tuple) else tuple(part.strip() for part in key.split("+"))
    if isinstance(what, (str, Mapping)) or not isinstance(what, Iterable):
        raise TypeError(f"grid[{key!r}] is {what!r}: give a list of values")
    if len(keys) == 1:
        return [(None, [(keys[0], setting(value))]) for value in what]
    return [(None, _together(key, keys, row)) for row in what]


def _together(key: object, keys: Tuple[str, ...], row: Any) -> List[Tuple[str, str]]:
    if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != len(keys):
        raise TypeError(f"grid[{key!r}] has {row!r}: give a tuple of {len(keys)} values, one for each key")
    return [(one, setting(value)) for one, value in zip(keys, row)]


def seeds_of(seeds: Union[int, Iterable[int]]) -> Sequence[int]:
    """The seeds: 1 to a number, or those that are given."""
    found = range(1, seeds + 1) if isinstance(seeds, int) else seeds if isinstance(seeds, range) else tuple(map(int, seeds))
    if not found:
        raise ValueError(f"seeds is {seeds!r}: give a number above zero, or a list of seeds")
    return found
