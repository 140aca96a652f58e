"""What ten thousand runs cost: on one core, on all, on Dask's workers, and with one of them killed.

    make bench-python OPTIONS="--runs 1000"

Each run is 60 s of scenarios/geo-download.toml. The table says runs in a second, the processor time of all processes, and
whether the rows are the same. Where others use the machine, the processor time is what Dask costs.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import time
from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple

import distributed

import bentpipe

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "geo-download.toml"
SETTINGS = {"duration": "60s", "flow.split.bytes": "1GB", "flow.end-to-end.bytes": "1GB"}


def processor_time(client: Optional[distributed.Client]) -> float:
    """Of this process and of the workers, seconds."""
    return time.process_time() + (sum(client.run(time.process_time).values()) if client else 0.0)


def timed(runs: int, client: Optional[distributed.Client] = None, **options: Any) -> Tuple[float, float, bytes]:
    """Seconds, seconds of processors, and the rows."""
    before, began = processor_time(client), time.monotonic()
    table = bentpipe.sweep(SCENARIO, seeds=runs, settings=SETTINGS, client=client, **options)
    return time.monotonic() - began, processor_time(client) - before, table.to_ipc()


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
    outcome = timed(runs, threads=1)
    rows = outcome[2]
    lines.append(("one core", *outcome))
    lines.append((f"{workers} cores", *timed(runs, threads=workers)))
    with distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster, distributed.Client(cluster) as client:
        lines.append((f"Dask, {workers} workers", *timed(runs, client)))
        seconds, _, found = timed(runs, client, progress=killing(client))
        # The dead worker has taken its processor time with it.
        lines.append((f"Dask, {workers} workers, one killed", seconds, float("nan"), found))
    print(f"| {runs} runs of 60 s | time (s) | runs in a second | processor time (s) | rows |\n|---|---:|---:|---:|---|")
    for name, seconds, processor, found in lines:
        spent = "" if math.isnan(processor) else f"{processor:.1f}"
        print(f"| {name} | {seconds:.1f} | {runs / seconds:.1f} | {spent} | {'the same' if found == rows else 'DIFFERENT'} |")
    print(f"\nDask takes {100 * (lines[2][2] / lines[1][2] - 1):.0f}% more processor time than threads of one process.")
    if any(found != rows for *_, found in lines):
        raise SystemExit("the rows differ: a bug")


if __name__ == "__main__":
    main()
