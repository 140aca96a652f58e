"""Sweeps: the same as the program's, interrupted and resumed, and written as Parquet."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading

import pyarrow
import pyarrow.parquet
import pytest

import bentpipe
from bentpipe import _sweep
from conftest import LONG, ROOT

GRID = {
    "link.sat.per": ["0", 0.01, "3%"],
    ("link.ground.delay", "link.sat.delay"): [("10ms", "100ms"), ("20ms", "50ms")],
    "case": {"small": {"flow.split.bytes": "20kB"}, "as-it-is": {}},
}


def rows(table):
    return pyarrow.table(table).to_pylist()


def test_a_sweep_is_that_of_the_program_to_the_bit(program, scenario, tmp_path):
    made = bentpipe.Scenario.from_dict(scenario)
    path = tmp_path / "s.toml"
    path.write_text(made.text)
    sweeps = [
        "link.sat.per=0,0.01,3%",
        "link.ground.delay+link.sat.delay=10ms+100ms,20ms+50ms",
        "case=small:flow.split.bytes=20kB,as-it-is",
    ]
    arguments = [text for sweep in sweeps for text in ("--sweep", sweep)]
    manifest = tmp_path / "manifest.json"
    command = [program, "sim", str(path), *arguments, "--seeds", "3", "--json", "--manifest", str(manifest)]
    theirs = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["runs"]
    ours = rows(bentpipe.sweep(path, GRID, seeds=3, resume=tmp_path / "kept"))
    assert len(theirs) == 36 and len(ours) == 72
    for number, row in enumerate(ours):
        run = theirs[number // 2]
        flow = run["flows"][number % 2]
        assert (row["run"], row["point"], row["seed"]) == (number // 2 + 1, number // 6 + 1, run["seed"])
        assert row["case"] == run["case"] and row["link.sat.delay"] == run["settings"]["link.sat.delay"]
        assert {key: row[key] for key in row if key in flow} == {key: flow[key] for key in row if key in flow}
        assert row["goodput_bps"] == flow["goodput_bps"] and row["flow"] == flow["name"]
    kept = json.loads((tmp_path / "kept" / "manifest.json").read_text())
    kept.pop("table")
    assert kept == json.loads(manifest.read_text())


def test_sweeps_of_the_file_count_too():
    table = bentpipe.sweep(ROOT / "scenarios" / "surrey.toml", settings={"duration": "30s"}, table="links")
    assert len(table) > 0 and len(set(table["point"])) == max(table["point"])


def test_the_order_is_the_same_on_any_number_of_threads(scenario):
    one, four = [rows(bentpipe.sweep(scenario, GRID, seeds=range(5, 9), threads=threads)) for threads in (1, 4)]
    assert one == four and [row["run"] for row in one] == sorted(row["run"] for row in one)


def test_each_table_can_be_swept(scenario):
    for table in ["flows", "legs", "links", "splitters", "stations", "udp"]:
        swept = bentpipe.sweep(scenario, {"link.sat.per": ["0", "1%"]}, seeds=[7], table=table)
        alone = bentpipe.simulate(scenario, settings={"link.sat.per": "0"}, seed=7)
        alone = rows(getattr(alone, table))
        front = ["run", "point", "seed", "link.sat.per"]
        assert swept.column_names[:4] == front
        assert [{key: row[key] for key in row if key not in front} for row in rows(swept) if row["point"] == 1] == alone
    with pytest.raises(KeyError, match="no table nonsense; there is flows"):
        bentpipe.sweep(scenario, table="nonsense")


@pytest.mark.parametrize(
    "grid, seeds, error, what",
    [
        ({"link.sat.per": ["0", "200%"]}, 1, bentpipe.ScenarioError, "not a probability"),
        ({"link.sat.per": "1%"}, 1, TypeError, "give a list of values"),
        ({("a", "b"): [(1, 2, 3)]}, 1, TypeError, "a tuple of 2 values"),
        ({"case": ["a"]}, 1, TypeError, "no dictionary"),
        ({"case": {"a b": {}}}, 1, ValueError, "is not a name of a case"),
        ({"link.sat.per": []}, 1, ValueError, "no values"),
        ({"link.sat.per": [0], "case": {"a": {"link.sat.per": 0}}}, 1, bentpipe.ScenarioError, "twice"),
        ({"duration": [f"{n}s" for n in range(1, 1001)], "link.sat.per": [n / 1e4 for n in range(101)]}, 1, bentpipe.ScenarioError, "at most 100000"),
        ({}, 0, ValueError, "above zero"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_the_first_run(scenario, grid, seeds, error, what):
    with pytest.raises(error, match=what):
        bentpipe.sweep(scenario, grid, seeds)


def test_progress_is_told_and_drawn(scenario):
    told = []
    bentpipe.sweep(scenario, seeds=40, progress=lambda done, total: told.append((done, total)))
    assert told[0] == (0, 40) and told[-1] == (40, 40) and told == sorted(told)
    code = (
        "import bentpipe, sys\n"
        "try: bentpipe.sweep(sys.argv[1], seeds=100000, settings={'flow.split.bytes': '1kB', 'flow.end-to-end.bytes': '1kB'})\n"
        "except KeyboardInterrupt: pass\n"
    )
    command = [sys.executable, "-c", code, str(ROOT / "scenarios" / "geo-download.toml")]
    # A terminal of its own, as a user has.
    leader, follower = pty.openpty()
    drawing = subprocess.Popen(command, stderr=follower)
    os.close(follower)
    seen = b""
    while b"#" not in seen:
        # An end of the program ends this, too: an OSError.
        seen += os.read(leader, 4096)
    drawing.send_signal(signal.SIGINT)
    assert drawing.wait() == 0
    os.close(leader)
    assert b" of 100000 runs, " in seen and b" s left" in seen, seen[-500:]


def test_ctrl_c_leaves_what_is_done_and_the_same_call_goes_on(scenario, tmp_path):
    # The first points are short, the last ones would take hours.
    grid = {"flow.whole.bytes": ["10kB", "20kB", "100GB"]}
    settings = {**LONG, "flow.split.bytes": "10kB"}
    folder = tmp_path / "kept"
    stop = threading.Event()

    def interrupt(done, total):
        if done >= 6 and not stop.is_set():
            stop.set()
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    with pytest.raises(bentpipe.SweepInterrupted, match="of 9 runs; the same call") as caught:
        bentpipe.sweep(scenario, grid, 3, settings=settings, resume=folder, progress=interrupt, threads=2,
                       parquet=tmp_path / "rows.parquet")
    left = rows(caught.value.table)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert sorted({row["run"] for row in left}) == [1, 2, 3, 4, 5, 6]
    assert pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist() == left
    states = [run["state"] for run in json.loads((folder / "manifest.json").read_text())["runs"]]
    assert states == ["finished"] * 6 + ["pending"] * 3


def test_a_sweep_that_was_killed_goes_on_and_ends_as_if_it_had_not_been(scenario, tmp_path):
    whole = rows(bentpipe.sweep(scenario, GRID, seeds=60))
    code = (
        "import bentpipe, json, os, sys\n"
        "scenario, grid = json.loads(sys.argv[1])\n"
        "grid[('link.ground.delay', 'link.sat.delay')] = [('10ms', '100ms'), ('20ms', '50ms')]\n"
        "grid['case'] = grid.pop('case')\n"
        "bentpipe.sweep(scenario, grid, 60, resume=sys.argv[2],\n"
        "               progress=lambda done, total: os.kill(os.getpid(), 9) if done > int(sys.argv[3]) else None)\n"
    )
    grid = {key: value for key, value in GRID.items() if isinstance(key, str)}
    for limit in ["150", "400"]:
        arguments = [json.dumps([scenario, grid]), str(tmp_path), limit]
        ended = subprocess.run([sys.executable, "-c", code, *arguments])
        assert ended.returncode == -signal.SIGKILL
    kept = len(list(tmp_path.glob("runs-*.arrow")))
    assert kept > 5
    told = []
    assert rows(bentpipe.sweep(scenario, GRID, 60, resume=tmp_path, progress=lambda *both: told.append(both))) == whole
    assert told[0][0] > 100, "what was done is not done again"
    states = {run["state"] for run in json.loads((tmp_path / "manifest.json").read_text())["runs"]}
    assert states == {"finished"}
    # Nothing is left to do: no run is run.
    told.clear()
    assert rows(bentpipe.sweep(scenario, GRID, 60, resume=tmp_path, progress=lambda *both: told.append(both))) == whole
    assert told == [(720, 720)]


def test_runs_that_vanish_are_an_error(scenario, tmp_path, monkeypatch):
    class Vanishing(_sweep._Here):
        def __init__(self, plan, pieces, table, threads):
            super().__init__(plan, pieces[:-1], table, threads)

    monkeypatch.setattr(_sweep, "_Here", Vanishing)
    with pytest.raises(RuntimeError, match="2 of 20 runs have ended without a result.*the others are kept"):
        bentpipe.sweep(scenario, seeds=20, threads=1, resume=tmp_path)
    monkeypatch.undo()
    assert {row["run"] for row in rows(bentpipe.sweep(scenario, seeds=20, resume=tmp_path))} == set(range(1, 21))


def test_half_a_line_of_states_and_half_a_file_are_done_again(scenario, tmp_path):
    whole = rows(bentpipe.sweep(scenario, seeds=20, resume=tmp_path, threads=1))
    files = sorted(tmp_path.glob("runs-*.arrow"))
    files[0].rename(files[0].with_name(files[0].name + ".part"))
    states = tmp_path / "states.jsonl"
    states.write_bytes(states.read_bytes()[:-9])
    assert rows(bentpipe.sweep(scenario, seeds=20, resume=tmp_path, threads=1)) == whole
    assert all(run["state"] == "finished" for run in json.loads((tmp_path / "manifest.json").read_text())["runs"])


def test_a_folder_of_other_runs_is_refused(scenario, tmp_path):
    bentpipe.sweep(scenario, seeds=2, resume=tmp_path)
    for other in [{"seeds": 3}, {"settings": {"link.sat.per": 0}}, {"grid": {"link.sat.per": [0]}}]:
        with pytest.raises(bentpipe.ResumeError, match="is one of other runs"):
            bentpipe.sweep(scenario, resume=tmp_path, **{"seeds": 2, **other})
    with pytest.raises(bentpipe.ResumeError, match="has the table flows, not links"):
        bentpipe.sweep(scenario, seeds=2, resume=tmp_path, table="links")
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(bentpipe.ResumeError, match="no manifest"):
        bentpipe.sweep(scenario, seeds=2, resume=tmp_path)


def test_parquet_has_the_rows_in_order(scenario, tmp_path):
    path = tmp_path / "rows.parquet"
    table = bentpipe.sweep(scenario, GRID, seeds=3, parquet=path, threads=4)
    assert pyarrow.parquet.read_table(path).to_pylist() == rows(table)
    bentpipe.sweep(scenario, seeds=1, table="udp", parquet=path)
    assert pyarrow.parquet.read_table(path).num_rows == 0
    assert not list(tmp_path.glob("*.part"))
