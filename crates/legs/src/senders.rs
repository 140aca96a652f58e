//! Senders over a leg that are not TCP connections: each reports what it has sent and what has arrived, and
//! has a rate among the leg's connections.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bentpipe_link::explicit::Report;

/// The numbers of senders have this bit, those of connections have not: they are socket cookies, which count
/// from 1.
const SENDER: u64 = 1 << 63;

/// The senders of all legs, which the rate controller asks in each round. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Senders(Arc<Mutex<Registry>>);

#[derive(Debug, Default)]
struct Registry {
    count: u64,
    senders: Vec<Weak<State>>,
}

/// One of them. It is forgotten when this is dropped.
#[derive(Debug)]
pub struct Sender(Arc<State>);

#[derive(Debug)]
struct State {
    leg: String,
    id: u64,
    report: Mutex<Option<Report>>,
    /// Bytes on the wire per second; zero while it has none.
    rate: AtomicU64,
    /// What it may send until it has one.
    initial: AtomicU64,
}

impl Senders {
    /// A new sender over the leg of this name.
    pub fn register(&self, leg: &str) -> Sender {
        let mut registry = self.lock();
        registry.count += 1;
        let state = Arc::new(State {
            leg: leg.to_owned(),
            id: SENDER | registry.count,
            report: Mutex::default(),
            rate: AtomicU64::new(0),
            initial: AtomicU64::new(0),
        });
        registry.senders.retain(|sender| sender.strong_count() > 0);
        registry.senders.push(Arc::downgrade(&state));
        Sender(state)
    }

    /// The reports of a leg's senders, added to `reports`. Those that are idle have no rate afterwards.
    pub(crate) fn report(&self, leg: &str, reports: &mut Vec<Report>) {
        for state in self.of(leg) {
            match *state.report() {
                Some(report) => reports.push(Report { id: state.id, ..report }),
                None => state.rate.store(0, Ordering::Relaxed),
            }
        }
    }

    /// Sets the rate of the sender with this number, bytes on the wire per second.
    pub(crate) fn set_rate(&self, id: u64, rate: u64) {
        let lock = self.lock();
        if let Some(state) = lock.senders.iter().filter_map(Weak::upgrade).find(|state| state.id == id) {
            state.rate.store(rate, Ordering::Relaxed);
        }
    }

    /// Sets what senders of a leg may send before they have a rate.
    pub(crate) fn set_initial(&self, leg: &str, rate: u64) {
        for state in self.of(leg) {
            state.initial.store(rate, Ordering::Relaxed);
        }
    }

    fn of(&self, leg: &str) -> Vec<Arc<State>> {
        let alive = self.lock().senders.iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        alive.into_iter().filter(|state| state.leg == leg).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender {
    /// What the controller hears in its next round; `None` if there is nothing to send and nothing in flight.
    /// The number in the report is not looked at.
    pub fn report(&self, report: Option<Report>) {
        *self.0.report() = report;
    }

    /// What it may send, bytes on the wire per second; `None` where no controller sets it.
    pub fn rate(&self) -> Option<f64> {
        let rates = [&self.0.rate, &self.0.initial].map(|rate| rate.load(Ordering::Relaxed));
        rates.into_iter().find(|rate| *rate > 0).map(|rate| rate as f64)
    }
}

impl State {
    fn report(&self) -> MutexGuard<'_, Option<Report>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_units::Time;

    const REPORT: Report = Report {
        id: 0,
        weight: 1,
        at: Time::ZERO,
        sent: 7,
        delivered: 5,
        lost: 1,
        in_flight: true,
        rtt: None,
        min_rtt: None,
        forward: None,
        window_limited: false,
        backlogged: true,
    };

    fn reports(senders: &Senders, leg: &str) -> Vec<Report> {
        let mut reports = Vec::new();
        senders.report(leg, &mut reports);
        reports
    }

    #[test]
    fn a_sender_reports_and_obeys_on_its_leg() {
        let senders = Senders::default();
        let [one, other] = ["a", "b"].map(|leg| senders.register(leg));
        one.report(Some(REPORT));
        assert!(reports(&senders, "b").is_empty());
        let report = reports(&senders, "a")[0];
        assert_eq!((report.sent, report.id & SENDER), (7, SENDER));
        senders.set_rate(report.id, 1000);
        assert_eq!((one.rate(), other.rate()), (Some(1000.0), None));
    }

    #[test]
    fn an_idle_sender_begins_again_with_the_initial_rate() {
        let senders = Senders::default();
        let sender = senders.register("a");
        sender.report(Some(REPORT));
        senders.set_rate(reports(&senders, "a")[0].id, 1000);
        senders.set_initial("a", 300);
        assert_eq!(sender.rate(), Some(1000.0));
        sender.report(None);
        assert!(reports(&senders, "a").is_empty());
        assert_eq!(sender.rate(), Some(300.0));
    }

    #[test]
    fn a_sender_that_has_ended_is_forgotten() {
        let senders = Senders::default();
        let sender = senders.register("a");
        sender.report(Some(REPORT));
        drop(sender);
        assert!(reports(&senders, "a").is_empty());
    }
}
