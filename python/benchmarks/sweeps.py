"""What ten thousand runs cost: on one core, on all, on Dask's workers, and with one of them killed.

    make bench-python OPTIONS="--runs 1000"

Each run is 60 s of scenarios/geo-download.toml. The table says runs in a second, how much longer Dask takes than as many
threads of one process, and whether the rows are the same.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any, Callable, List, Tuple

import distributed

import bentpipe

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "geo-download.toml"
SETTINGS = {"duration": "60s", "flow.split.bytes": "1GB", "flow.end-to-end.bytes": "1GB"}


def timed(runs: int, **options: Any) -> Tuple[float, bytes]:
    """Seconds, and the rows."""
    began = time.monotonic()
    table = bentpipe.sweep(SCENARIO, seeds=runs, settings=SETTINGS, **options)
    return time.monotonic() - began, table.to_ipc()


def killing(client: distributed.Client) -> Callable[[int, int], None]:
    """Kills a worker when a third of the runs is done."""
    killed: List[int] = []

    def progress(done: int, total: int) -> None:
        if done > total // 3 and not killed:
            killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    return progress


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--runs", type=int, default=10_000, help="how many (10000)")
    arguments.add_argument("--workers", type=int, default=os.cpu_count(), help="threads and workers (all processors)")
    options = arguments.parse_args()
    runs, workers = options.runs, options.workers
    lines = []
    one, rows = timed(runs, threads=1)
    lines.append(("one core", one, True))
    here, found = timed(runs, threads=workers)
    lines.append((f"{workers} cores", here, found == rows))
    with distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster, distributed.Client(cluster) as client:
        there, found = timed(runs, client=client)
        lines.append((f"Dask, {workers} workers", there, found == rows))
        killed, found = timed(runs, client=client, progress=killing(client))
        lines.append((f"Dask, {workers} workers, one killed", killed, found == rows))
    print(f"| {runs} runs of 60 s | time (s) | runs in a second | rows |\n|---|---:|---:|---|")
    for name, seconds, same in lines:
        print(f"| {name} | {seconds:.1f} | {runs / seconds:.0f} | {'the same' if same else 'DIFFERENT'} |")
    print(f"\nDask takes {100 * (there / here - 1):.0f}% longer than threads of one process.")
    if not all(same for _, _, same in lines):
        raise SystemExit("the rows differ: a bug")


if __name__ == "__main__":
    main()
