//! One download over each of several links that vary by a seed: a leg without a rate beside BBR end to end on
//! the kernel, and beside the leg with a rate in virtual time.

use std::time::Duration;

use bentpipe_link::LinkConfig;

use super::told::{SCHEMES, Scheme, Tried, courses};
use super::{Lab, Load, Output, load, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::course::Window;
use crate::results::Part;
use crate::statistics::Summary;
use crate::table::{Cell, Column, Table};
use crate::trial::Trial;

/// A link that varies, and what tables call it.
pub(super) struct VaryingLink {
    pub(super) name: String,
    pub(super) config: LinkConfig,
}

/// Links of one kind. The first is the one with fixed parameters; the others are drawn.
pub(super) struct Study {
    /// What a link is called in claims, as "trace" and "traces".
    pub(super) link: [&'static str; 2],
    pub(super) links: Vec<VaryingLink>,
    /// How long a download lasts, seconds.
    pub(super) lasts: f64,
}

/// A download is measured from this second on.
const STARTED: f64 = 5.0;
/// Links of a quick look.
const FEW: usize = 3;
/// The claims' thresholds: what is delivered, of what can be; its queue, of BBR's; what it has, of what it
/// has if told.
const USED: f64 = 0.95;
const OF_BBRS_QUEUE: f64 = 0.5;
const OF_TOLD: f64 = 0.97;

impl Study {
    /// On the kernel: without a rate, and end to end.
    pub(super) fn kernel(&self, lab: &Lab<'_>) -> Result<Output, Error> {
        let schemes = [Scheme::Unknown, Scheme::EndToEnd];
        let trial = |link: &VaryingLink, scheme: Scheme, seed| {
            let LinkConfig { forward, reverse } = &link.config;
            let rate = forward.highest_rate().expect("the link has a rate");
            let rtt: Duration = forward.delay + reverse.delay;
            let trial = scheme.trial(rate, rtt, 0.0, self.lasts, seed);
            Trial { link: Some(link.config.clone()), ..trial }
        };
        let mut tried = Vec::new();
        let few = if lab.quick { FEW } else { usize::MAX };
        for link in self.links.iter().take(few) {
            let trials =
                schemes.iter().flat_map(|&scheme| lab.seeds().map(move |seed| trial(link, scheme, seed)));
            let jobs = trials.map(|trial| move || Ok(trial.run()?.course)).collect();
            // Fast links need a processor each.
            let load = link.config.forward.highest_rate().map_or(load::QUICK, Load::of_link);
            let courses = rows(lab.side_by_side(1, load, jobs)?, lab.seeds().count());
            tried.push(Tried { link, by_scheme: schemes.into_iter().zip(courses).collect() });
        }
        Ok(self.output(&tried))
    }

    /// In virtual time: without a rate, and with the highest one.
    pub(super) fn virtual_time(&self, lab: &Lab<'_>) -> Result<Output, Error> {
        let schemes = [Scheme::Unknown, Scheme::Told];
        let pairs = self.links.iter().flat_map(|link| schemes.map(|scheme| (link, scheme)));
        let scenarios = pairs.map(|(link, scheme)| scheme.scenario(lab, &link.config, self.lasts));
        let scenarios = scenarios.collect::<Result<Vec<_>, _>>()?;
        let by_link = rows(courses(lab, &scenarios)?, schemes.len());
        let tried = self.links.iter().zip(by_link);
        let tried = tried
            .map(|(link, courses)| Tried { link, by_scheme: schemes.into_iter().zip(courses).collect() });
        Ok(self.output(&tried.collect::<Vec<_>>()))
    }

    /// The part of a run that is measured.
    fn window(&self) -> [f64; 2] {
        [STARTED, self.lasts - 0.5]
    }

    fn output(&self, tried: &[Tried<&VaryingLink>]) -> Output {
        let figure = |tried: &Tried<&VaryingLink>| {
            Part::new("fixed", tried.plot(format!("{}, one run", tried.link.name), self.lasts))
        };
        Output {
            claims: self.claims(tried),
            tables: vec![Part::new("links", self.table(tried))],
            figures: tried.first().map(figure).into_iter().collect(),
        }
    }

    fn claims(&self, tried: &[Tried<&VaryingLink>]) -> Vec<Claim> {
        let window = self.window();
        let [one, many] = self.link;
        let (fixed, drawn) = tried.split_first().expect("there is a link with fixed parameters");
        let delivered = |tried: &Tried<_>| tried.at_least(Scheme::Unknown, window).expect("it is tried");
        let of_drawn = drawn.iter().flat_map(|tried| delivered(tried).values().to_vec()).collect();
        let mut claims = vec![
            Claim::ours(format!(
                "The fixed {one}: 95% or more of what can be delivered, from the fifth second on"
            ))
            .shown_in("%", 0.01, 1)
            .with(Range::at_least(USED).of_mean(&delivered(fixed))),
            each(format!("Each of the {} drawn {many}, in every run: the same", drawn.len()), USED, of_drawn),
        ];
        let ratios = |other, measure: fn(&Window) -> f64| -> Vec<f64> {
            let of_link = |tried: &Tried<_>| tried.ratios(Scheme::Unknown, other, window, measure);
            tried.iter().filter_map(of_link).flatten().collect()
        };
        let queues = ratios(Scheme::EndToEnd, |window| window.queue_95_s);
        if !queues.is_empty() {
            let middle = median(&queues);
            let claim = Claim::ours(format!(
                "On each {one}, in every run, the queue's delay at the 95th percentile is half of BBR's or less"
            ));
            let test = Range::at_most(OF_BBRS_QUEUE).of_each(queues);
            claims.push(claim.shown_in("% of BBR's", 0.01, 1).with(test).noting(middle));
        }
        let of_told = ratios(Scheme::Told, |window| window.of_limit);
        if !of_told.is_empty() {
            let claim = format!(
                "On each {one}, in every run, it delivers 97% or more of what it does if told the highest rate"
            );
            claims.push(each(claim, OF_TOLD, of_told));
        }
        claims
    }

    fn table(&self, tried: &[Tried<&VaryingLink>]) -> Table {
        let [one, many] = self.link;
        let window = self.window();
        let shown = |scheme: &Scheme| tried.iter().any(|tried| tried.used(*scheme, window).is_some());
        let schemes: Vec<Scheme> = SCHEMES.into_iter().filter(shown).collect();
        let mut columns = vec![
            Column::new(one, "case"),
            Column::new("it can carry", "capacity_bps").shown_in("Mbit/s", 1e6),
        ];
        for scheme in &schemes {
            let (name, key) = (scheme.name(), scheme.key());
            columns.push(
                Column::new(format!("{name}, of the limit"), format!("{key}_of_limit")).shown_in("%", 0.01),
            );
            columns.push(Column::new("queue, 95%", format!("{key}_queue_95_s")).shown_in("ms", 0.001));
        }
        let title = format!("{}, from the fifth second on", capitalised(many));
        let mut table = Table::new(title, columns);
        for tried in tried {
            let capacity = tried.capacity_bps(window);
            let mut row = vec![Cell::text(tried.link.name.clone()), Cell::interval(capacity, 1)];
            for scheme in &schemes {
                row.push(Cell::interval(tried.at_least(*scheme, window), 1));
                row.push(Cell::interval(tried.queue(*scheme, window), 0));
            }
            table.push(row);
        }
        table
    }
}

/// A claim about the share that each run has.
fn each(claim: String, least: f64, shares: Vec<f64>) -> Claim {
    let middle = median(&shares);
    Claim::ours(claim).shown_in("%", 0.01, 1).with(Range::at_least(least).of_each(shares)).noting(middle)
}

fn median(shares: &[f64]) -> String {
    let median = Summary::of(shares).map_or(f64::NAN, |summary| summary.median);
    format!("median {:.1}%", 100.0 * median)
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
