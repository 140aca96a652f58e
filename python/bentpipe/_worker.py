"""What a worker of a Dask cluster does."""

from __future__ import annotations

from typing import Dict, List, Tuple

from ._core import Plan, Table
from ._sweep import Spec

#: The plan of the last sweep: a worker has many pieces of the same one, and each of its points is checked once.
_plans: Dict[object, Plan] = {}


def run_piece(spec: Spec, numbers: List[int], table: str) -> Tuple[List[int], List[str], Table]:
    """Runs these, one after the other; the interpreter's lock is free meanwhile."""
    key = (spec.key, tuple(spec.seeds) if not isinstance(spec.seeds, range) else spec.seeds)
    plan = _plans.get(key)
    if plan is None:
        plan = spec.plan()
        _plans.clear()
        _plans[key] = plan
    states, rows = plan.run(numbers, table)
    return numbers, states, rows
