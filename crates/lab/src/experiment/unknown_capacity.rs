//! A leg whose rate nobody knows: the capacity is found and followed, on the kernel and in virtual time.

use std::time::Duration;

use bentpipe_link::{DirectionConfig, LinkConfig, LinkTrace};
use bentpipe_units::{Probability, Rate};

use super::told::{SCHEMES, Scheme, courses};
use super::{Experiment, Lab, Load, Output, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::course::Window;
use crate::results::{Part, Plan};
use crate::table::{Cell, Column, Table};
use crate::trial::Trial;

pub(super) const UNKNOWN_CAPACITY: Experiment = Experiment {
    name: "unknown-capacity",
    title: "Explicit rates on links whose rate nobody knows, constant and in steps",
    source: "ours",
    plan: Plan::doubling(3),
    run: Some(virtual_time),
    on_kernel: Some((3, kernel)),
};

type Tried = super::told::Tried<Link>;

/// A link. With steps, its rate is a fifth between [`DOWN`] and [`UP`].
#[derive(Debug, Clone, Copy, PartialEq)]
struct Link {
    mbps: u64,
    rtt_ms: u64,
    per: f64,
    steps: bool,
}

/// The seconds at which a rate falls to a fifth and rises again, and the end of such a run.
const DOWN: f64 = 20.0;
const UP: f64 = 40.0;
const END: f64 = 60.0;
/// The end of a run on a constant link, and of its start, seconds.
const CONSTANT_END: f64 = 25.0;
const STARTED: f64 = 5.0;
/// Links with a round trip of this or more are given longer after a step, milliseconds.
const LONG_RTT: u64 = 200;
/// The queue of a step down drains within this time with a long round trip, seconds: the link is at a fifth
/// of the rate for more than a round trip before anyone can know, and needs four times that to send what has
/// come too much.
const DRAINED: f64 = 6.0;

/// The claims' thresholds.
const USED: f64 = 0.95;
const QUEUE_S: f64 = 0.03;
const OF_TOLD: f64 = 0.97;

impl Link {
    fn all() -> Vec<Link> {
        let constant = [(2, 600), (10, 600), (50, 600), (100, 150), (100, 40), (300, 40)];
        let constant = constant.into_iter().flat_map(|(mbps, rtt_ms)| {
            [0.0, 0.001, 0.01].map(|per| Link { mbps, rtt_ms, per, steps: false })
        });
        let steps = [(50, 600, 0.01), (100, 40, 0.001)];
        let steps = steps.map(|(mbps, rtt_ms, per)| Link { mbps, rtt_ms, per, steps: true });
        constant.chain(steps).collect()
    }

    /// Two constant ones and one with steps.
    fn is_of_quick_look(&self) -> bool {
        let kind = (self.mbps, self.rtt_ms, self.steps);
        matches!(kind, (50, 600, true))
            || self.per == 0.001 && matches!(kind, (10, _, false) | (100, 40, false))
    }

    fn label(self) -> String {
        let Link { mbps, rtt_ms, per, .. } = self;
        let rate = match self.steps {
            true => format!("{mbps}, {}, {mbps} Mbit/s", mbps / 5),
            false => format!("{mbps} Mbit/s"),
        };
        format!("{rate}, {rtt_ms} ms, PER {}%", 100.0 * per)
    }

    fn rate(self) -> Rate {
        Rate::mbps(self.mbps)
    }

    fn trace(self) -> LinkTrace {
        let Link { mbps, .. } = self;
        let rows = format!("at_s,rate\n{DOWN},{}Mbit/s\n{UP},{mbps}Mbit/s\n", mbps / 5);
        if self.steps { LinkTrace::from_csv(&rows).expect("it is well-formed") } else { LinkTrace::default() }
    }

    fn end(self) -> f64 {
        if self.steps { END } else { CONSTANT_END }
    }

    /// The seconds in which all that can be delivered is claimed, and from when on the queue is short.
    fn windows(self) -> Vec<[f64; 3]> {
        let (down, up, drained) = if self.rtt_ms >= LONG_RTT { (3.0, 5.0, DRAINED) } else { (1.0, 1.0, 1.0) };
        match self.steps {
            true => vec![
                [STARTED, DOWN, STARTED],
                [DOWN + down, UP, DOWN + drained],
                [UP + up, END - 0.5, UP + up],
            ],
            false => vec![[STARTED, CONSTANT_END - 0.5, STARTED]],
        }
    }

    fn trial(self, scheme: Scheme, seed: u64) -> Trial {
        let rtt = Duration::from_millis(self.rtt_ms);
        Trial { trace: self.trace(), ..scheme.trial(self.rate(), rtt, self.per, self.end(), seed) }
    }

    /// The link in virtual time, where nothing is lost on the way back.
    fn config(self) -> LinkConfig {
        let delay = Duration::from_millis(self.rtt_ms) / 2;
        let reverse = DirectionConfig { rate: Some(self.rate()), delay, ..DirectionConfig::default() };
        let per = Probability::new(self.per).expect("a part of one");
        LinkConfig { forward: DirectionConfig { per, trace: self.trace(), ..reverse.clone() }, reverse }
    }
}

/// Each link with each scheme and seed, on the kernel.
fn kernel(lab: &Lab<'_>) -> Result<Output, Error> {
    let mut tried = Vec::new();
    for link in Link::all().into_iter().filter(|link| !lab.quick || link.is_of_quick_look()) {
        let jobs = SCHEMES.iter().flat_map(|&scheme| {
            lab.seeds().map(move |seed| move || Ok(link.trial(scheme, seed).run()?.course))
        });
        // Fast links need a processor each.
        let at_once = if link.mbps > 50 { 1 } else { 2 };
        let courses =
            rows(lab.side_by_side(at_once, Load::of_link(link.rate()), jobs.collect())?, lab.seeds().count());
        tried.push(Tried { link, by_scheme: SCHEMES.into_iter().zip(courses).collect() });
    }
    Ok(output(&tried))
}

/// The same in virtual time, where there is no BBR.
fn virtual_time(lab: &Lab<'_>) -> Result<Output, Error> {
    let schemes = [Scheme::Unknown, Scheme::Told];
    let mut tried = Vec::new();
    for link in Link::all() {
        let config = link.config();
        let scenarios = schemes.map(|scheme| scheme.scenario(lab, &config, link.end()));
        let scenarios = scenarios.into_iter().collect::<Result<Vec<_>, _>>()?;
        let courses = courses(lab, &scenarios)?;
        tried.push(Tried { link, by_scheme: schemes.into_iter().zip(courses).collect() });
    }
    Ok(output(&tried))
}

fn output(tried: &[Tried]) -> Output {
    let (steps, constant): (Vec<&Tried>, Vec<&Tried>) = tried.iter().partition(|tried| tried.link.steps);
    let figures = steps.iter().map(|tried| {
        Part::new(
            format!("steps-{}ms", tried.link.rtt_ms),
            tried.plot(format!("{}, one run", tried.link.label()), END),
        )
    });
    Output {
        claims: claims(&constant, &steps),
        tables: vec![
            Part::new("constant", constant_table(&constant)),
            Part::new("steps", steps_table(&steps)),
        ],
        figures: figures.collect(),
    }
}

fn claims(constant: &[&Tried], steps: &[&Tried]) -> Vec<Claim> {
    let settled = [STARTED, CONSTANT_END - 0.5];
    let runs = |other, window, measure: fn(&Window) -> f64| -> Vec<(f64, Link)> {
        let of_link = |tried: &&Tried| {
            let ratios = tried.ratios(Scheme::Unknown, other, window, measure).unwrap_or_default();
            ratios.into_iter().map(|ratio| (ratio, tried.link)).collect::<Vec<_>>()
        };
        constant.iter().flat_map(of_link).collect()
    };
    // A gap at the end of the window holds back what has arrived behind it, up to a round trip's worth.
    let mut claims = vec![each_run(
        "On constant links, from the fifth second on, each run uses 97% or more of what it uses if told",
        &runs(Scheme::Told, settled, |window| window.used),
        OF_TOLD,
    )];
    let of_bbr = runs(Scheme::EndToEnd, [0.0, CONSTANT_END - 0.5], |window| window.of_limit);
    if !of_bbr.is_empty() {
        let sentence = "From the first SYN on, each run has at least what BBR has end to end";
        claims.push(each_run(sentence, &of_bbr, 1.0));
    }
    for tried in steps {
        let windows = tried.link.windows();
        let names = ["before", "after the step down", "after the step up"];
        let used = windows.iter().zip(names).filter_map(|(&[from, until, _], name)| {
            let used = tried.at_least(Scheme::Unknown, [from, until])?;
            Some(Range::at_least(USED).of_mean(&used).at(name))
        });
        let queues = windows.iter().zip(names).filter_map(|(&[_, until, from], name)| {
            let queue = tried.queue(Scheme::Unknown, [from, until])?;
            Some(Range::below(QUEUE_S).of_mean(&queue).at(name))
        });
        let sentence = format!(
            "{}: 95% or more of what can be delivered, before the steps and from {} and {} s after them",
            tried.link.label(),
            windows[1][0] - DOWN,
            windows[2][0] - UP
        );
        claims.push(Claim::ours(sentence).shown_in("%", 0.01, 1).with_all(used));
        let sentence = format!(
            "{}: the queue is below 30 ms at the 95th percentile then, and from {} s after the step down",
            tried.link.label(),
            windows[1][2] - DOWN
        );
        claims.push(Claim::ours(sentence).shown_in("ms", 1e-3, 0).with_all(queues));
    }
    claims
}

/// That each run has `wanted` or more.
fn each_run(sentence: &str, ratios: &[(f64, Link)], wanted: f64) -> Claim {
    let worst = ratios.iter().min_by(|one, other| one.0.total_cmp(&other.0));
    let (_, link) = worst.expect("there are constant links");
    Claim::ours(sentence)
        .shown_in("%", 0.01, 1)
        .with(Range::at_least(wanted).of_each(ratios.iter().map(|(ratio, _)| *ratio).collect()))
        .noting(format!("the worst with {}", link.label()))
}

fn constant_table(constant: &[&Tried]) -> Table {
    let mut columns = vec![Column::new("link", "case")];
    for scheme in SCHEMES {
        let (name, key) = (scheme.name(), scheme.key());
        columns.push(
            Column::new(format!("{name}, of the limit"), format!("{key}_of_limit")).shown_in("%", 0.01),
        );
        columns.push(Column::new("queue, 95%", format!("{key}_queue_95_s")).shown_in("ms", 0.001));
    }
    columns.push(Column::new("not told, from the SYN", "unknown_from_syn_of_limit").shown_in("%", 0.01));
    columns.push(Column::new("BBR, from the SYN", "bbr_from_syn_of_limit").shown_in("%", 0.01));
    let mut table = Table::new("Constant links, from the fifth second on, and from the SYN on", columns);
    for tried in constant {
        let settled = [STARTED, CONSTANT_END - 0.5];
        let mut row = vec![Cell::text(tried.link.label())];
        for scheme in SCHEMES {
            row.push(Cell::interval(tried.used(scheme, settled), 1));
            row.push(Cell::interval(tried.queue(scheme, settled), 0));
        }
        for scheme in [Scheme::Unknown, Scheme::EndToEnd] {
            row.push(Cell::interval(tried.used(scheme, [0.0, CONSTANT_END - 0.5]), 1));
        }
        table.push(row);
    }
    table
}

fn steps_table(steps: &[&Tried]) -> Table {
    let mut columns = vec![Column::new("link, and what is told", "case")];
    for (name, key) in [("before", "before"), ("low", "low"), ("high again", "high")] {
        columns.push(
            Column::new(format!("{name}, of the limit"), format!("{key}_of_limit")).shown_in("%", 0.01),
        );
        columns.push(Column::new("queue, 95%", format!("{key}_queue_95_s")).shown_in("ms", 0.001));
    }
    let mut table = Table::new(
        "Steps: what is delivered or, if that is less, the use of the link, from some seconds after each",
        columns,
    );
    for tried in steps {
        for (scheme, _) in &tried.by_scheme {
            let mut row = vec![Cell::text(format!("{}: {}", tried.link.label(), scheme.name()))];
            for [from, until, drained] in tried.link.windows() {
                row.push(Cell::interval(tried.at_least(*scheme, [from, until]), 1));
                row.push(Cell::interval(tried.queue(*scheme, [drained, until]), 0));
            }
            table.push(row);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::in_virtual_time;

    #[test]
    fn in_virtual_time_an_unknown_capacity_is_found_and_followed() {
        let results = in_virtual_time(&UNKNOWN_CAPACITY, 2);
        assert_eq!(results.contradicted().count(), 0, "{:#?}", results.verdicts);
        assert!(results.verdicts[0].agrees(), "{:#?}", results.verdicts);
    }
}
