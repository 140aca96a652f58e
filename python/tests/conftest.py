"""What the tests share. They run the real package, the real program and real Dask workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Two links, a lossy one; runs of a few milliseconds.
SCENARIO: Dict[str, Any] = {
    "title": "a small one",
    "duration": "60s",
    "link": [
        {"name": "ground", "between": ["server", "gateway"], "rate": "100Mbit/s", "delay": "10ms"},
        {"name": "sat", "between": ["gateway", "client"], "rate": "10Mbit/s", "delay": "100ms", "per": "1%"},
    ],
    "tcp": {"t": {"base": "linux", "congestion": "newreno"}},
    "flow": [
        {"name": "split", "from": "server", "to": "client", "bytes": "200kB", "tcp": "t", "split": [{"at": "gateway"}]},
        {"name": "whole", "from": "server", "to": "client", "bytes": "200kB", "tcp": "t"},
    ],
}

#: A second of processor time or more for each run.
LONG = {"duration": "10h", "flow.split.bytes": "100GB", "flow.whole.bytes": "100GB", "link.sat.rate": "1Gbit/s"}


@pytest.fixture(autouse=True)
def heeds_ctrl_c() -> Iterator[None]:
    """A job that a script starts in the background ignores SIGINT, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def scenario() -> Dict[str, Any]:
    """A scenario of its own for each test."""
    return {**SCENARIO, "link": [dict(link) for link in SCENARIO["link"]]}


@pytest.fixture(scope="session")
def program() -> str:
    """The program bentpipe of the same build. `make python` builds it and says where it is."""
    path = os.environ.get("BENTPIPE")
    if path is None:
        pytest.skip("BENTPIPE does not say where the program is: run make python")
    return path
