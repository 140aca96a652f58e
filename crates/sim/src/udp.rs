//! UDP streams: the tree that a datagram takes from its source to its receivers, and what became of each.

use bentpipe_units::Time;
use serde::Serialize;

use crate::scenario::{Hop, Scenario, UdpSpec};

/// The results of a UDP stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UdpResult {
    /// Its name.
    pub name: String,
    /// Datagrams sent until the end of the run.
    pub sent: u64,
    /// What each of its receivers got, in the scenario's order.
    pub receivers: Vec<UdpReceiverResult>,
}

/// What a receiver of a UDP stream got.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct UdpReceiverResult {
    /// The name of its node.
    pub node: String,
    /// Datagrams received, each once.
    pub received: u64,
    /// Datagrams that did not arrive though there was time. Those that were sent less than the longest delay
    /// before the end of the run do not count: they may have been on their way.
    pub lost: u64,
    /// The share of the lost ones in the lost and the received ones, 0 to 1.
    pub loss: f64,
    /// Datagrams that arrived again.
    pub duplicates: u64,
    /// The delay from the source, in seconds, that half of the received ones did not exceed; `null` if none
    /// was received.
    pub delay_50_s: Option<f64>,
    /// That which 95% of them did not exceed.
    pub delay_95_s: Option<f64>,
}

/// When the datagrams of a stream arrived at one of its receivers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UdpArrivals {
    /// By number; [`Time::MAX`] for one that did not arrive.
    first: Vec<Time>,
    duplicates: u64,
}

impl UdpArrivals {
    /// The datagram of this number, from 0 on, arrives.
    pub fn arrive(&mut self, number: u32, at: Time) {
        let number = number as usize;
        if self.first.len() <= number {
            self.first.resize(number + 1, Time::MAX);
        }
        match &mut self.first[number] {
            first if *first == Time::MAX => *first = at,
            _ => self.duplicates += 1,
        }
    }

    fn result(&self, node: &str, sent: &[Time], end: Time) -> UdpReceiverResult {
        let arrivals = self.first.iter().copied().chain(std::iter::repeat(Time::MAX));
        // On the kernel a receiver may notice the end of the run a moment later.
        let arrivals = arrivals.map(|first| if first > end { Time::MAX } else { first });
        let arrived = |(sent, first): (Time, Time)| (first != Time::MAX).then(|| first.since(sent));
        let pairs = || sent.iter().copied().zip(arrivals.clone());
        let mut delays: Vec<_> = pairs().filter_map(arrived).collect();
        delays.sort_unstable();
        let longest = delays.last().copied().unwrap_or_default();
        let lost =
            pairs().filter(|&(sent, first)| first == Time::MAX && sent + longest <= end).count() as u64;
        let received = delays.len() as u64;
        // The nearest rank: the smallest delay that the share of them does not exceed.
        let percentile = |percent: usize| {
            let rank = (delays.len() * percent).div_ceil(100).checked_sub(1)?;
            Some(delays[rank].as_secs_f64())
        };
        UdpReceiverResult {
            node: node.to_owned(),
            received,
            lost,
            loss: lost as f64 / (lost + received).max(1) as f64,
            duplicates: self.duplicates,
            delay_50_s: percentile(50),
            delay_95_s: percentile(95),
        }
    }
}

impl UdpResult {
    /// The result of a stream of a scenario in a run of either world that ended at `end`. `sent` has the time
    /// of each datagram, `arrivals` an element for each receiver.
    pub fn of(
        scenario: &Scenario,
        spec: &UdpSpec,
        sent: &[Time],
        arrivals: &[UdpArrivals],
        end: Time,
    ) -> Self {
        let receivers = spec.receivers.iter().zip(arrivals);
        Self {
            name: spec.name.clone(),
            sent: sent.len() as u64,
            receivers: receivers
                .map(|(receiver, arrivals)| arrivals.result(&scenario.nodes[receiver.node], sent, end))
                .collect(),
        }
    }
}

/// The streams of a run, and their trees cut into branches.
#[derive(Debug, Default)]
pub(crate) struct UdpStreams {
    pub(crate) streams: Vec<UdpStream>,
    /// Of all streams; each takes the path of an attachment of its own.
    pub(crate) branches: Vec<Branch>,
}

/// A stream that runs.
#[derive(Debug)]
pub(crate) struct UdpStream {
    pub(crate) sent: Vec<Time>,
    /// The branches that start at its source, among all.
    pub(crate) roots: Vec<u32>,
    pub(crate) arrivals: Vec<UdpArrivals>,
}

/// A part of a stream's tree without a fork or a receiver but at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Branch {
    pub(crate) stream: u32,
    pub(crate) path: Vec<Hop>,
    /// The receiver at its end, among those of the stream.
    pub(crate) receiver: Option<u32>,
    /// The branches that go on from its end, among all.
    pub(crate) next: Vec<u32>,
}

impl UdpStreams {
    /// Adds a stream, and its branches behind those that are there.
    pub(crate) fn add(&mut self, spec: &UdpSpec) {
        let paths: Vec<(u32, &[Hop])> =
            (0..).zip(&spec.receivers).map(|(number, receiver)| (number, &receiver.path[..])).collect();
        let roots = self.grow(self.streams.len() as u32, &paths);
        let arrivals = vec![UdpArrivals::default(); spec.receivers.len()];
        self.streams.push(UdpStream { sent: Vec::new(), roots, arrivals });
    }

    /// The branches from one node to some receivers, each of which is at least one link away.
    fn grow(&mut self, stream: u32, receivers: &[(u32, &[Hop])]) -> Vec<u32> {
        let mut firsts: Vec<Hop> = Vec::new();
        for (_, path) in receivers {
            if !firsts.contains(&path[0]) {
                firsts.push(path[0]);
            }
        }
        let mut branches = Vec::new();
        for first in firsts {
            let mine: Vec<_> = receivers.iter().copied().filter(|(_, path)| path[0] == first).collect();
            let shared = shared_links(&mine);
            let behind = |(number, path): &(u32, &'_ [Hop])| (*number, path.len());
            let receiver = mine.iter().map(behind).find(|&(_, links)| links == shared);
            let further: Vec<_> = mine
                .iter()
                .filter(|(_, path)| path.len() > shared)
                .map(|&(number, path)| (number, &path[shared..]))
                .collect();
            let next = self.grow(stream, &further);
            branches.push(self.branches.len() as u32);
            self.branches.push(Branch {
                stream,
                path: mine[0].1[..shared].to_vec(),
                receiver: receiver.map(|(number, _)| number),
                next,
            });
        }
        branches
    }

    pub(crate) fn results(&self, scenario: &Scenario, end: Time) -> Vec<UdpResult> {
        let streams = scenario.udp.iter().zip(&self.streams);
        streams
            .map(|(spec, stream)| UdpResult::of(scenario, spec, &stream.sent, &stream.arrivals, end))
            .collect()
    }
}

/// How many links all paths have in common, from their first on.
fn shared_links(paths: &[(u32, &[Hop])]) -> usize {
    let (_, first) = paths[0];
    let is_shared = |&at: &usize| paths.iter().all(|(_, path)| path.get(at) == Some(&first[at]));
    (0..first.len()).take_while(is_shared).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::UdpReceiver;
    use bentpipe_units::Rate;

    fn hops(links: &[usize]) -> Vec<Hop> {
        links.iter().map(|&link| Hop { link, forward: true }).collect()
    }

    fn spec(paths: &[&[usize]]) -> UdpSpec {
        let receiver = |(node, links): (usize, &&[usize])| UdpReceiver { node: node + 1, path: hops(links) };
        UdpSpec {
            name: "stream".into(),
            rate: Rate::mbps(1),
            packet: 1250,
            start: Time::from_nanos(5),
            end: Time::from_nanos(10_000_006),
            source: 0,
            receivers: paths.iter().enumerate().map(receiver).collect(),
        }
    }

    #[test]
    fn datagrams_are_sent_at_the_rate_and_the_last_one_before_the_end() {
        let spec = spec(&[&[0]]);
        assert_eq!(spec.sent_at(3), Time::from_nanos(30_000_005));
        assert_eq!(spec.datagrams(), 2, "at 5 and at 10,000,005 ns");
        assert_eq!(UdpSpec { end: Time::from_nanos(10_000_005), ..spec }.datagrams(), 1);
    }

    #[test]
    fn paths_are_one_branch_as_far_as_they_are_common_and_end_where_somebody_receives() {
        let mut streams = UdpStreams::default();
        // 0 ─0─ 1 ─1─ 2 ┬2─ 3
        //                └3─ 4, and receivers at 1, 3 and 4.
        streams.add(&spec(&[&[0, 1, 2], &[0], &[0, 1, 3]]));
        let [stream] = &streams.streams[..] else { panic!("{streams:?}") };
        let root = &streams.branches[stream.roots[0] as usize];
        assert_eq!((&root.path, root.receiver, stream.roots.len()), (&hops(&[0]), Some(1), 1));
        let middle = &streams.branches[root.next[0] as usize];
        assert_eq!((&middle.path, middle.receiver, root.next.len()), (&hops(&[1]), None, 1));
        let leaves: Vec<_> = middle.next.iter().map(|&branch| &streams.branches[branch as usize]).collect();
        assert_eq!(leaves.iter().map(|leaf| leaf.receiver).collect::<Vec<_>>(), [Some(0), Some(2)]);
        assert_eq!([&leaves[0].path, &leaves[1].path], [&hops(&[2]), &hops(&[3])]);
    }

    #[test]
    fn what_may_be_on_its_way_at_the_end_is_not_lost() {
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        let sent: Vec<Time> = (0..10).map(|number| at(100 * number)).collect();
        let mut arrivals = UdpArrivals::default();
        // Number 3 is lost; 7 to 9 may be on their way when the run ends at 1 s, after a delay of 301 ms.
        for number in [0, 1, 2, 5, 4, 6, 6] {
            arrivals.arrive(number, at(100 * u64::from(number) + 300 + u64::from(number == 5)));
        }
        let result = arrivals.result("node", &sent, at(1000));
        assert_eq!((result.received, result.lost, result.duplicates), (6, 1, 1));
        assert_eq!((result.delay_50_s, result.delay_95_s), (Some(0.3), Some(0.301)));
        assert!((result.loss - 1.0 / 7.0).abs() < 1e-9);
        let nothing = UdpArrivals::default().result("node", &sent, at(1000));
        assert_eq!((nothing.received, nothing.lost, nothing.delay_95_s), (0, 10, None));
    }
}
