"""The same on the workers of a Dask cluster, also when one of them is killed."""

from __future__ import annotations

import os
import signal
import threading

import pyarrow
import pyarrow.parquet
import pytest

import bentpipe
from conftest import LONG
from test_sweep import GRID, rows

distributed = pytest.importorskip("distributed", reason="Dask is not installed: run scripts/setup-peers python")


@pytest.fixture(scope="module")
def client():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster, distributed.Client(cluster) as client:
        yield client


def test_results_and_order_are_the_same(client, scenario, tmp_path):
    told = []
    path = tmp_path / "rows.parquet"
    there = bentpipe.sweep(
        scenario, GRID, 4, client=client, parquet=path, progress=lambda done, total: told.append((done, total))
    )
    here = rows(bentpipe.sweep(scenario, GRID, 4))
    assert rows(there) == here == pyarrow.parquet.read_table(path).to_pylist()
    assert told[-1] == (48, 48)


def test_a_worker_that_is_killed_costs_time_only(client, scenario):
    killed = []

    def kill(done, total):
        if done > total // 4 and not killed:
            killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    there = bentpipe.sweep(scenario, GRID, 60, client=client, progress=kill)
    assert killed and rows(there) == rows(bentpipe.sweep(scenario, GRID, 60))


def test_ctrl_c_leaves_what_is_done_and_this_machine_goes_on(client, scenario, tmp_path):
    client.wait_for_workers(2, timeout=60)
    grid = {"flow.whole.bytes": ["10kB", "20kB", "1GB"]}
    settings = {**LONG, "flow.split.bytes": "10kB"}
    stop = threading.Event()

    def interrupt(done, total):
        if done >= 6 and not stop.is_set():
            stop.set()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(bentpipe.SweepInterrupted) as caught:
        bentpipe.sweep(scenario, grid, 3, settings=settings, client=client, resume=tmp_path, progress=interrupt)
    assert {row["run"] for row in rows(caught.value.table)} >= {1, 2, 3, 4, 5, 6}
