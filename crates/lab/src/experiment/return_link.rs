//! Ways back that are thin, bloated or full of uploads, and what thins the acknowledgements there.

use std::time::Duration;

use bentpipe_link::Impairments;
use bentpipe_sim::{FlowResult, Observer, Scenario};
use bentpipe_units::{ByteCount, Probability, Rate, Time};

use super::{Experiment, Lab, Load, Output, over_seeds, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::{Cell, Column, Table};
use crate::topology::PAYLOAD_SHARE;
use crate::trial::{Measured, Trial, WayBack};

const SCENARIO: (&str, &str) =
    ("scenarios/return-link.toml", include_str!("../../../../scenarios/return-link.toml"));
/// The satellite among the scenario's links.
const SATELLITE: usize = 1;

pub(super) const RETURN_LINK: Experiment = Experiment {
    name: "return-link",
    title: "Ways back that are thin, bloated or full",
    source: "ours",
    plan: Plan::doubling(3),
    run: Some(virtual_time),
    on_kernel: Some((3, kernel)),
};

/// The way out.
const RATE: Rate = Rate::mbps(10);
const RTT: Duration = Duration::from_millis(600);
/// A way back of a fiftieth of it.
const THIN: u64 = 200_000;
/// How many trials run at the same time.
const AT_ONCE: usize = 2;
/// The end of a run and of its start, seconds.
const END: u64 = 45;
const STARTED: u64 = 5;

/// The claims' thresholds: what the way out can carry, and, as runs differ by chance, what BBR has.
const OF_LIMIT: f64 = 0.9;
const OF_BBR: f64 = 0.97;

/// Settings of a terminal's kernel, with which it makes fewer acknowledgements: of duplicates one each 20 ms.
const THINNING: [(&str, &str); 2] =
    [("net.ipv4.tcp_comp_sack_delay_ns", "20000000"), ("net.ipv4.tcp_comp_sack_nr", "255")];
/// The receive buffer of a terminal, which does not grow, so that no segment is acknowledged because of it.
const RECEIVE_BUFFER: ByteCount = ByteCount::new(6_000_000);

/// The way back, and what differs besides.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Back {
    /// 1 Mbit/s, and two uploads.
    Full,
    /// A fiftieth of the way out, with a queue of 0.6 s.
    Thin,
    /// The same with a queue of 30 s.
    Bloated,
    /// As full, and the receiver has no timestamps.
    NoTimestamps,
    /// As wide as the way out, on which one packet in a hundred is 10 ms late.
    Reordered,
}

/// A link.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Link {
    back: Back,
    per: f64,
}

const LINKS: [Link; 6] = [
    Link { back: Back::Full, per: 0.01 },
    Link { back: Back::Thin, per: 0.01 },
    Link { back: Back::Bloated, per: 0.0 },
    Link { back: Back::Bloated, per: 0.01 },
    Link { back: Back::NoTimestamps, per: 0.01 },
    Link { back: Back::Reordered, per: 0.01 },
];

/// What is done about it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Scheme {
    /// A box at the gateway.
    One,
    /// One at the terminal as well.
    Two,
    /// The same, whose kernel makes fewer acknowledgements.
    TwoThinned,
    /// A box at the gateway, and an ACK filter at the terminal's end of the link.
    Filtered,
    /// No box, and the server has BBR.
    EndToEnd,
}

impl Back {
    fn label(self) -> &'static str {
        match self {
            Self::Full => "1 Mbit/s, two uploads",
            Self::Thin => "200 kbit/s, queue of 0.6 s",
            Self::Bloated => "200 kbit/s, queue of 30 s",
            Self::NoTimestamps => "1 Mbit/s, two uploads, no timestamps",
            Self::Reordered => "10 Mbit/s, reordering on the way out",
        }
    }

    /// Rate, queue in bytes, uploads.
    fn parameters(self) -> (Rate, u64, usize) {
        let thin = Rate::from_bps(THIN).expect("above zero");
        match self {
            Self::Full | Self::NoTimestamps => (Rate::mbps(1), 75_000, 2),
            Self::Thin => (thin, 15_000, 0),
            Self::Bloated => (thin, 750_000, 0),
            Self::Reordered => (RATE, 750_000, 0),
        }
    }

    fn reordering(self) -> Option<(f64, Duration)> {
        (self == Self::Reordered).then_some((0.01, Duration::from_millis(10)))
    }
}

impl Scheme {
    fn label(self) -> &'static str {
        match self {
            Self::One => "one box",
            Self::Two => "two boxes",
            Self::TwoThinned => "two boxes, thinned by the kernel",
            Self::Filtered => "one box, ACK filter",
            Self::EndToEnd => "BBR end to end",
        }
    }
}

impl Link {
    fn label(self) -> String {
        format!("{}, PER {}%", self.back.label(), 100.0 * self.per)
    }

    /// With a box or an agent at the receiver, what its own system does is out of the question.
    fn schemes(self) -> &'static [Scheme] {
        use Scheme::{EndToEnd, Filtered, One, Two, TwoThinned};
        match self.back {
            Back::NoTimestamps | Back::Reordered => &[One, EndToEnd],
            _ => &[One, Two, TwoThinned, Filtered, EndToEnd],
        }
    }

    fn trial(self, scheme: Scheme, seed: u64) -> Trial {
        let congestion = if scheme == Scheme::EndToEnd { "bbr" } else { "explicit" };
        let two = matches!(scheme, Scheme::Two | Scheme::TwoThinned);
        let (rate, queue, uploads) = self.back.parameters();
        let filter = scheme == Scheme::Filtered;
        let mut receiver = Vec::new();
        if scheme == Scheme::TwoThinned {
            receiver.extend(THINNING);
        }
        if self.back == Back::NoTimestamps {
            receiver.push(("net.ipv4.tcp_timestamps", "0"));
        }
        let part = |part| Probability::new(part).expect("a part of one");
        let reordered = |(reorder, reorder_by)| Impairments {
            reorder: part(reorder),
            reorder_by,
            ..Impairments::default()
        };
        Trial {
            split: scheme != Scheme::EndToEnd,
            terminal: two.then(|| congestion.to_owned()),
            terminal_receive_buffer: (scheme == Scheme::TwoThinned).then_some(RECEIVE_BUFFER),
            way_back: Some(WayBack { filter, uploads, ..WayBack::new(rate, ByteCount::new(queue)) }),
            impairments: self.back.reordering().map(reordered).unwrap_or_default(),
            receiver: receiver.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
            warmup: Duration::from_secs(STARTED),
            lasts: Duration::from_secs(END),
            ..Trial::of_a_minute(RATE, RTT, self.per, congestion, seed)
        }
    }
}

/// A measure of all runs of a link and a scheme.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    of_limit: Sample,
    back_queue_s: Sample,
    /// Packets per second on the way back.
    back_packets: Sample,
}

/// The measures of each link and scheme.
type Rows = Vec<(Link, Scheme, Row)>;

fn kernel(lab: &Lab<'_>) -> Result<Output, Error> {
    let cases = LINKS.iter().flat_map(|&link| link.schemes().iter().map(move |&scheme| (link, scheme)));
    let cases: Vec<(Link, Scheme)> = cases.collect();
    let jobs = cases
        .iter()
        .flat_map(|&(link, scheme)| lab.seeds().map(move |seed| move || link.trial(scheme, seed).run()));
    let measured = rows(lab.side_by_side(AT_ONCE, Load::of_link(RATE), jobs.collect())?, lab.seeds().count());
    let row = |runs: Vec<Measured>| Row {
        of_limit: over_seeds(runs.iter().map(Measured::of_limit)),
        back_queue_s: over_seeds(runs.iter().map(Measured::back_queue_95_s)),
        back_packets: over_seeds(runs.iter().map(|run| run.back_offered.0)),
    };
    let measured = measured.into_iter().map(row);
    let measured: Rows =
        cases.into_iter().zip(measured).map(|((link, scheme), row)| (link, scheme, row)).collect();
    let with_two = |(link, scheme, _): &&(Link, Scheme, Row)| {
        link.back == Back::Bloated && *scheme == Scheme::TwoThinned
    };
    let clean = |(link, scheme, _): &&(Link, Scheme, Row)| {
        link.back == Back::Bloated && link.per == 0.0 && *scheme == Scheme::One
    };
    Ok(Output {
        claims: vec![
            of_limit(
                "With two boxes of which the far one thins, 90% on the bloated way back",
                &measured,
                with_two,
            ),
            of_limit("With one box and without losses, 90% on the bloated way back", &measured, clean),
            of_bbr(&measured),
        ],
        tables: vec![Part::new("links", table("10 Mbit/s, 600 ms, from the fifth second on", &measured))],
        figures: Vec::new(),
    })
}

/// Whether these runs have [`OF_LIMIT`].
fn of_limit(claim: &str, rows: &Rows, which: impl Fn(&&(Link, Scheme, Row)) -> bool) -> Claim {
    let test = |(link, _, row): &(Link, Scheme, Row)| {
        Range::at_least(OF_LIMIT).of_mean(&row.of_limit).at(format!("({})", link.label()))
    };
    Claim::ours(claim).shown_in("%", 0.01, 1).with_all(rows.iter().filter(which).map(test))
}

/// Whether no scheme is below BBR on any link.
fn of_bbr(rows: &Rows) -> Claim {
    let bbr = |link: Link| {
        let is_bbr =
            |(other, scheme, _): &&(Link, Scheme, Row)| *other == link && *scheme == Scheme::EndToEnd;
        &rows.iter().find(is_bbr).expect("each link is tried with BBR").2.of_limit
    };
    let ours = rows.iter().filter(|(_, scheme, _)| *scheme != Scheme::EndToEnd);
    let tests = ours.map(|(link, scheme, row)| {
        let test = Range::at_least(OF_BBR).of_ratio(&row.of_limit, bbr(*link));
        test.at(format!("({}; {})", link.label(), scheme.label()))
    });
    Claim::ours("Nowhere less than BBR has end to end, within 3%").with_all(tests)
}

fn table(title: &str, rows: &Rows) -> Table {
    let columns = vec![
        Column::new("way back", "link"),
        Column::new("", "scheme"),
        Column::new("of the limit", "of_limit").shown_in("%", 0.01),
        Column::new("queue of the way back, 95%", "back_queue_95_s").shown_in("s", 1.0),
        Column::new("packets on the way back", "back_packets_per_s").shown_in("1/s", 1.0),
    ];
    let mut table = Table::new(title, columns);
    for (link, scheme, row) in rows {
        table.push(vec![
            Cell::text(link.label()),
            Cell::text(scheme.label()),
            Cell::interval(Some(&row.of_limit), 1),
            Cell::interval(Some(&row.back_queue_s), 2),
            Cell::interval(Some(&row.back_packets), 0),
        ]);
    }
    table
}

/// A receiver by the published parameters of its system.
#[derive(Debug, Clone, Copy)]
struct Receiver {
    name: &'static str,
    delayed_ack: &'static str,
    ack_every: u32,
    timestamps: bool,
}

/// Linux delays by 40 ms and more; the others are described in docs/scenarios.md.
const RECEIVERS: [Receiver; 3] = [
    Receiver { name: "Linux", delayed_ack: "40ms", ack_every: 2, timestamps: true },
    Receiver { name: "Windows", delayed_ack: "40ms", ack_every: 2, timestamps: false },
    Receiver { name: "macOS", delayed_ack: "100ms", ack_every: 8, timestamps: true },
];

impl Link {
    /// The same in virtual time, where the receiver's kernel thins nothing.
    fn scenario(self, scheme: Scheme, receiver: Receiver, lab: &Lab<'_>) -> Result<Scenario, Error> {
        let (rate, queue, uploads) = self.back.parameters();
        let mut settings = vec![
            format!("duration={END}s"),
            "sample_interval=10ms".into(),
            format!("link.satellite.per={}", self.per),
            format!("link.satellite.reverse={{ rate = \"{rate}\", queue = \"{queue}B\" }}"),
            format!("flow.upload.count={uploads}"),
            format!("tcp.terminal.delayed_ack={}", receiver.delayed_ack),
            format!("tcp.terminal.ack_every={}", receiver.ack_every),
            format!("tcp.terminal.timestamps={}", receiver.timestamps && self.back != Back::NoTimestamps),
        ];
        if scheme == Scheme::Filtered {
            settings.push("link.satellite.ack_filter.at=terminal".into());
        }
        if let Some((part, by)) = self.back.reordering() {
            settings.push(format!("link.satellite.reorder={part}"));
            settings.push(format!("link.satellite.reorder_by={}ms", by.as_millis()));
            // What is late is not lost.
            settings.push("tcp.satellite.lost_retransmissions=false".into());
        }
        lab.scenario(&SCENARIO, &settings)
    }

    /// What any transport could deliver after the start, bytes.
    fn limit(self) -> f64 {
        RATE.bytes_in(Duration::from_secs(END - STARTED)) as f64 * PAYLOAD_SHARE * (1.0 - self.per)
    }
}

/// What the download has received after the start, and the queue of the way back.
#[derive(Debug, Default)]
struct Samples {
    before: u64,
    queue: Vec<u64>,
}

impl Observer for Samples {
    fn wants_samples(&self) -> bool {
        true
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        if flow == 0 && now.as_secs_f64() <= STARTED as f64 {
            self.before = bytes;
        }
    }

    fn queue(
        &mut self,
        now: Time,
        link: usize,
        forward: bool,
        backlog: ByteCount,
        _: &bentpipe_link::Counters,
    ) {
        if link == SATELLITE && !forward && now.as_secs_f64() > STARTED as f64 {
            self.queue.push(backlog.get());
        }
    }
}

fn virtual_time(lab: &Lab<'_>) -> Result<Output, Error> {
    let schemes = [Scheme::One, Scheme::Filtered];
    let links = LINKS.iter().flat_map(|&link| schemes.map(|scheme| (link, scheme, RECEIVERS[0])));
    let bloated = Link { back: Back::Bloated, per: 0.01 };
    let receivers = RECEIVERS.iter().flat_map(|&receiver| schemes.map(|scheme| (bloated, scheme, receiver)));
    let cases: Vec<(Link, Scheme, Receiver)> = links.chain(receivers).collect();
    let scenarios = cases.iter().map(|&(link, scheme, receiver)| link.scenario(scheme, receiver, lab));
    let scenarios = scenarios.collect::<Result<Vec<_>, _>>()?;
    let runs = lab.observe(&scenarios, Samples::default)?;
    let measured = cases.iter().zip(&runs).map(|(&(link, scheme, _), runs)| {
        let back = link.back.parameters().0;
        let of_limit = |(run, samples): (&bentpipe_sim::RunResult, &Samples)| {
            let FlowResult { bytes, .. } = run.flows[0];
            (bytes - samples.before) as f64 / link.limit()
        };
        let queue = |samples: &Samples| {
            let mut queue = samples.queue.clone();
            queue.sort_unstable();
            back.time_for(queue[queue.len() * 95 / 100]).as_secs_f64()
        };
        let packets =
            |run: &bentpipe_sim::RunResult| run.links[SATELLITE].reverse.offered as f64 / END as f64;
        let row = Row {
            of_limit: over_seeds(runs.results().zip(runs.observers()).map(of_limit)),
            back_queue_s: runs.observed(queue),
            back_packets: runs.sample(packets),
        };
        (link, scheme, row)
    });
    let mut measured: Rows = measured.collect();
    let of_receivers = measured.split_off(LINKS.len() * schemes.len());
    let filtered =
        |(link, scheme, _): &&(Link, Scheme, Row)| link.back == Back::Bloated && *scheme == Scheme::Filtered;
    let all_filtered = |(_, scheme, _): &&(Link, Scheme, Row)| *scheme == Scheme::Filtered;
    Ok(Output {
        claims: vec![
            of_limit("With an ACK filter, 90% on the bloated way back", &measured, filtered),
            of_limit(
                "The same with receivers like those of Linux, Windows and macOS",
                &of_receivers,
                all_filtered,
            ),
        ],
        tables: vec![
            Part::new("links", table("10 Mbit/s, 600 ms, from the fifth second on", &measured)),
            Part::new("receivers", receivers_table(&of_receivers)),
        ],
        figures: Vec::new(),
    })
}

/// The bloated way back with receivers of other systems.
fn receivers_table(rows: &Rows) -> Table {
    let columns = vec![
        Column::new("receiver", "receiver"),
        Column::new("", "scheme"),
        Column::new("of the limit", "of_limit").shown_in("%", 0.01),
        Column::new("queue of the way back, 95%", "back_queue_95_s").shown_in("s", 1.0),
    ];
    let mut table = Table::new("The bloated way back by the receiver's delayed acknowledgements", columns);
    let per_receiver = rows.len() / RECEIVERS.len();
    for ((_, scheme, row), index) in rows.iter().zip(0..) {
        table.push(vec![
            Cell::text(RECEIVERS[index / per_receiver].name),
            Cell::text(scheme.label()),
            Cell::interval(Some(&row.of_limit), 1),
            Cell::interval(Some(&row.back_queue_s), 2),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::in_virtual_time;

    #[test]
    fn in_virtual_time_an_ack_filter_keeps_a_bloated_way_back_short() {
        let results = in_virtual_time(&RETURN_LINK, 2);
        assert_eq!(results.contradicted().count(), 0, "{:#?}", results.verdicts);
        let shares = results.tables[1].content.to_csv();
        let filtered = shares.lines().filter(|line| line.contains("ACK filter"));
        let share = |line: &str| line.split(',').nth(3).unwrap().parse::<f64>().unwrap();
        assert!(filtered.clone().count() == RECEIVERS.len(), "{shares}");
        assert!(filtered.map(share).all(|share| share >= OF_LIMIT), "{shares}");
    }
}
