//! TCP in WireGuard and in ESP, and TCP that is to stay end to end, across a geostationary link that loses
//! packets, protected and not, on the kernel.

use std::time::Duration;

use bentpipe_units::{Probability, Rate};

use super::{Experiment, Lab, Load, Output, over_seeds, rows};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::results::{Part, Plan};
use crate::statistics::Sample;
use crate::table::{Cell, Column, Table};
use crate::tunnel::Tunnel;
use crate::unsplit::{Channel, Class, Crossing, Measured};

pub(super) const VPN: Experiment = Experiment {
    name: "vpn",
    title: "TCP in tunnels and end to end over 10 Mbit/s and 600 ms at PER 1%, over protected legs and without",
    source: "ours",
    plan: Plan::doubling(3),
    run: None,
    on_kernel: Some((3, kernel)),
};

const RATE: Rate = Rate::mbps(10);
const RTT: Duration = Duration::from_millis(600);
const PER: f64 = 0.01;
const QUICK: Duration = Duration::from_secs(15);
/// The claims' threshold.
const FACTOR: f64 = 10.0;

const TUNNELS: [Tunnel; 3] = Tunnel::ALL;
const PROTECTION: [Option<Class>; 2] = [None, Some(Class::Auto)];

fn crossing(lab: &Lab<'_>, protect: Option<Class>, seed: u64) -> Crossing {
    let channel = Channel::Errors(Probability::new(PER).expect("a part of one"));
    let crossing = Crossing::of_a_minute(RATE, RTT, channel, seed);
    let lasts = if lab.quick { QUICK } else { crossing.lasts };
    Crossing { protect, lasts, ..crossing }
}

/// For each seed, all tunnels, protected and not, at the same time.
fn kernel(lab: &Lab<'_>) -> Result<Output, Error> {
    let pairs: Vec<_> = TUNNELS.iter().flat_map(|&tunnel| PROTECTION.map(|class| (tunnel, class))).collect();
    let jobs = lab.seeds().flat_map(|seed| {
        pairs.iter().map(move |&(tunnel, class)| {
            let crossing = crossing(lab, class, seed);
            move || tunnel.cross(&crossing)
        })
    });
    let measured = lab.side_by_side(pairs.len(), Load::of_link(RATE).encrypted(), jobs.collect())?;
    Ok(output(&Runs(rows(measured, pairs.len()))))
}

/// By seed, then by tunnel and protection.
struct Runs(Vec<Vec<Measured>>);

impl Runs {
    fn sample(&self, tunnel: usize, protected: bool, measure: fn(&Measured) -> f64) -> Sample {
        let at = PROTECTION.len() * tunnel + usize::from(protected);
        over_seeds(self.0.iter().map(|runs| measure(&runs[at])))
    }
}

fn output(runs: &Runs) -> Output {
    Output { claims: claims(runs), tables: vec![Part::new("goodput", table(runs))], figures: Vec::new() }
}

fn claims(runs: &Runs) -> Vec<Claim> {
    let gains = TUNNELS.iter().enumerate().map(|(at, tunnel)| {
        let [without, protected] = [false, true].map(|is| runs.sample(at, is, |run| run.goodput_bps));
        let share = 100.0 * runs.sample(at, true, Measured::of_limit).mean();
        let what = match tunnel {
            Tunnel::Bare => "end to end".to_owned(),
            tunnel => format!("in {}", tunnel.name()),
        };
        Claim::ours(format!("TCP {what} has {FACTOR} times as much over protected legs as without, or more"))
            .shown_in("times", 1.0, 1)
            .with(Range::at_least(FACTOR).of_ratio(&protected, &without))
            .noting(format!("protected {share:.1}% of the limit"))
    });
    let whole = runs.0.iter().flatten().map(|run| f64::from(u8::from(run.intact)));
    let intact = Claim::ours("What arrives is what was sent, in every run (SHA-256)")
        .shown_in("of 1", 1.0, 0)
        .with(Range::at_least(1.0).of_each(whole.collect()));
    gains.chain([intact]).collect()
}

fn table(runs: &Runs) -> Table {
    let columns = vec![
        Column::new("", "case"),
        Column::new("goodput", "goodput_bps").shown_in("Mbit/s", 1e6),
        Column::new("of the limit", "of_limit").shown_in("%", 0.01),
        Column::new("queue, 95%", "queue_95_s").shown_in("ms", 0.001),
        Column::new("offered to the link", "offered").shown_in("%", 0.01),
    ];
    let mut table = Table::new("TCP with CUBIC in a tunnel across the link, with its start", columns);
    for (at, tunnel) in TUNNELS.iter().enumerate() {
        for protected in [false, true] {
            let cell =
                |measure, decimals| Cell::interval(Some(runs.sample(at, protected, measure)), decimals);
            let how = if protected { "protected" } else { "not protected" };
            table.push(vec![
                Cell::text(format!("{}, {how}", tunnel.name())),
                cell(|run| run.goodput_bps, 2),
                cell(Measured::of_limit, 1),
                cell(Measured::queue_95_s, 0),
                cell(|run| run.offered, 1),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::Outcome;
    use crate::results::Plan;

    /// Three seeds with these shares of a limit of 10 Mbit/s.
    fn runs(shares: [f64; 6]) -> Runs {
        let run = |share: f64, seed: u64| Measured::of_share(share * (1.0 + 0.001 * seed as f64), 1e7, true);
        Runs((1..=3).map(|seed| shares.map(|share| run(share, seed)).into()).collect())
    }

    #[test]
    fn each_tunnel_is_compared_with_itself() {
        let outcomes = |shares| {
            let claims = claims(&runs(shares));
            [0, 1, 2].map(|at| claims[at].judge(Plan::fixed(3).level()).outcome)
        };
        let (agrees, contradicts) = (Outcome::Agrees, Outcome::Contradicts);
        assert_eq!(outcomes([0.03, 0.8, 0.03, 0.8, 0.04, 0.81]), [agrees; 3]);
        assert_eq!(outcomes([0.03, 0.8, 0.03, 0.8, 0.4, 0.8]), [agrees, agrees, contradicts]);
        assert_eq!(outcomes([0.03, 0.8, 0.1, 0.8, 0.04, 0.8]), [agrees, contradicts, agrees]);
        assert_eq!(outcomes([0.1, 0.8, 0.03, 0.8, 0.04, 0.8]), [contradicts, agrees, agrees]);
    }

    #[test]
    fn the_table_names_what_is_protected() {
        let text = table(&runs([0.03, 0.8, 0.03, 0.8, 0.04, 0.7])).to_csv();
        let row = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(row("WireGuard, protected").contains("0.80"), "{text}");
        assert!(row("ESP, not protected").contains("0.04"), "{text}");
    }
}
