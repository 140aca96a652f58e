"""Base classes for congestion controls and effects of links that are written in Python.

They are for experiments: each event is a call into Python, so that a run takes 10 to 100 times as long as with the
built-in ones. An exception in them ends the run, and ``simulate`` raises it.
"""

from __future__ import annotations

from typing import Optional, Protocol


class Ack(Protocol):
    """An acknowledgement of new data."""

    #: When it arrived, seconds of virtual time.
    now: float
    #: Bytes that it is the first to report as received.
    bytes: int
    #: The round trip that it measured, seconds, if it did.
    rtt: Optional[float]
    #: The smoothed round trip, seconds; 0 before the first measurement.
    srtt: float
    #: The smallest round trip of the connection, seconds; 0 before the first measurement.
    min_rtt: float
    #: Bytes believed to be in the network before it arrived.
    in_flight: int
    #: The window was what held the sender back: only then may it grow.
    cwnd_limited: bool
    #: Losses are being repaired; the standard algorithms keep their window meanwhile.
    in_recovery: bool


class CongestionControl:
    """A congestion control, one object for each connection. This one keeps the initial window, whatever happens.

    The sender reads ``cwnd``, ``ssthresh`` and ``pacing_rate_bps`` after each call. A scenario names a class as
    ``custom:NAME``, and ``simulate(…, congestion={"NAME": TheClass})`` gives it.
    """

    #: The congestion window, bytes. Less than a segment counts as one.
    cwnd: float
    #: The slow-start threshold, bytes; None before there is one.
    ssthresh: Optional[float] = None
    #: The rate at which segments are spaced, bit/s of payload; None sends at once what the window allows.
    pacing_rate_bps: Optional[float] = None

    def __init__(self, mss: int, initial_window: int) -> None:
        """A new connection with segments of ``mss`` bytes and an initial window in bytes."""
        self.mss = mss
        self.initial_window = initial_window
        self.cwnd = initial_window

    def on_established(self, now: float, rtt: Optional[float]) -> None:
        """The handshake is over and has measured this round trip, unless its SYN was repeated."""

    def on_ack(self, ack: Ack) -> None:
        """New data was acknowledged."""

    def on_loss(self, now: float, in_flight: int) -> None:
        """Fast recovery begins with so many bytes outstanding. The window is then what may be in flight meanwhile."""

    def on_recovery_end(self, now: float) -> None:
        """Everything that was outstanding when recovery began is acknowledged."""

    def on_timeout(self, now: float, in_flight: int, first: bool) -> None:
        """The retransmission timer expired. ``first`` is False where it had for the same segment before."""

    def on_idle(self, now: float) -> None:
        """Nothing was sent for longer than a retransmission timeout."""

    def set_window(self, cwnd: int, ssthresh: Optional[int]) -> None:
        """Window and threshold are set from outside: a reduction was spurious, or a timeout left segments in flight."""


class Packet(Protocol):
    """A packet that has left the transmitter."""

    #: When its last bit left, seconds of virtual time.
    departure: float
    #: Its length on the wire.
    bytes: int
    #: How long it is on its way after that, seconds; may be set. A packet with a shorter one overtakes.
    delay: float
    #: Whether it is lost; may be set, and counts as a packet error.
    lost: bool


class LinkEffect:
    """Something that happens to the packets of a direction of a link, after the link's own effects.

    ``simulate(…, effects={"satellite.forward": TheObject()})`` gives it.
    """

    def apply(self, packet: Packet) -> None:
        """Acts on a packet. Packets come in the order in which they were offered; those that the queue drops do not."""
