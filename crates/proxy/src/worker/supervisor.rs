//! Supervises a worker: one that panics is replaced, with the same listeners and without its flows.
//!
//! The listeners are part of the [`Worker`], which lives outside what is caught of a panic. Connections that
//! wait in their queues stay there, since no listener is closed, and the worker that comes next accepts them.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::{FlowLimits, Worker};
use crate::connect::early_data::AwaitingData;
use crate::relay::pool::BufferPool;
use crate::stats::Stats;

/// A worker that fails so often within this time will fail again.
const MOST_FAILURES: usize = 5;
const PERIOD: Duration = Duration::from_secs(60);

/// The moments of a worker's last failures.
#[derive(Debug, Default)]
struct Failures(VecDeque<Instant>);

impl Worker {
    /// Serves until it is told to stop, or has exported everything; starts anew where it fails.
    ///
    /// # Errors
    /// It fails again and again, and serves no more.
    pub(crate) fn supervise(mut self, index: usize) -> Result<(), String> {
        let mut failures = Failures::default();
        loop {
            let Err(reason) = attempt(|| self.run()) else { return Ok(()) };
            let lost = self.reset_flows();
            tracing::error!("worker {index} failed: {reason}; its {lost} connections are reset");
            if failures.note(Instant::now()) {
                return Err(format!(
                    "worker {index} failed {MOST_FAILURES} times in {PERIOD:?}, last: {reason}"
                ));
            }
            self = attempt(|| self.replacement()).map_err(|error| {
                format!("worker {index} failed: {reason}; it cannot be replaced: {error}")
            })?;
            self.counters.worker_restarts.add(1);
        }
    }

    /// Resets every flow, and returns how many there were. Their state may be anything.
    fn reset_flows(&mut self) -> u64 {
        if let Err(reason) = attempt(|| {
            self.log_the_rest();
            Ok(())
        }) {
            tracing::error!("the access log lacks connections of the worker: {reason}");
        }
        let flows = std::mem::take(&mut self.flows);
        let awaiting_data = std::mem::replace(&mut self.awaiting_data, AwaitingData::new());
        let (kind, most) = (self.pool.kind(), self.pool.most);
        let pool = std::mem::replace(&mut self.pool, BufferPool::new(kind));
        self.pool.most = most;
        if let Err(reason) = attempt(|| {
            drop((flows, awaiting_data, pool));
            Ok(())
        }) {
            tracing::error!("a connection could not be ended in order: {reason}");
        }
        if self.resume_accepting.take().is_some() {
            self.shared.admission.set_short_of_descriptors(false);
        }
        let lost = Stats::sum([&*self.counters]).flows_open;
        self.counters.flows_reset.add(lost);
        self.counters.relay_buffers_in_use.set(0);
        self.counters.buffered.set(0);
        lost
    }

    /// A worker in this one's place, which has its listeners, its limits, and the commands for it.
    fn replacement(&mut self) -> io::Result<Self> {
        let (shared, pending) = (self.shared.clone(), self.pending.clone());
        let (mailbox, counters) = (self.mailbox.clone(), self.counters.clone());
        let mut worker = Self::new(self.pool.kind(), shared, pending, mailbox, counters)?;
        worker.set_flow_limits(FlowLimits { patience: self.patience, held: self.pool.most });
        worker.rejoin_until = self.rejoin_until;
        worker.commands = std::mem::take(&mut self.commands);
        for listener in std::mem::take(&mut self.listeners).into_values() {
            worker.listen(listener);
        }
        worker.next_retirement = worker.first_retirement();
        // It looks at the commands when it is woken.
        worker.mailbox.wake();
        Ok(worker)
    }
}

impl Failures {
    /// Notes one; true if there are too many now.
    fn note(&mut self, now: Instant) -> bool {
        self.0.retain(|earlier| now.saturating_duration_since(*earlier) < PERIOD);
        self.0.push_back(now);
        self.0.len() >= MOST_FAILURES
    }
}

/// Does something that may fail or panic, and returns why it did. Nothing that it leaves behind is trusted.
fn attempt<T>(work: impl FnOnce() -> io::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome.map_err(|error| error.to_string()),
        Err(panic) => Err(format!("panicked: {}", message_of(&*panic))),
    }
}

/// What a panic says.
fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_in_a_minute_are_too_many_and_five_in_an_hour_are_not() {
        let start = Instant::now();
        let too_many = |interval: Duration| {
            let mut failures = Failures::default();
            (0..20).position(|number| failures.note(start + interval * number))
        };
        assert_eq!(too_many(Duration::from_secs(1)), Some(4));
        assert_eq!(too_many(Duration::from_secs(14)), Some(4));
        assert_eq!(too_many(Duration::from_secs(15)), None);
    }

    #[test]
    fn a_failure_is_an_error_or_a_panic_with_its_message() {
        assert_eq!(attempt(|| Ok(7)), Ok(7));
        let failed = |work: fn() -> io::Result<()>| attempt(work).unwrap_err();
        assert!(failed(|| Err(io::ErrorKind::OutOfMemory.into())).contains("out of memory"));
        assert_eq!(failed(|| panic!("at {}", 7)), "panicked: at 7");
        assert_eq!(failed(|| panic!("here")), "panicked: here");
        assert_eq!(failed(|| std::panic::panic_any(7)), "panicked: without a message");
    }
}
