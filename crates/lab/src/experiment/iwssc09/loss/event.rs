//! The event of the publication's figures: three losses in about a round trip, after some that are alone. They
//! are prescribed, so that nothing is random.

use std::ops::Range;

use bentpipe_link::{Cause, Counters};
use bentpipe_sim::Observer;
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::{ByteCount, Time};

use super::{
    DELAYS_MS, IMPATIENT, Lab, MBIT, Output, P_XCP, PACKET, RECOVERIES, RENO, Runs, SATELLITE, SCENARIO,
    STEADY, Scheme, VARIANTS, at_delay,
};
use crate::Error;
use crate::claim::{self, Claim};
use crate::experiment::rows;
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::Part;
use crate::statistics::Estimate;
use crate::table::{Cell, Column, Table};

/// The link's rate, bits per second: the publication's window of 80 packets in a round trip of 500 ms.
const RATE: f64 = 2e6;
/// Bits of a packet.
const PACKET_BITS: f64 = 12_000.0;
/// The packets that are lost alone, by number; 167 are sent in a second.
const ALONE: [u64; 4] = [2000, 4000, 6000, 12_000];
/// The first of the three that are lost together, before the 60th second as in the figures.
const FIRST: u64 = 9000;
/// Losses before that one.
const BEFORE: u64 = 3;
/// How much of a round trip lies between the first and the last of the three, percent: within one, and beyond
/// the packet with which the repair of the first begins, which leaves a round trip and a few packets later.
const WITHIN: [u64; 4] = [50, 75, 100, 101];
const BEYOND: [u64; 2] = [110, 125];
/// Where between these two the one in the middle is, in quarters.
const MIDDLES: [u64; 3] = [1, 2, 3];
const EVENTS: usize = (WITHIN.len() + BEYOND.len()) * MIDDLES.len();
/// The events of each kind, by index.
const EVENTS_WITHIN: Range<usize> = 0..WITHIN.len() * MIDDLES.len();
const EVENTS_BEYOND: Range<usize> = EVENTS_WITHIN.end..EVENTS;
/// The events that the figures show, each with half of the span between one loss and the next.
pub(super) const SHOWN: usize = 7;
pub(super) const SHOWN_BEYOND: usize = EVENTS_BEYOND.start + 1;
/// Round trips after the event in which throughput and windows are compared.
const AFTER: f64 = 20.0;
/// A retransmission timeout far above the round trip, seconds.
const PATIENT_RTO_S: u32 = 5;

/// The three packets that are lost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    delay_ms: u32,
    middle: u64,
    last: u64,
}

impl Event {
    /// All at this delay.
    pub(super) fn all(delay_ms: u32) -> [Self; EVENTS] {
        let round_trip = (RATE * rtt_s(delay_ms) / PACKET_BITS) as u64;
        std::array::from_fn(|index| {
            let mut spans = WITHIN.into_iter().chain(BEYOND);
            let percent = spans.nth(index / MIDDLES.len()).expect("an index is one of an event");
            let span = (round_trip * percent).div_ceil(100);
            let middle = FIRST + span * MIDDLES[index % MIDDLES.len()] / 4;
            Self { delay_ms, middle, last: FIRST + span }
        })
    }

    /// The settings of a run with it; `more` may be empty.
    pub(super) fn settings(self, variant: Scheme, recovery: usize, more: &[String]) -> Vec<String> {
        let Self { delay_ms, middle, last } = self;
        let [one, two, three, four] = ALONE;
        let own = [
            "duration=90s".to_owned(),
            "flow.limited.count=0".to_owned(),
            format!("link.satellite.rate={RATE}bit/s"),
            "link.fast.rate=20Mbit/s".to_owned(),
            format!("link.satellite.delay={delay_ms}ms"),
            format!("link.satellite.losses=[{one}, {two}, {three}, {FIRST}, {middle}, {last}, {four}]"),
            format!("tcp.satellite.recovery={}", RECOVERIES[recovery].1),
        ];
        variant.with(own.into_iter().chain(more.iter().cloned()))
    }
}

fn rtt_s(delay_ms: u32) -> f64 {
    2.0 * f64::from(delay_ms) / 1e3
}

/// The satellite leg over time.
#[derive(Debug, Default)]
pub(super) struct Course {
    samples: Vec<Sample>,
    windows: Vec<(f64, f64)>,
}

/// The link's counters at a time.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: f64,
    bits: f64,
    lost: u64,
    dropped: u64,
}

impl Observer for Course {
    fn wants_samples(&self) -> bool {
        true
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, _: ByteCount, counters: &Counters) {
        if link == SATELLITE && forward {
            self.samples.push(Sample {
                at: now.as_secs_f64(),
                bits: 8.0 * counters.delivered_bytes as f64,
                lost: counters.dropped(Cause::PacketError),
                dropped: counters.dropped(Cause::QueueFull),
            });
        }
    }

    fn variables(&mut self, now: Time, _: usize, leg: usize, variables: &Variables, _: &Statistics) {
        if leg == 1 {
            self.windows.push((now.as_secs_f64(), variables.cwnd as f64 / PACKET));
        }
    }
}

impl Course {
    /// When so many packets had been lost.
    fn time_of_loss(&self, number: u64) -> f64 {
        self.samples.iter().find(|sample| sample.lost >= number).map_or(f64::INFINITY, |sample| sample.at)
    }

    /// What the link had delivered by a time, bits.
    fn bits_at(&self, time: f64) -> f64 {
        self.samples.iter().take_while(|sample| sample.at <= time).last().map_or(0.0, |sample| sample.bits)
    }

    /// The throughput in the second before each of these times, bits per second.
    fn throughput(&self, times: impl Iterator<Item = f64>) -> impl Iterator<Item = (f64, f64)> {
        times.map(|time| (time, self.bits_at(time) - self.bits_at(time - 1.0)))
    }

    /// The part of the rate that the worst second within so many seconds of a loss had.
    fn worst_second_after_loss(&self, number: u64, seconds: u32) -> f64 {
        let from = self.time_of_loss(number);
        let times = (10..=10 * seconds).map(|tenths| from + f64::from(tenths) / 10.0);
        self.throughput(times).map(|(_, bps)| bps / RATE).fold(f64::INFINITY, f64::min)
    }

    /// The same of the second loss, which is alone.
    pub(super) fn after_second_loss(&self) -> f64 {
        self.worst_second_after_loss(2, AFTER_LONE_LOSS_S)
    }

    /// The throughput of each second, with its end, bits per second.
    pub(super) fn by_second(&self) -> impl Iterator<Item = (f64, f64)> {
        self.throughput((1..=90).map(f64::from))
    }

    /// The part of the rate that the link carried in the round trips after the event.
    pub(super) fn carried_after_event(&self, delay_ms: u32) -> f64 {
        let from = self.time_of_loss(BEFORE + 1);
        let lasts = AFTER * rtt_s(delay_ms);
        (self.bits_at(from + lasts) - self.bits_at(from)) / (RATE * lasts)
    }

    /// The largest window in the round trips after the event, of that at its beginning.
    pub(super) fn growth_after_event(&self, delay_ms: u32) -> f64 {
        let from = self.time_of_loss(BEFORE + 1);
        let until = from + AFTER * rtt_s(delay_ms);
        let before = self.windows.iter().take_while(|(at, _)| *at <= from).last().map_or(1.0, |last| last.1);
        let after = self.windows.iter().filter(|(at, _)| (from..until).contains(at));
        after.map(|(_, window)| window / before).fold(0.0, f64::max)
    }

    /// Packets that the full queue dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.samples.last().map_or(0, |sample| sample.dropped)
    }
}

/// The runs by delay: those of P-XCP by recovery and event, those with a long timeout by event, and one of XCP.
struct Events {
    delay_ms: u32,
    p_xcp: Vec<Vec<Runs<Course>>>,
    patient: Vec<Runs<Course>>,
    xcp: Runs<Course>,
}

impl Events {
    fn run(lab: &Lab<'_>, delay_ms: u32) -> Result<Self, Error> {
        let events = Event::all(delay_ms);
        let recoveries: Vec<usize> = (0..RECOVERIES.len()).collect();
        let p_xcp = lab.scenarios(&SCENARIO, &recoveries, &events, |recovery, event| {
            event.settings(VARIANTS[P_XCP], recovery, &[])
        })?;
        let far = [format!("tcp.satellite.rto.min={PATIENT_RTO_S}s")];
        let patient = lab.scenarios(&SCENARIO, &[IMPATIENT], &events, |recovery, event| {
            event.settings(VARIANTS[P_XCP], recovery, &far)
        })?;
        let xcp = lab.scenario(&SCENARIO, &events[SHOWN].settings(VARIANTS[0], RENO, &[]))?;
        Ok(Self {
            delay_ms,
            p_xcp: rows(lab.observe(&p_xcp, Course::default)?, EVENTS),
            patient: lab.observe(&patient, Course::default)?,
            xcp: lab.observe(&[xcp], Course::default)?.remove(0),
        })
    }

    /// Events by index, with their names.
    fn places(&self, which: Range<usize>) -> impl Iterator<Item = (usize, String)> {
        let delay_ms = self.delay_ms;
        Event::all(delay_ms).into_iter().enumerate().skip(which.start).take(which.len()).map(
            move |(index, Event { middle, last, .. })| {
                (index, format!("{}, packets {FIRST}, {middle}, {last}", at_delay(delay_ms)))
            },
        )
    }
}

fn timeouts(runs: &Runs<Course>) -> f64 {
    runs.first_flow(|flow| flow.legs[1].timeouts as f64).mean()
}

fn course(runs: &Runs<Course>) -> &Course {
    &runs.0[0].1
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let lab = lab.with_one_seed();
    let events =
        DELAYS_MS.into_iter().map(|delay| Events::run(&lab, delay)).collect::<Result<Vec<_>, _>>()?;
    Ok(Output {
        claims: vec![
            falls(&events),
            stays(&events),
            times_out(&events, RENO, "section IV: \"one lost packet followed by a couple of packet losses\""),
            times_out(&events, IMPATIENT, "section V-A, figures 4 and 5"),
            does_not_time_out(&events),
            because_the_timeout_is_near(&events),
            recovers_faster(&events),
            window_grows(&events[0]),
            times_out_beyond(&events),
            queue_holds(&events),
        ],
        tables: vec![Part::new("event", table(&events))],
        figures: vec![
            Part::new("throughput", throughput_plot(&events[0])),
            Part::new("event-windows", window_plot(&events[0])),
        ],
    })
}

/// Every test of one measure of the runs of one recovery, at both delays.
fn at_each_event<'a>(
    events: &'a [Events],
    which: Range<usize>,
    range: claim::Range,
    measure: impl Fn(&Events, usize) -> f64 + Copy + 'a,
) -> impl Iterator<Item = claim::Test> + 'a {
    events.iter().flat_map(move |events| {
        let tests = events.places(which.clone());
        tests.map(move |(event, place)| range.of_exact(measure(events, event)).at(place))
    })
}

/// The seconds after a lone loss in which throughput is looked at.
const AFTER_LONE_LOSS_S: u32 = 5;
/// What "drops" (figure 2) and "no effect" (figure 3) are taken for: parts of the rate in the worst second.
pub(super) const FALLEN: f64 = 0.75;
pub(super) const STAYED: f64 = 0.9;

fn falls(events: &[Events]) -> Claim {
    let tests = events.iter().flat_map(|events| {
        let place = format!("{}, the second loss", at_delay(events.delay_ms));
        [claim::Range::at_most(FALLEN).of_exact(course(&events.xcp).after_second_loss()).at(place)]
    });
    falling().with_all(tests)
}

/// The claim without its tests.
pub(super) fn falling() -> Claim {
    Claim::stated(
        "XCP's throughput falls at a lone loss: within 5 s a second has at most 75% of the rate",
        "section IV, figure 2",
    )
    .shown_in("%", 1e-2, 1)
}

fn stays(events: &[Events]) -> Claim {
    let tests = events.iter().map(|events| {
        let worst = course(&events.p_xcp[RENO][SHOWN]).after_second_loss();
        claim::Range::at_least(STAYED)
            .of_exact(worst)
            .at(format!("{}, the second loss", at_delay(events.delay_ms)))
    });
    staying().with_all(tests)
}

/// The claim without its tests.
pub(super) fn staying() -> Claim {
    Claim::stated(
        "P-XCP's does not, over Reno too: within 5 s each second has at least 90%",
        "section IV, figure 3",
    )
    .shown_in("%", 1e-2, 1)
}

fn times_out(events: &[Events], recovery: usize, reference: &str) -> Claim {
    let measure = move |events: &Events, event: usize| timeouts(&events.p_xcp[recovery][event]);
    Claim::stated(
        format!(
            "Three losses within a round trip: P-XCP over {} times out, at each of {} places and both delays",
            RECOVERIES[recovery].0,
            EVENTS_WITHIN.len(),
        ),
        reference,
    )
    .shown_in("timeouts", 1.0, 0)
    .with_all(at_each_event(events, EVENTS_WITHIN, claim::Range::at_least(1.0), measure))
}

fn does_not_time_out(events: &[Events]) -> Claim {
    let measure = |events: &Events, event: usize| timeouts(&events.p_xcp[STEADY][event]);
    Claim::stated(
        "P-XCP over Slow-but-Steady does not, nor where the third is a tenth or a quarter of a round trip later",
        "section V-B, figures 6 and 7",
    )
    .shown_in("timeouts", 1.0, 0)
    .with_all(at_each_event(events, 0..EVENTS, claim::Range::at_most(0.0), measure))
}

fn because_the_timeout_is_near(events: &[Events]) -> Claim {
    let measure = |events: &Events, event: usize| timeouts(&events.patient[event]);
    Claim::expected(
        format!(
            "The reason is a timeout not much above the round trip: with a floor of {PATIENT_RTO_S} s \
             Impatient does not time out either"
        ),
        "section V-A",
    )
    .shown_in("timeouts", 1.0, 0)
    .with_all(at_each_event(events, EVENTS_WITHIN, claim::Range::at_most(0.0), measure))
}

fn recovers_faster(events: &[Events]) -> Claim {
    let measure = |events: &Events, event: usize| {
        let carried =
            |recovery: usize| course(&events.p_xcp[recovery][event]).carried_after_event(events.delay_ms);
        carried(STEADY) / carried(IMPATIENT)
    };
    Claim::stated(
        "Slow-but-Steady recovers faster: in the 20 round trips from the first of the three losses it \
         carries more than Impatient",
        "section V-B, figure 6",
    )
    .with_all(at_each_event(events, EVENTS_WITHIN, claim::Range::above(1.0), measure))
}

fn window_grows(events: &Events) -> Claim {
    let tests = events.places(EVENTS_BEYOND).map(|(event, place)| {
        let growth = course(&events.p_xcp[STEADY][event]).growth_after_event(events.delay_ms);
        claim::Range::between(1.25, 1.75).of_exact(growth).at(place)
    });
    Claim::stated(
        "Where the third is sent after the repair has begun, the router takes a pause for a free link: the \
         window grows from 80 to around 120 packets, 1.25 to 1.75 times",
        "section V-B, figure 7",
    )
    .with_all(tests)
}

/// The publication has its figures 4 and 7 of one event, and so both there.
fn times_out_beyond(events: &[Events]) -> Claim {
    let measure = |events: &Events, event: usize| timeouts(&events.p_xcp[IMPATIENT][event]);
    Claim::expected("P-XCP over Impatient times out there, too", "section V, figures 4 and 7 of one event")
        .shown_in("timeouts", 1.0, 0)
        .with_all(at_each_event(events, EVENTS_BEYOND, claim::Range::at_least(1.0), measure))
}

fn queue_holds(events: &[Events]) -> Claim {
    let measure = |events: &Events, event: usize| course(&events.p_xcp[STEADY][event]).dropped() as f64;
    holding().with_all(at_each_event(events, 0..EVENTS, claim::Range::at_most(0.0), measure))
}

/// The claim without its tests.
pub(super) fn holding() -> Claim {
    Claim::stated(
        "The router corrects the rate before the burst after the repair overflows the queue",
        "section VI",
    )
    .shown_in("packets dropped", 1.0, 0)
}

fn table(events: &[Events]) -> Table {
    let mut table = Table::new(
        "Three losses in about a round trip, 2 Mbit/s, P-XCP",
        vec![
            Column::new("one way", "delay_s").shown_in("ms", 1e-3),
            Column::new("the third loss", "third"),
            Column::new("loss recovery", "recovery"),
            Column::new("events", "events"),
            Column::new("with a timeout", "with_timeout"),
            Column::new("carried in 20 round trips, mean", "carried").shown_in("%", 1e-2),
            Column::new("largest window, of that before", "growth"),
            Column::new("packets dropped by the queue", "dropped"),
        ],
    );
    let kinds = [("within a round trip", EVENTS_WITHIN), ("beyond", EVENTS_BEYOND)];
    for (events, (kind, which)) in
        events.iter().flat_map(|events| kinds.iter().map(move |kind| (events, kind)))
    {
        for ((name, _), runs) in RECOVERIES.into_iter().zip(&events.p_xcp) {
            table.push(row(events.delay_ms, kind, name, &runs[which.clone()]));
        }
    }
    table
}

fn row(delay_ms: u32, kind: &str, recovery: &str, runs: &[Runs<Course>]) -> Vec<Cell> {
    let count = runs.len() as f64;
    let carried: f64 = runs.iter().map(|runs| course(runs).carried_after_event(delay_ms)).sum();
    let growth = runs.iter().map(|runs| course(runs).growth_after_event(delay_ms));
    let dropped: u64 = runs.iter().map(|runs| course(runs).dropped()).sum();
    let with_timeout = runs.iter().filter(|runs| timeouts(runs) > 0.0).count();
    vec![
        Cell::Number(f64::from(delay_ms) * 1e-3, 0),
        Cell::text(kind),
        Cell::text(recovery),
        Cell::Number(count, 0),
        Cell::Number(with_timeout as f64, 0),
        Cell::Number(carried / count, 1),
        Cell::Number(growth.fold(0.0, f64::max), 2),
        Cell::Number(dropped as f64, 0),
    ]
}

/// The publication's figures 2, 3, 4 and 6 in one.
fn throughput_plot(events: &Events) -> Plot {
    let p_xcp = |recovery: usize| &events.p_xcp[recovery][SHOWN];
    let lines = [
        ("XCP, Reno", &events.xcp),
        ("P-XCP, Reno", p_xcp(RENO)),
        ("P-XCP, Impatient", p_xcp(IMPATIENT)),
        ("P-XCP, Slow-but-Steady", p_xcp(STEADY)),
        ("the same, a tenth beyond", &events.p_xcp[STEADY][SHOWN_BEYOND]),
    ];
    let plot = Plot::new(
        "Lone losses, and three in a round trip, at 250 ms one way",
        Axis::new("time", "s"),
        Axis::new("throughput", "Mbit/s").including(0.0),
    );
    lines.into_iter().fold(plot, |plot, (name, runs)| {
        let seconds = course(runs).by_second();
        let points = seconds.map(|(at, bps)| Point::new(at, Estimate::from(bps / MBIT)));
        plot.with(Series::new(name, Style::Curve, points))
    })
}

/// The publication's figures 5 and 7.
fn window_plot(events: &Events) -> Plot {
    let plot = Plot::new(
        "P-XCP's window around three losses, at 250 ms one way",
        Axis::new("time", "s"),
        Axis::new("window", "packets").including(0.0),
    );
    let lines = [
        ("Impatient, within a round trip", IMPATIENT, SHOWN),
        ("Slow-but-Steady, within", STEADY, SHOWN),
        ("Slow-but-Steady, a tenth beyond", STEADY, SHOWN_BEYOND),
    ];
    lines.into_iter().fold(plot, |plot, (name, recovery, event)| {
        let windows = course(&events.p_xcp[recovery][event]).windows.iter();
        let shown = windows.filter(|(at, _)| (50.0..75.0).contains(at));
        let points = shown.map(|&(at, window)| Point::new(at, Estimate::from(window)));
        plot.with(Series::new(name, Style::Curve, points))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Progress;
    use crate::results::Seeds;

    #[test]
    fn the_events_lie_within_a_round_trip_and_beyond_it() {
        let events = Event::all(250);
        assert_eq!((events[SHOWN].middle, events[SHOWN].last), (9041, 9083));
        assert!(events[EVENTS_WITHIN].iter().all(|event| event.last <= FIRST + 84));
        assert_eq!((events[SHOWN_BEYOND].middle, events[SHOWN_BEYOND].last), (9046, 9092));
    }

    /// And the losses are those that are prescribed, at their places.
    #[test]
    fn three_losses_within_a_round_trip_time_out_impatient_and_not_slow_but_steady() {
        let progress = Progress::default();
        let lab = Lab::in_virtual_time(Seeds { first: 1, count: 1 }, &progress);
        let event = Event::all(250)[SHOWN];
        let scenarios = [IMPATIENT, STEADY].map(|recovery| {
            lab.scenario(&SCENARIO, &event.settings(VARIANTS[P_XCP], recovery, &[])).unwrap()
        });
        let runs = lab.observe(&scenarios, Course::default).unwrap();
        assert_eq!([&runs[0], &runs[1]].map(timeouts), [1.0, 0.0]);
        for runs in &runs {
            let lost = runs.sample(|run| run.links[SATELLITE].forward.dropped(Cause::PacketError) as f64);
            assert_eq!(lost.values(), [7.0]);
            let at = course(runs).time_of_loss(BEFORE + 1);
            assert!((53.0..58.0).contains(&at), "{at} s");
        }
    }
}
