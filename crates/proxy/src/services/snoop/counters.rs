//! The counters of the Snoop thread, for other threads to read.

use bentpipe_link::agent::snoop::SnoopCounters;

use crate::stats::{Counter, SnoopStats};

/// The numbers of [`SnoopStats`]; one thread writes them.
#[derive(Debug, Default)]
pub(super) struct SharedCounters {
    pub(super) packets: Counter,
    pub(super) dropped: Counter,
    pub(super) restarts: Counter,
    cached: Counter,
    not_cached: Counter,
    retransmitted: Counter,
    timed_out: Counter,
    suppressed: Counter,
    sack_hidden: Counter,
    yielded: Counter,
    flows: Counter,
    flows_passed: Counter,
    queue_dropped: Counter,
    queued_bytes: Counter,
    most_queued_bytes: Counter,
    held_bytes: Counter,
    most_held_bytes: Counter,
}

impl SharedCounters {
    /// Takes over what the agent has counted.
    pub(super) fn note(&self, counters: &SnoopCounters) {
        self.cached.set(counters.cached);
        self.not_cached.set(counters.not_cached);
        self.retransmitted.set(counters.retransmitted);
        self.timed_out.set(counters.timed_out);
        self.suppressed.set(counters.suppressed);
        self.sack_hidden.set(counters.sack_hidden);
        self.yielded.set(counters.yielded);
        self.flows.set(counters.flows);
        self.flows_passed.set(counters.flows_passed);
        self.queue_dropped.set(counters.queue_dropped);
        self.queued_bytes.set(counters.queued_bytes);
        self.most_queued_bytes.set(counters.most_queued_bytes);
        self.held_bytes.set(counters.held_bytes);
        self.most_held_bytes.set(counters.most_held_bytes);
    }

    /// Each number is exact; they are not all of the same instant.
    pub(super) fn stats(&self) -> SnoopStats {
        SnoopStats {
            packets: self.packets.get(),
            cached: self.cached.get(),
            not_cached: self.not_cached.get(),
            retransmitted: self.retransmitted.get(),
            timed_out: self.timed_out.get(),
            suppressed: self.suppressed.get(),
            sack_hidden: self.sack_hidden.get(),
            yielded: self.yielded.get(),
            flows: self.flows.get(),
            flows_passed: self.flows_passed.get(),
            queue_dropped: self.queue_dropped.get(),
            queued_bytes: self.queued_bytes.get(),
            most_queued_bytes: self.most_queued_bytes.get(),
            held_bytes: self.held_bytes.get(),
            most_held_bytes: self.most_held_bytes.get(),
            dropped: self.dropped.get(),
            restarts: self.restarts.get(),
        }
    }
}
