"""Congestion controls and effects of links that are written in Python."""

from __future__ import annotations

import math

import pyarrow
import pytest

import bentpipe


class NewReno(bentpipe.CongestionControl):
    """`crates/tcp/src/congestion/new_reno.rs` once more, with the byte counting of Linux (no limit)."""

    def __init__(self, mss, initial_window):
        super().__init__(mss, initial_window)
        self._credit = 0

    def on_ack(self, ack):
        if ack.in_recovery or not ack.cwnd_limited:
            return
        room = math.inf if self.ssthresh is None else self.ssthresh - self.cwnd
        if ack.bytes < room:
            self.cwnd += ack.bytes
            left = 0
        else:
            self.cwnd += max(room, 0)
            left = ack.bytes - max(room, 0)
        self._credit += left
        segments = self._credit // self.cwnd
        self._credit -= segments * self.cwnd
        self.cwnd += segments * self.mss

    def _half(self, size):
        return max(size // 2, 2 * self.mss)

    def on_loss(self, now, in_flight):
        self.cwnd = self.ssthresh = self._half(min(in_flight, self.cwnd))
        self._credit = 0

    def on_timeout(self, now, in_flight, first):
        if first:
            known = math.inf if self.ssthresh is None else self.ssthresh
            self.ssthresh = min(self._half(in_flight), max(self._half(self.cwnd), known))
        self.cwnd = self.mss
        self._credit = 0

    def set_window(self, cwnd, ssthresh):
        self.cwnd, self.ssthresh = cwnd, ssthresh
        self._credit = 0

    def on_idle(self, now):
        self.cwnd = min(self.cwnd, self.initial_window)


@pytest.mark.parametrize("per", ["0", "1%", "10%"])
def test_a_control_in_python_is_the_built_in_one_bit_by_bit(scenario, per):
    settings = {"link.sat.per": per, "flow.split.bytes": "2MB", "tcp.t.congestion": "newreno"}
    built_in = bentpipe.simulate(scenario, settings=settings)
    settings["tcp.t.congestion"] = "custom:mine"
    mine = bentpipe.simulate(scenario, settings=settings, congestion={"mine": NewReno})
    assert mine.to_dict() == built_in.to_dict()


def test_a_control_in_python_decides_what_is_sent(scenario):
    settings = {"tcp.t.congestion": "custom:mine", "link.sat.per": 0, "flow.split.bytes": "2MB"}
    mine = bentpipe.simulate(scenario, settings=settings, congestion={"mine": NewReno}, trace=True)
    still = bentpipe.simulate(scenario, settings=settings, congestion={"mine": bentpipe.CongestionControl}, trace=True)
    most = [max(result.trace.legs["cwnd_bytes"]) for result in (mine, still)]
    assert most[0] > 200_000 and most[1] < 20_000, most
    assert mine.flows["seconds"][0] < still.flows["seconds"][0] / 2


def test_a_control_in_python_finishes_over_a_lossy_link(scenario):
    settings = {"tcp.t.congestion": "custom:mine", "link.sat.per": "3%"}
    result = bentpipe.simulate(scenario, settings=settings, congestion={"mine": NewReno})
    assert result.state == "finished" and min(result.flows["retransmissions"]) > 0


def test_pacing_of_a_control_in_python_limits_the_rate(scenario):
    class Slow(bentpipe.CongestionControl):
        pacing_rate_bps = 500e3

        def on_ack(self, ack):
            self.cwnd = 1e9

    settings = {"tcp.t.congestion": "custom:slow", "link.sat.per": 0, "flow.whole.bytes": "1MB"}
    result = bentpipe.simulate(scenario, settings=settings, congestion={"slow": Slow})
    assert 400e3 < result.flows["goodput_bps"][1] < 500e3


@pytest.mark.parametrize("method", ["__init__", "on_ack", "on_loss"])
def test_an_exception_in_a_control_ends_the_run(scenario, method):
    class Broken(bentpipe.CongestionControl):
        pass

    def fail(self, *arguments):
        raise ZeroDivisionError(method)

    setattr(Broken, method, fail)
    settings = {"tcp.t.congestion": "custom:broken", "link.sat.per": "5%"}
    with pytest.raises(ZeroDivisionError, match=method):
        bentpipe.simulate(scenario, settings=settings, congestion={"broken": Broken})


@pytest.mark.parametrize("window, what", [(-1, "cwnd is -1"), (float("nan"), "cwnd is NaN"), (None, "cwnd is None")])
def test_a_window_that_is_none_ends_the_run(scenario, window, what):
    class Odd(bentpipe.CongestionControl):
        def on_ack(self, ack):
            self.cwnd = window

    with pytest.raises(ValueError, match=what):
        bentpipe.simulate(scenario, settings={"tcp.t.congestion": "custom:odd"}, congestion={"odd": Odd})


class EveryTenth(bentpipe.LinkEffect):
    """Loses every tenth packet, and holds every seventh back by 50 ms."""

    def __init__(self):
        self.packets = 0

    def apply(self, packet):
        self.packets += 1
        assert packet.departure > 0 and 40 <= packet.bytes <= 1500 and abs(packet.delay - 0.1) < 1e-9
        if self.packets % 10 == 0:
            packet.lost = True
        if self.packets % 7 == 0:
            packet.delay += 0.05


def test_an_effect_in_python_loses_and_delays(scenario):
    effect = EveryTenth()
    result = bentpipe.simulate(scenario, settings={"link.sat.per": 0}, effects={"sat.forward": effect})
    links = {(row["link"], row["direction"]): row for row in pyarrow.table(result.links).to_pylist()}
    forward = links["sat", "forward"]
    assert effect.packets == forward["offered"] - forward["dropped_queue_full"]
    assert forward["dropped_packet_error"] == effect.packets // 10
    assert links["sat", "reverse"]["dropped_packet_error"] == 0
    assert result.state == "finished"


def test_an_effect_that_does_nothing_changes_nothing(scenario):
    without = bentpipe.simulate(scenario).to_dict()
    assert bentpipe.simulate(scenario, effects={"sat": bentpipe.LinkEffect()}).to_dict() == without


def test_a_broken_effect_ends_the_run(scenario):
    class Backwards(bentpipe.LinkEffect):
        def apply(self, packet):
            packet.delay = -1

    with pytest.raises(ValueError, match="delay is -1"):
        bentpipe.simulate(scenario, effects={"sat": Backwards()})
    with pytest.raises(KeyError, match="there is no link moon; there is ground, sat"):
        bentpipe.simulate(scenario, effects={"moon": Backwards()})
    with pytest.raises(KeyError, match="write LINK"):
        bentpipe.simulate(scenario, effects={"sat.up": Backwards()})
    with pytest.raises(TypeError, match="no method apply"):
        bentpipe.simulate(scenario, effects={"sat": object()})
