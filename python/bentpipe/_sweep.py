"""Many runs: on all cores of this machine, or on the workers of a Dask cluster."""

from __future__ import annotations

import os
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from ._core import Plan, Table
from ._errors import SweepInterrupted
from ._grid import Step, seeds_of, steps_of
from ._progress import Progress
from ._scenario import AnyScenario, Settings, pairs, scenario_of
from ._store import Collected, Folder, ParquetFile, Piece

#: The most runs that one thread or task does in one piece.
_LONGEST_PIECE = 64
#: Pieces for each thread, so that all are busy until the end though runs differ in length.
_PIECES_PER_THREAD = 8
#: How long a wait for a piece is, seconds: Python handles signals between two of them.
_WAIT_S = 0.05


def sweep(
    scenario: AnyScenario,
    grid: Mapping[Any, Any] = {},
    seeds: Union[int, Iterable[int]] = 1,
    *,
    settings: Settings = {},
    table: str = "flows",
    progress: Union[bool, Callable[[int, int], None]] = True,
    resume: Union[None, str, os.PathLike[str]] = None,
    client: Optional[Any] = None,
    parquet: Union[None, str, os.PathLike[str]] = None,
    threads: Optional[int] = None,
) -> Table:
    """Runs a scenario at each combination of values, with each seed. Returns the rows of all runs, in their order.

    scenario: a path, a text of TOML, a dictionary of its sections, or a ``Scenario``. Its own sweeps count, too.
    grid: what is swept; several entries are multiplied, the last one changing fastest:
        ``{"link.satellite.per": ["0", "1e-3"]}``: one parameter;
        ``{("link.a.delay", "link.b.delay"): [("10ms", "20ms"), ("30ms", "40ms")]}``: parameters set together;
        ``{"case": {"clean": {}, "lossy": {"link.a.per": "1%"}}}``: named cases.
    seeds: how many, from 1 on, or the seeds themselves, each 0 to 2**64 - 1.
    settings: parameters that are the same in all runs.
    table: ``flows``, ``legs``, ``links``, ``splitters``, ``stations`` or ``udp``, as in ``Result``. In front of its
        columns are ``run``, ``point``, ``seed``, and one for each parameter that is swept, or ``case``.
    progress: a bar on standard error where that is a terminal or a notebook; or what is called with the number of runs
        that are done, and of all.
    resume: a folder that keeps what is done, and a manifest. The same call goes on from there, whatever stopped it.
    client: a ``dask.distributed.Client``: its workers run it, with the same results in the same order. They need the
        same version of this package. A worker that dies costs time only.
    parquet: a file that the rows are written to as well, while the sweep runs; needs pyarrow.
    threads: how many at once on this machine; by default as many as it has processors.

    Raises ScenarioError before the first run for anything that cannot be run, ResumeError for a folder of other runs,
    and SweepInterrupted for Ctrl-C: all runs end at once, and the rows of those that are done are in its ``table``, in
    the folder, and in the Parquet file.
    """
    source = scenario_of(scenario)
    spec = Spec(source.text, source.name, pairs(settings), [steps_of(key, what) for key, what in grid.items()], seeds_of(seeds))
    plan = spec.plan()
    collected = Collected(plan, table, parquet=ParquetFile(parquet) if parquet is not None else None)
    with Progress(len(plan), progress) as bar:
        if resume is not None:
            collected.resume(Folder(resume, table))
        at_once = _threads_of(client) if client is not None else threads or os.cpu_count() or 1
        todo = collected.missing()
        pieces = list(_cut(todo, at_once))
        before = len(plan) - len(todo)
        bar.show(before)
        work = _Here(plan, pieces, table, at_once) if client is None else _There(client, spec, pieces, table)
        try:
            for piece, done in work:
                if piece is not None:
                    collected.add(piece)
                bar.show(before + done)
        except KeyboardInterrupt:
            # What was done until then is still to come.
            for piece, _ in _left(work):
                if piece is not None:
                    collected.add(piece)
            rows = collected.close()
            done = len(plan) - len(collected.missing())
            hint = "" if resume is None else "; the same call with resume= goes on"
            raise SweepInterrupted(f"stopped after {done} of {len(plan)} runs{hint}", rows) from None
        except BaseException:
            collected.close()
            raise
        finally:
            work.close()
    rows = collected.close()
    lost = len(collected.missing())
    if lost:
        # Rows that are not there must not look like all.
        hint = "" if resume is None else "; the others are kept"
        raise RuntimeError(f"{lost} of {len(plan)} runs have ended without a result: see standard error, and report the scenario{hint}")
    return rows


class Spec:
    """What a plan is made of, as it goes to workers."""

    def __init__(
        self,
        text: str,
        name: str,
        settings: List[Tuple[str, str]],
        sweeps: List[List[Step]],
        seeds: Sequence[int],
    ) -> None:
        self.key = (text, name, tuple(settings), tuple(tuple(_frozen(step) for step in steps) for steps in sweeps))
        self.seeds = seeds

    def plan(self) -> Plan:
        """The plan, with every point checked."""
        from ._core import Source

        text, name, settings, sweeps = self.key
        steps = [[(case, list(step)) for case, step in steps] for steps in sweeps]
        return Plan(Source(name, text), list(settings), steps, list(self.seeds))


def _frozen(step: Step) -> Tuple[Optional[str], Tuple[Tuple[str, str], ...]]:
    return step[0], tuple(step[1])


def _cut(numbers: Sequence[int], threads: int) -> Iterator[List[int]]:
    """Pieces of consecutive runs."""
    size = min(_LONGEST_PIECE, max(1, len(numbers) // (threads * _PIECES_PER_THREAD)))
    piece: List[int] = []
    for number in numbers:
        if piece and (len(piece) == size or number != piece[-1] + 1):
            yield piece
            piece = []
        piece.append(number)
    if piece:
        yield piece


class _Work:
    """Pieces as they are done, in whatever order, with the number of runs that are done."""

    def __iter__(self) -> Iterator[Tuple[Optional[Piece], int]]:
        raise NotImplementedError

    def close(self) -> None:
        """Ends everything at once."""


def _left(work: _Work) -> Iterator[Tuple[Optional[Piece], int]]:
    """Ends everything at once, and has what was done until then."""
    work.close()
    return iter(work)


class _Here(_Work):
    """On the threads of this machine."""

    def __init__(self, plan: Plan, pieces: List[List[int]], table: str, threads: int) -> None:
        self._running = plan.start(pieces, table, threads)

    def __iter__(self) -> Iterator[Tuple[Optional[Piece], int]]:
        while True:
            piece, over = self._running.next(_WAIT_S)
            if over:
                return
            yield (None if piece is None else Piece(*piece)), self._running.done

    def close(self) -> None:
        self._running.stop()


class _There(_Work):
    """On the workers of a cluster."""

    def __init__(self, client: Any, spec: Spec, pieces: List[List[int]], table: str) -> None:
        from distributed import as_completed

        from ._worker import run_piece

        self._client = client
        # Not pure: equal keys of another sweep would be taken for these. A worker that dies is not the task's fault.
        self._futures: List[Any] = [
            client.submit(run_piece, spec, piece, table, pure=False, retries=3) for piece in pieces
        ]
        self._done = 0
        self._over = False
        self._completed: Any = as_completed(self._futures, with_results=True)  # type: ignore[no-untyped-call, unused-ignore]

    def __iter__(self) -> Iterator[Tuple[Optional[Piece], int]]:
        if self._over:
            return
        for future, (numbers, states, rows) in self._completed:
            future.release()
            self._done += len(numbers)
            yield Piece(numbers, states, rows), self._done

    def close(self) -> None:
        if not self._over:
            self._over = True
            self._client.cancel([future for future in self._futures if not future.done()])
            self._futures = []


def _threads_of(client: Any) -> int:
    return max(1, int(sum(client.nthreads().values())))
