"""What is done of a sweep: in memory, in a folder to resume from, and as Parquet."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Union

from ._core import Plan, Table
from ._errors import ResumeError

_PathLike = Union[str, "os.PathLike[str]"]
#: Rows of a group in a Parquet file: fewer make the file long and slow to read.
_GROUP_ROWS = 20_000


class Piece(NamedTuple):
    """Consecutive runs that are done."""

    #: Their numbers, from 0 on.
    numbers: List[int]
    #: Their states, as in a manifest.
    states: List[str]
    #: Their rows.
    rows: Table


class Collected:
    """All pieces that are done."""

    def __init__(self, plan: Plan, table: str, *, parquet: Optional[ParquetFile]) -> None:
        self._plan = plan
        self._empty = plan.empty(table)
        self._pieces: Dict[int, Piece] = {}
        self._folder: Optional[Folder] = None
        self._parquet = parquet
        # The first run that is not yet written to the Parquet file.
        self._next = 0

    def resume(self, folder: Folder) -> None:
        """Takes what the folder has, and keeps in it what comes."""
        self._folder = folder
        for piece in folder.open(self._plan):
            self._take(piece)

    def missing(self) -> List[int]:
        """The numbers of the runs that are not done."""
        done = {number for piece in self._pieces.values() for number in piece.numbers}
        return [number for number in range(len(self._plan)) if number not in done]

    def add(self, piece: Piece) -> None:
        """A piece is done; it is empty if it was stopped before its first run was."""
        if piece.numbers:
            if self._folder is not None:
                self._folder.add(piece)
            self._take(piece)

    def _take(self, piece: Piece) -> None:
        self._pieces[piece.numbers[0]] = piece
        if self._parquet is None:
            return
        while self._next in self._pieces:
            following = self._pieces[self._next]
            self._parquet.write(following.rows)
            self._next += len(following.numbers)

    def close(self) -> Table:
        """Ends the files, and returns all rows in the order of the runs."""
        ordered = [self._pieces[first] for first in sorted(self._pieces)]
        if self._parquet is not None:
            for piece in ordered:
                if piece.numbers[0] >= self._next:
                    self._parquet.write(piece.rows)
            self._parquet.close(self._empty)
            self._parquet = None
        if self._folder is not None:
            self._folder.close(ordered)
        return Table.concat([piece.rows for piece in ordered] or [self._empty])


class Folder:
    """A folder with a manifest, a file for each piece, and the states of their runs.

    ``manifest.json`` is as ``bentpipe sim --manifest`` writes it. ``runs-FIRST-LAST.arrow`` has the rows of runs, and
    is there in one piece or not at all. ``states.jsonl`` has a line for each of them, written before.
    """

    def __init__(self, path: _PathLike, table: str) -> None:
        self._path = Path(path)
        self._table = table
        self._manifest: Dict[str, Any] = {}

    def open(self, plan: Plan) -> List[Piece]:
        """What is done. ResumeError if the folder is of other runs."""
        path = self._path / "manifest.json"
        text = plan.manifest()
        self._manifest = json.loads(text)
        self._manifest["table"] = self._table
        if path.exists():
            self._check(plan, path.read_text(encoding="utf-8"))
        else:
            self._path.mkdir(parents=True, exist_ok=True)
            self._write_manifest()
        return self._read()

    def _check(self, plan: Plan, found: str) -> None:
        try:
            same = plan.is_of_the_same_runs(found)
            table = json.loads(found).get("table")
        except ValueError as error:
            raise ResumeError(f"cannot resume from {self._path}: {error}; choose another folder") from None
        if not same:
            what = "is one of other runs: the scenario, a setting, the grid, the seeds or the version differ"
            raise ResumeError(f"the folder {self._path} {what}; choose another one, or remove it")
        if table != self._table:
            raise ResumeError(f"the folder {self._path} has the table {table}, not {self._table}; choose another one")

    def _read(self) -> List[Piece]:
        states = self._states()
        pieces = []
        for path in sorted(self._path.glob("runs-*.arrow")):
            match = re.fullmatch(r"runs-(\d+)-(\d+)\.arrow", path.name)
            if match is None:
                continue
            first, last = int(match[1]) - 1, int(match[2]) - 1
            numbers = list(range(first, last + 1))
            known = states.get(first, [])
            if len(known) < len(numbers):
                # Its line was not written in time: the runs are done again.
                path.unlink()
                continue
            pieces.append(Piece(numbers, known[: len(numbers)], Table.from_ipc(path.read_bytes())))
        return pieces

    def _states(self) -> Dict[int, List[str]]:
        found: Dict[int, List[str]] = {}
        path = self._path / "states.jsonl"
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                except ValueError:
                    # A line that was being written when everything ended.
                    continue
                found[entry["run"] - 1] = entry["states"]
        return found

    def add(self, piece: Piece) -> None:
        """Keeps a piece."""
        first, last = piece.numbers[0] + 1, piece.numbers[-1] + 1
        with open(self._path / "states.jsonl", "a", encoding="utf-8") as states:
            # On a line of its own, even behind one that was not written to its end.
            states.write("\n" + json.dumps({"run": first, "states": piece.states}) + "\n")
        _replace(self._path / f"runs-{first:07}-{last:07}.arrow", piece.rows.to_ipc())

    def close(self, pieces: List[Piece]) -> None:
        """Writes the states of all runs into the manifest."""
        for piece in pieces:
            for number, state in zip(piece.numbers, piece.states):
                self._manifest["runs"][number]["state"] = state
        self._write_manifest()

    def _write_manifest(self) -> None:
        _replace(self._path / "manifest.json", (json.dumps(self._manifest, indent=2) + "\n").encode())


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.replace(part, path)


class ParquetFile:
    """A Parquet file that is written while a sweep runs. It has its name when it is complete."""

    def __init__(self, path: _PathLike) -> None:
        try:
            import pyarrow
            import pyarrow.parquet as parquet
        except ImportError as error:
            raise ImportError('parquet= needs pyarrow; install "bentpipe[parquet]"') from error
        self._arrow = pyarrow
        self._parquet = parquet
        self._path = Path(path)
        self._part = self._path.with_name(self._path.name + ".part")
        self._writer: Optional[Any] = None
        self._waiting: List[Table] = []
        self._rows = 0

    def write(self, rows: Table) -> None:
        """Takes rows; they reach the disk when there are enough of them."""
        self._waiting.append(rows)
        self._rows += len(rows)
        if self._rows >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            rows = self._arrow.table(Table.concat(self._waiting))
            if self._writer is None:
                self._writer = self._parquet.ParquetWriter(self._part, rows.schema)
            self._writer.write_table(rows)
            self._waiting, self._rows = [], 0

    def close(self, empty: Table) -> None:
        """Ends the file."""
        if self._writer is None and not self._waiting:
            self._waiting = [empty]
        self._flush()
        if self._writer is not None:
            self._writer.close()
        os.replace(self._part, self._path)
