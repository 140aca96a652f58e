"""One run: the same as the program's, tables for each library, and errors that say where."""

from __future__ import annotations

import json
import pickle
import subprocess
import threading
import os
import signal
from pathlib import Path

import numpy
import pandas
import polars
import pyarrow
import pyarrow.csv
import pytest

import bentpipe
from conftest import LONG, ROOT

GEO = ROOT / "scenarios" / "geo-download.toml"


def document(program, *arguments):
    ended = subprocess.run([program, "sim", *arguments, "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(ended.stdout)


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "scenarios").glob("*.toml")))
def test_a_run_is_that_of_the_program_to_the_bit(program, name):
    path = ROOT / "scenarios" / name
    if bentpipe.load(path).text.find("[sweep]") >= 0:
        pytest.skip(f"{name} is a sweep: the tests of sweeps compare those")
    theirs = document(program, str(path), "--seed", "5")
    ours = bentpipe.simulate(path, seed=5)
    assert ours.title == theirs.pop("title")
    for of_the_call in ["wall_s", "settings"]:
        theirs.pop(of_the_call)
    assert ours.to_dict() == theirs
    # The tables have the same values under the same names.
    for row, flow in zip(pyarrow.table(ours.flows).to_pylist(), theirs["flows"]):
        assert row.pop("flow") == flow["name"]
        assert row == {key: flow[key] for key in row}
    legs = [leg for flow in theirs["flows"] for leg in flow["legs"]]
    for row, leg in zip(pyarrow.table(ours.legs).to_pylist(), legs):
        assert {key: row[key] for key in leg} == leg
    for row in pyarrow.table(ours.links).to_pylist():
        link = next(link for link in theirs["links"] if link["name"] == row["link"])[row["direction"]]
        counted = {**link, **{f"dropped_{cause}": count for cause, count in link["dropped"].items()}}
        assert {key: row[key] for key in row if key not in ("link", "direction")} == {
            key: counted[key] for key in counted if key != "dropped"
        }


def test_a_trace_is_that_of_the_program_to_the_bit(program, tmp_path):
    settings = {"flow.split.bytes": "1MB", "flow.end-to-end.bytes": "1MB"}
    sets = [text for key, value in settings.items() for text in ("--set", f"{key}={value}")]
    document(program, str(GEO), *sets, "--trace", str(tmp_path))
    trace = bentpipe.simulate(GEO, settings=settings, trace=True).trace
    for name in ["legs", "flows", "links", "splitters"]:
        ours = pyarrow.table(getattr(trace, name)).to_pandas()
        theirs = pyarrow.csv.read_csv(tmp_path / f"{name}.csv").to_pandas()
        assert len(ours) > 100
        pandas.testing.assert_frame_equal(ours, theirs, check_dtype=False, check_exact=True)
    assert trace.stations is None


def test_libraries_take_tables_without_a_copy(scenario):
    flows = bentpipe.simulate(scenario).flows
    table = pyarrow.table(flows)
    array = numpy.asarray(flows["goodput_bps"])
    assert array.dtype == numpy.float64 and array.tolist() == table["goodput_bps"].to_pylist()
    assert array.__array_interface__["data"][0] == table["goodput_bps"].chunk(0).buffers()[1].address
    assert polars.DataFrame(flows).to_dict(as_series=False) == table.to_pydict()
    frame = pandas.DataFrame.from_arrow(flows) if hasattr(pandas.DataFrame, "from_arrow") else table.to_pandas()
    assert frame["flow"].tolist() == list(flows["flow"]) == ["split", "whole"]
    # The values stay when all else is gone.
    del flows, table
    assert (array > 1e5).all()


def test_what_is_missing_is_none_and_nan(scenario):
    legs = bentpipe.simulate(scenario, settings={"link.sat.per": 0}, trace=True).trace.legs
    assert legs["ssthresh_bytes"][0] is None and numpy.isnan(numpy.asarray(legs["ssthresh_bytes"])[0])
    assert legs["leg"][-1] == 1 and list(legs["recovering"])[0] is False
    with pytest.raises(IndexError, match="none at"):
        legs["leg"][10**9]
    with pytest.raises(KeyError, match="no column cwnd; there is time_s"):
        legs["cwnd"]


def test_tables_are_pickled_and_joined(scenario):
    flows = bentpipe.simulate(scenario).flows
    twice = bentpipe.Table.concat([flows, pickle.loads(pickle.dumps(flows))])
    assert len(twice) == 4 and list(twice["seconds"])[:2] == list(twice["seconds"])[2:]
    with pytest.raises(ValueError, match="different columns"):
        bentpipe.Table.concat([flows, bentpipe.simulate(scenario).links])


def test_a_scenario_is_a_path_a_text_or_sections(scenario, tmp_path):
    made = bentpipe.Scenario.from_dict(scenario)
    path = tmp_path / "s.toml"
    path.write_text(made.text)
    results = [bentpipe.simulate(one).to_dict() for one in [scenario, made, made.text, path, str(path), bentpipe.load(path)]]
    assert all(result == results[0] for result in results)
    assert made.check() == "a small one" and made.flows() == ["split", "whole"] and made.links() == ["ground", "sat"]
    assert pickle.loads(pickle.dumps(made)).sha256 == bentpipe.load(path).sha256


def test_settings_are_as_those_of_the_program(scenario):
    def sizes(**settings):
        return list(bentpipe.simulate(scenario, settings=settings).flows["bytes"])

    assert sizes(**{"flow.split.bytes": "1kB", "flow.whole.bytes": 2000}) == [1000, 2000]
    result = bentpipe.simulate(scenario, settings={"tcp.t.timestamps": False, "tcp.t.rto": {"max": "3s", "min": "1s"}})
    assert result.state == "finished"
    assert bentpipe.simulate(scenario, settings={"duration": "1s"}).state == "unfinished"


@pytest.mark.parametrize(
    "settings, line, key, what",
    [
        ({"link.sat.per": "2"}, None, "link.sat.per", "is not a probability"),
        ({"link.moon.per": "1%"}, None, "link.moon", "there is no moon"),
        ({"tcp.t.congestion": "custom:mine"}, None, "tcp", "no congestion control custom:mine"),
    ],
)
def test_an_error_says_where(scenario, settings, line, key, what):
    with pytest.raises(bentpipe.ScenarioError, match=what) as caught:
        bentpipe.simulate(scenario, settings=settings)
    error = caught.value
    assert (error.line, error.file) == (line, "<dict>") or settings.keys() == {"tcp.t.congestion"}
    assert error.key.startswith(key) and error.faults[0].what
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_all_errors_of_a_file_come_at_once_with_their_lines(scenario, tmp_path):
    scenario["link"][0]["rate"] = "10X"
    scenario["link"][1]["per"] = "200%"
    path = tmp_path / "s.toml"
    path.write_text(bentpipe.Scenario.from_dict(scenario).text)
    with pytest.raises(bentpipe.ScenarioError) as caught:
        bentpipe.simulate(path)
    lines = path.read_text().splitlines()
    assert [lines[fault.line - 1].split()[0] for fault in caught.value.faults] == ["rate", "per"]
    assert caught.value.file == str(path) and isinstance(caught.value, ValueError)


def test_wrong_arguments_are_exceptions_of_python(scenario, tmp_path):
    with pytest.raises(FileNotFoundError):
        bentpipe.simulate(tmp_path / "nothing.toml")
    with pytest.raises(OverflowError):
        bentpipe.simulate(scenario, seed=-1)
    with pytest.raises(TypeError, match="is no value of a scenario"):
        bentpipe.simulate({"duration": object()})
    with pytest.raises(TypeError, match="keys are texts"):
        bentpipe.simulate({1: "60s"})


def test_ctrl_c_ends_a_run(scenario):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        bentpipe.simulate(scenario, settings=LONG)


def test_radii_are_those_of_the_program(program):
    ended = subprocess.run(
        [program, "radius", "--delay", "480s", "--outage", "2h", "--json"], check=True, stdout=subprocess.PIPE
    )
    assert bentpipe.radius(480, 7200) == json.loads(ended.stdout)
    assert "path" not in bentpipe.radius()
    with pytest.raises(ValueError, match="delay is -1 s"):
        bentpipe.radius(-1)


def test_an_experiment_is_that_of_the_program(program, tmp_path):
    ours = bentpipe.lab("radius07-step", seeds=2, out=tmp_path / "ours", program=program)
    assert (tmp_path / "ours" / "radius07-step.md").exists()
    command = [program, "lab", "run", "radius07-step", "--seeds", "2", "--json", "--out", str(tmp_path)]
    theirs = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    assert ours["verdicts"] == theirs["verdicts"] and ours["verdicts"]
    with pytest.raises(bentpipe.LabError, match="the experiment nonsense failed: .*nonsense"):
        bentpipe.lab("nonsense", program=program)
    with pytest.raises(bentpipe.LabError, match="cannot start /nowhere"):
        bentpipe.lab("radius07-reach", program="/nowhere")
