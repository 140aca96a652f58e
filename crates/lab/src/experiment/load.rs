//! How much may run in real time at once: beyond that, packets wait for a CPU, and the machine is measured.
//!
//! A load is counted as the traffic that can cross the links, all of them together, because each link costs
//! as much as the one before it. On a slow day a scenario of 20 Mbit/s over two links takes 7% of two CPUs,
//! one of 10 Mbit/s over three 12%, and six connections over six links of which three are crossed by each
//! 18%; on a good day it is two thirds of that. Where two CPUs are loaded to three quarters, packets wait for
//! one, and a round trip of 25 ms becomes longer: how busy they were, results say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bentpipe_sim::Scenario;
use bentpipe_sim::scenario::Hop;
use bentpipe_units::Rate;

/// What runs on this machine, for this process.
pub(super) static MACHINE: Machine = Machine::idle();

/// The most at once, for measurements.
pub(super) const MEASURED: Load = Load(200_000_000);
/// The same for a quick look, by which nobody measures.
pub(super) const QUICK: Load = Load(900_000_000);
/// How much more QUIC, tunnels and protected legs take than TCP, for which the kernel has segmentation
/// offload: an estimate.
const ENCRYPTED: u64 = 3;
/// Of a scenario that hardly sends anything: its processes and samples.
pub(super) const NEARLY_IDLE: Load = Load(1_000_000);

/// A load, in bit/s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Load(u64);

impl Load {
    /// What a scenario can load the machine with: on each link that its flows cross, the rates of these
    /// flows' slowest links, each once, or its own rate if that is less; and its streams on each of theirs.
    /// Where no link of a flow has a rate, as much as there is.
    pub(super) fn of(scenario: &Scenario) -> Self {
        let mut crossing: BTreeMap<usize, BTreeSet<(u64, usize)>> = BTreeMap::new();
        let mut most: BTreeMap<usize, u64> = BTreeMap::new();
        for flow in &scenario.flows {
            let hops = || flow.legs.iter().flat_map(|leg| &leg.path);
            let rates = hops().filter_map(|hop| Some((rate(scenario, hop)?.bps(), hop.link)));
            let slowest = rates.min().unwrap_or((QUICK.0, usize::MAX));
            for hop in hops() {
                crossing.entry(hop.link).or_default().insert(slowest);
                let own = rate(scenario, hop).map_or(u64::MAX, Rate::bps);
                most.entry(hop.link).and_modify(|most| *most = own.max(*most)).or_insert(own);
            }
        }
        let of_link = |(link, rates): (&usize, &BTreeSet<(u64, usize)>)| {
            rates.iter().fold(0u64, |sum, (rate, _)| sum.saturating_add(*rate)).min(most[link])
        };
        let flows = crossing.iter().map(of_link);
        let streams = scenario.udp.iter().map(|stream| {
            let links: BTreeSet<usize> =
                stream.receivers.iter().flat_map(|receiver| &receiver.path).map(|hop| hop.link).collect();
            stream.rate.bps().saturating_mul(links.len() as u64)
        });
        Self(flows.chain(streams).fold(NEARLY_IDLE.0, u64::saturating_add))
    }

    /// What a trial over a link of this rate can load the machine with: as a scenario with one on the ground,
    /// too.
    pub(super) const fn of_link(rate: Rate) -> Self {
        Self(NEARLY_IDLE.0 + 2 * rate.bps())
    }

    /// What a trial takes that encrypts what it carries, packet by packet.
    pub(super) const fn encrypted(self) -> Self {
        Self(self.0 * ENCRYPTED)
    }

    /// This part of it.
    pub(super) fn part(self, count: usize, of: usize) -> Self {
        Self(self.0 * count as u64 / of.max(1) as u64)
    }
}

fn rate(scenario: &Scenario, hop: &Hop) -> Option<Rate> {
    let link = &scenario.links[hop.link].config;
    if hop.forward { link.forward.rate } else { link.reverse.rate }
}

/// Who waits for turns: an experiment, with all of its runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner(u64);

impl Owner {
    /// One that has had no turn yet.
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A machine whose load is bounded. The owner that has had the least so far has the next turn: an experiment
/// of a few runs, one after the other, does not wait for all runs of a large one each time. Where that turn
/// does not fit yet, others that fit go before it, but not for ever.
#[derive(Debug)]
pub(super) struct Machine {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    load: u64,
    next: u64,
    /// By number.
    waiting: BTreeMap<u64, Waiting>,
    /// The sum of the loads that each owner has had a turn for.
    had: BTreeMap<Owner, u64>,
}

#[derive(Debug)]
struct Waiting {
    owner: Owner,
    load: u64,
    since: Instant,
}

/// How long a load may be overtaken by those that fit.
const PATIENCE: Duration = Duration::from_secs(60);

impl State {
    /// The number whose turn it is, if there is room for it.
    fn whose_turn(&self, most: Load) -> Option<u64> {
        let fits = |waiting: &Waiting| self.load == 0 || self.load + waiting.load <= most.0;
        let place = |(number, waiting): &(&u64, &Waiting)| {
            (self.had.get(&waiting.owner).copied().unwrap_or_default(), **number)
        };
        let (first, of_first) = self.waiting.iter().min_by_key(place)?;
        if fits(of_first) {
            return Some(*first);
        }
        let may_overtake = of_first.since.elapsed() < PATIENCE;
        let others = self.waiting.iter().filter(|(_, waiting)| may_overtake && fits(waiting));
        others.min_by_key(place).map(|(number, _)| *number)
    }
}

/// A load that is on the machine until this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Machine, Load);

impl Machine {
    const fn idle() -> Self {
        let state = State { load: 0, next: 0, waiting: BTreeMap::new(), had: BTreeMap::new() };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits until the machine has room for this load below `most`, or nothing else to do.
    pub(super) fn turn(&self, owner: Owner, load: Load, most: Load) -> Turn<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, Waiting { owner, load: load.0, since: Instant::now() });
        while state.whose_turn(most) != Some(number) {
            state = self.changed.wait(state).expect("nothing panics with it");
        }
        state.waiting.remove(&number);
        *state.had.entry(owner).or_default() += load.0;
        state.load += load.0;
        // The next one may fit beside it.
        self.changed.notify_all();
        Turn(self, load)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics with it")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().load -= self.1.0;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use bentpipe_sim::file::Source;

    use super::*;

    fn load(text: &str, settings: &[&str]) -> u64 {
        let settings: Vec<_> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
        Load::of(&Source::parse("test", text).unwrap().with(&settings).unwrap()).0
    }

    const DUMBBELL: &str = include_str!("../../../../scenarios/dumbbell.toml");
    const BROADCAST: &str = include_str!("../../../../scenarios/broadcast.toml");

    #[test]
    fn each_link_counts_with_what_the_bottlenecks_let_through_and_each_stream_for_itself() {
        assert_eq!(load(DUMBBELL, &[]), 51_000_000, "six flows over 10 Mbit/s, and over five links");
        let two = ["link.uplink.rate=4Mbit/s", "link.metro.rate=3Mbit/s"];
        assert_eq!(
            load(DUMBBELL, &two),
            22_000_000,
            "two bottlenecks, of which all of the flows share one link"
        );
        let narrow = ["link.uplink.rate=8Mbit/s", "link.metro.rate=7Mbit/s"];
        assert_eq!(load(DUMBBELL, &narrow), 41_000_000, "of 8 and 7 Mbit/s no more than 10 pass together");
        let faster = load(BROADCAST, &["udp.broadcast.rate=9Mbit/s"]);
        assert_eq!(faster - load(BROADCAST, &[]), 20_000_000, "instead of 4 Mbit/s, over four links");
    }

    #[test]
    fn the_load_stays_below_the_most_and_everybody_has_a_turn() {
        let (machine, now, peak) = (Machine::idle(), AtomicU64::new(0), AtomicU64::new(0));
        let turns = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for number in 0..64 {
                let (machine, now, peak, turns) = (&machine, &now, &peak, &turns);
                // One of them is larger than what there is.
                let load = if number == 7 { 200 } else { 10 + number % 5 * 10 };
                scope.spawn(move || {
                    let turn = machine.turn(Owner(number % 3), Load(load), Load(100));
                    let sum = now.fetch_add(load, Ordering::SeqCst) + load;
                    if load <= 100 {
                        peak.fetch_max(sum, Ordering::SeqCst);
                    } else {
                        assert_eq!(sum, load, "it is alone");
                    }
                    std::thread::yield_now();
                    now.fetch_sub(load, Ordering::SeqCst);
                    turns.fetch_add(1, Ordering::SeqCst);
                    drop(turn);
                });
            }
        });
        assert_eq!(turns.into_inner(), 64);
        assert!(peak.into_inner() <= 100);
        assert_eq!(machine.lock().load, 0);
    }

    #[test]
    fn who_has_had_least_is_next_and_a_large_one_is_not_overtaken_for_ever() {
        let (often, seldom) = (Owner(0), Owner(1));
        let waiting = |owner, load, seconds| {
            let since = Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
            Waiting { owner, load, since }
        };
        let state = |load, large_for| State {
            load,
            next: 3,
            waiting: BTreeMap::from([
                (0, waiting(often, 10, 0)),
                (1, waiting(often, 20, 0)),
                (2, waiting(seldom, 80, large_for)),
            ]),
            had: BTreeMap::from([(often, 30), (seldom, 20)]),
        };
        let whose_turn = |load, large_for| state(load, large_for).whose_turn(Load(100));
        assert_eq!(whose_turn(20, 0), Some(2), "it comes last, and has had least");
        assert_eq!(whose_turn(30, 0), Some(0), "it does not fit");
        assert_eq!(whose_turn(30, 61), None, "it has waited for long");
        assert_eq!(whose_turn(95, 0), None);
        let alone = State { load: 0, ..state(0, 0) };
        assert_eq!(alone.whose_turn(Load(50)), Some(2), "nothing else runs");
    }
}
