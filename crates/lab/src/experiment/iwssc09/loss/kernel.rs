//! The same on the kernel, whose loss recoveries are Linux' own. Without SACK that is a NewReno which sets its
//! timer anew at each partial acknowledgement, as Slow-but-Steady does; with SACK it is RACK. Linux has neither
//! Reno nor Impatient.

use bentpipe_sim::Scenario;

use super::event::{self, Course, Event, SHOWN, SHOWN_BEYOND};
use super::{
    DELAYS_MS, Lab, MBIT, Output, P_XCP, Runs, SACK, SCENARIO, STEADY, VARIANTS, at_delay, at_random, crowd,
    flows,
};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::figure::{Axis, Plot, Point, Series, Style};
use crate::results::Part;
use crate::statistics::{Estimate, Sample};
use crate::table::{Cell, Column, Table};

/// The loss recoveries of Linux, by their counterparts in virtual time.
const RECOVERIES: [(&str, usize); 2] = [("without SACK", STEADY), ("with SACK", SACK)];
const XCP: usize = 0;

/// What makes hosts use it.
pub(super) fn setting(recovery: usize) -> String {
    format!("tcp.satellite.sack={}", recovery == SACK)
}

/// What runs at one delay.
struct AtDelay {
    delay_ms: u32,
    /// P-XCP with the event, by recovery and event.
    events: Vec<Vec<Runs<Course>>>,
    /// XCP with the event.
    xcp: Runs<Course>,
    /// With losses at random, by variant and recovery.
    random: Vec<Vec<Runs<Course>>>,
}

impl AtDelay {
    /// Both delays; everything side by side.
    fn run(lab: &Lab<'_>) -> Result<Vec<Self>, Error> {
        let mut scenarios = Vec::new();
        for delay_ms in DELAYS_MS {
            scenarios.extend(Self::scenarios(lab, delay_ms)?);
        }
        let mut runs = lab.observe(&scenarios, Course::default)?.into_iter();
        let mut rows = |count, length| -> Vec<Vec<Runs<Course>>> {
            (0..count).map(|_| runs.by_ref().take(length).collect()).collect()
        };
        let of_delay = |delay_ms| Self {
            delay_ms,
            events: rows(RECOVERIES.len(), Self::events(lab, delay_ms).len()),
            xcp: rows(1, 1).remove(0).remove(0),
            random: rows(VARIANTS.len(), RECOVERIES.len()),
        };
        Ok(DELAYS_MS.into_iter().map(of_delay).collect())
    }

    /// In the order of the fields.
    fn scenarios(lab: &Lab<'_>, delay_ms: u32) -> Result<Vec<Scenario>, Error> {
        let events = Self::events(lab, delay_ms);
        let with_event = |variant, recovery, event: Event| {
            event.settings(VARIANTS[variant], recovery, &[setting(recovery)])
        };
        let mut scenarios = lab.scenarios(&SCENARIO, &RECOVERIES, &events, |(_, recovery), event| {
            with_event(P_XCP, recovery, event)
        })?;
        scenarios.push(lab.scenario(&SCENARIO, &with_event(XCP, STEADY, events[0]))?);
        scenarios.extend(lab.scenarios(&SCENARIO, &VARIANTS, &RECOVERIES, |variant, (_, recovery)| {
            let mut settings = at_random::settings(variant, (delay_ms, super::RECOVERIES[recovery].1));
            settings.push(setting(recovery));
            settings
        })?);
        Ok(scenarios)
    }

    /// All of them, the one of the figures first; in a quick look that one and the one beyond a round trip.
    fn events(lab: &Lab<'_>, delay_ms: u32) -> Vec<Event> {
        let all = Event::all(delay_ms);
        let shown = [all[SHOWN], all[SHOWN_BEYOND]];
        let others = all.into_iter().enumerate();
        let others = others.filter(|(index, _)| !lab.quick && ![SHOWN, SHOWN_BEYOND].contains(index));
        shown.into_iter().chain(others.map(|(_, event)| event)).collect()
    }
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let by_delay = AtDelay::run(lab)?;
    let (flows, bursts) = (flows::on_kernel(lab)?, crowd::run(lab)?);
    let mut claims = vec![falls(&by_delay), stays(&by_delay)];
    claims.extend([does_not_time_out(&by_delay, 0), does_not_time_out(&by_delay, 1), queue_holds(&by_delay)]);
    claims.extend([drops(&by_delay), rarely_times_out(&by_delay), with_sack(&by_delay)]);
    claims.extend(flows.claims.into_iter().chain(bursts.claims));
    let mut tables =
        vec![Part::new("event", event_table(&by_delay)), Part::new("random", random_table(&by_delay))];
    tables.extend(flows.tables.into_iter().chain(bursts.tables));
    Ok(Output { claims, tables, figures: vec![Part::new("throughput", plot(&by_delay[0]))] })
}

fn timeouts<O>(runs: &Runs<O>) -> Sample {
    runs.first_flow(|flow| flow.legs[1].timeouts as f64)
}

fn falls(by_delay: &[AtDelay]) -> Claim {
    event::falling().with_all(by_delay.iter().map(|runs| {
        let worst = runs.xcp.observed(Course::after_second_loss);
        Range::at_most(event::FALLEN).of_mean(&worst).at(at_delay(runs.delay_ms))
    }))
}

fn stays(by_delay: &[AtDelay]) -> Claim {
    event::staying().with_all(by_delay.iter().map(|runs| {
        let worst = runs.events[0][0].observed(Course::after_second_loss);
        Range::at_least(event::STAYED).of_mean(&worst).at(at_delay(runs.delay_ms))
    }))
}

/// In every run, at every place, at both delays.
fn does_not_time_out(by_delay: &[AtDelay], recovery: usize) -> Claim {
    let runs = by_delay.iter().flat_map(|runs| &runs.events[recovery]);
    let each: Vec<f64> = runs.flat_map(|runs| timeouts(runs).values().to_vec()).collect();
    let sentence = format!(
        "Three losses in about a round trip: P-XCP over Linux {} does not time out, in every run",
        RECOVERIES[recovery].0
    );
    let claim = match RECOVERIES[recovery].1 {
        STEADY => Claim::stated(sentence, "section V-B, figures 6 and 7"),
        _ => Claim::ours(sentence),
    };
    claim.shown_in("timeouts", 1.0, 0).with(Range::at_most(0.0).of_each(each))
}

fn queue_holds(by_delay: &[AtDelay]) -> Claim {
    let runs = by_delay.iter().flat_map(|runs| &runs.events[0]);
    let each: Vec<f64> =
        runs.flat_map(|runs| runs.observed(|course| course.dropped() as f64).values().to_vec()).collect();
    event::holding().with(Range::at_most(0.0).of_each(each))
}

fn drops(by_delay: &[AtDelay]) -> Claim {
    at_random::dropping().with_all(by_delay.iter().map(|runs| {
        let [xcp, p_xcp] = [XCP, P_XCP].map(|variant| at_random::goodput(&runs.random[variant][0]));
        Range::at_most(at_random::DROPPED).of_ratio(&xcp, &p_xcp).at(at_delay(runs.delay_ms))
    }))
}

fn rarely_times_out(by_delay: &[AtDelay]) -> Claim {
    at_random::steadying().with_all(
        by_delay.iter().map(|runs| {
            Range::below(1.0).of_mean(&timeouts(&runs.random[P_XCP][0])).at(at_delay(runs.delay_ms))
        }),
    )
}

fn with_sack(by_delay: &[AtDelay]) -> Claim {
    at_random::with_sack(
        by_delay.iter().map(|runs| (at_delay(runs.delay_ms), at_random::goodput(&runs.random[P_XCP][1]))),
    )
}

fn event_table(by_delay: &[AtDelay]) -> Table {
    let mut table = Table::new(
        "Three losses in about a round trip, 2 Mbit/s, P-XCP over Linux",
        vec![
            Column::new("one way", "delay_s").shown_in("ms", 1e-3),
            Column::new("loss recovery", "recovery"),
            Column::new("events", "events"),
            Column::new("with a timeout", "with_timeout"),
            Column::new("carried in 20 round trips, mean", "carried").shown_in("%", 1e-2),
            Column::new("largest window, of that before", "growth"),
        ],
    );
    for runs in by_delay {
        for ((name, _), events) in RECOVERIES.into_iter().zip(&runs.events) {
            let delay = runs.delay_ms;
            let carried = events.iter().map(|runs| runs.observed(|course| course.carried_after_event(delay)));
            let growth = events.iter().map(|runs| runs.observed(|course| course.growth_after_event(delay)));
            table.push(vec![
                Cell::Number(f64::from(delay) * 1e-3, 0),
                Cell::text(name),
                Cell::Number(events.len() as f64, 0),
                Cell::Number(events.iter().filter(|runs| timeouts(runs).mean() > 0.0).count() as f64, 0),
                Cell::Number(carried.map(|sample| sample.mean()).sum::<f64>() / events.len() as f64, 1),
                Cell::Number(growth.map(|sample| sample.mean()).fold(0.0, f64::max), 2),
            ]);
        }
    }
    table
}

fn random_table(by_delay: &[AtDelay]) -> Table {
    let mut table = Table::new(
        "One flow over 5 Mbit/s, one packet in a thousand lost, on Linux",
        vec![
            Column::new("one way", "delay_s").shown_in("ms", 1e-3),
            Column::new("loss recovery", "recovery"),
            Column::new("", "variant"),
            Column::new("goodput", "goodput_bps").shown_in("Mbit/s", MBIT),
            Column::new("timeouts", "timeouts"),
        ],
    );
    for runs in by_delay {
        for (at, (recovery, _)) in RECOVERIES.into_iter().enumerate() {
            for (variant, runs_of) in VARIANTS.into_iter().zip(&runs.random) {
                table.push(vec![
                    Cell::Number(f64::from(runs.delay_ms) * 1e-3, 0),
                    Cell::text(recovery),
                    Cell::text(variant.name),
                    Cell::interval(Some(at_random::goodput(&runs_of[at])), 2),
                    Cell::interval(Some(timeouts(&runs_of[at])), 1),
                ]);
            }
        }
    }
    table
}

/// The publication's figures 2, 3 and 6 in one.
fn plot(runs: &AtDelay) -> Plot {
    let lines = [
        ("XCP, without SACK", &runs.xcp),
        ("P-XCP, without SACK", &runs.events[0][0]),
        ("P-XCP, with SACK", &runs.events[1][0]),
    ];
    let plot = Plot::new(
        "Lone losses, and three in a round trip, at 250 ms one way, on Linux",
        Axis::new("time", "s"),
        Axis::new("throughput", "Mbit/s").including(0.0),
    );
    lines.into_iter().fold(plot, |plot, (name, runs)| {
        let points = runs.0[0].1.by_second().map(|(at, bps)| Point::new(at, Estimate::from(bps / MBIT)));
        plot.with(Series::new(name, Style::Curve, points))
    })
}
