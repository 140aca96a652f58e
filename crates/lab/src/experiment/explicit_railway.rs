//! Explicit rates through the tunnels of a railway: the journey of PSATS09, with the gateway's controller.

use super::{Experiment, Findings, Lab, Runs};
use crate::Error;
use crate::figure::{Axis, BarChart, BarGroup};
use crate::results::{Part, Verdict};
use crate::statistics::{Estimate, Summary};
use crate::table::{Cell, Column, Table};

const SOURCE: &str = "ours; the scenario is that of Caini, Firrincieli, Lacamera: PEPsal Performance Analysis on Disruptive Radio Channels, PSATS 2009";
const SCENARIO: (&str, &str) = ("scenarios/psats09.toml", include_str!("../../../../scenarios/psats09.toml"));
const MBIT: f64 = 1e6;

/// Kilometres of the line from Bologna to Florence.
const LINE_KM: u32 = 96;
const SPEEDS_KMH: [u32; 3] = [60, 120, 180];
/// What the link could carry of payload: 1448 of 1500 bytes, of which one packet in a hundred is lost.
const LIMIT: f64 = 10e6 * 1448.0 / 1500.0 * 0.99;

pub(super) const RAILWAY: Experiment = Experiment {
    name: "explicit-railway",
    title: "Explicit rates, Hybla and NewReno behind a splitter, through the tunnels of a railway",
    source: SOURCE,
    seeds: 5,
    run: railway,
    on_kernel: Some((1, super::explicit_kernel::railway)),
};

/// What carries the satellite leg, with the lowest maximum RTO that its queue allows.
#[derive(Debug, Clone, Copy)]
struct Way {
    name: &'static str,
    key: &'static str,
    settings: &'static [&'static str],
}

const EXPLICIT: usize = 0;
const WAYS: [Way; 4] = [
    Way {
        name: "explicit",
        key: "explicit",
        settings: &[
            "tcp.satellite.congestion=explicit",
            "link.satellite.explicit.at=gateway",
            "tcp.satellite.rto.max=1s",
        ],
    },
    Way { name: "Hybla", key: "hybla", settings: &["tcp.satellite.hybla=all", "tcp.satellite.rto.max=1s"] },
    Way {
        name: "Hybla, as published",
        key: "published_hybla",
        settings: &["tcp.satellite.hybla=published", "tcp.satellite.rto.max=2s"],
    },
    Way {
        name: "NewReno",
        key: "newreno",
        settings: &["tcp.satellite.congestion=newreno", "tcp.satellite.rto.max=2s"],
    },
];

/// One connection for the journey at a speed. Linux finds retransmissions that are lost again, so that they do here.
fn journey(speed_kmh: u32, way: Way) -> Vec<String> {
    let seconds = 3600 * LINE_KM / speed_kmh;
    let common = [
        format!("duration={seconds}s"),
        format!("link.satellite.outages.speed_kmh={speed_kmh}"),
        "tcp.satellite.lost_retransmissions=true".to_owned(),
    ];
    common.into_iter().chain(way.settings.iter().map(|&setting| setting.to_owned())).collect()
}

fn railway(lab: &Lab<'_>) -> Result<Findings, Error> {
    let mut scenarios = Vec::new();
    for way in WAYS {
        for speed in SPEEDS_KMH {
            scenarios.push(lab.scenario(&SCENARIO, &journey(speed, way))?);
        }
    }
    let clear_sky = |runs: &Runs| runs.first_flow(|flow| flow.clear_sky_goodput_bps);
    let runs = lab.run(&scenarios);
    let goodput: Vec<Vec<Summary>> =
        runs.chunks(SPEEDS_KMH.len()).map(|runs| runs.iter().map(clear_sky).collect()).collect();
    Ok(Findings {
        verdicts: vec![near_the_limit(&goodput[EXPLICIT]), ahead(&goodput)],
        tables: vec![Part::new("goodput", table(&goodput))],
        figures: vec![Part::new("goodput", chart(&goodput))],
    })
}

fn near_the_limit(explicit: &[Summary]) -> Verdict {
    let shares: Vec<Estimate> = explicit.iter().map(|goodput| goodput.estimate().in_unit(LIMIT)).collect();
    Verdict::new(
        "Explicit rates have at least 90% of what the link can carry in clear sky, at each speed",
        shares.iter().all(|share| share.value >= 0.9),
        format!("{} at 60/120/180 km/h", listed(&shares, 100.0, "%")),
    )
}

fn ahead(goodput: &[Vec<Summary>]) -> Verdict {
    let ratios: Vec<Estimate> =
        goodput[EXPLICIT].iter().zip(&goodput[1]).map(|(above, below)| above.ratio_to(below)).collect();
    Verdict::new(
        "They are ahead of the best Hybla at each speed, by a tenth at least",
        ratios.iter().all(|ratio| ratio.value >= 1.1),
        format!("{} at 60/120/180 km/h", listed(&ratios, 1.0, " times")),
    )
}

fn listed(values: &[Estimate], scale: f64, unit: &str) -> String {
    let decimals = if scale > 1.0 { 1 } else { 2 };
    let told = values.iter().map(|value| format!("{:.decimals$}", scale * value.value));
    format!("{}{unit}", told.collect::<Vec<_>>().join(" / "))
}

fn table(goodput: &[Vec<Summary>]) -> Table {
    let ways = WAYS.iter().map(|way| {
        Column::new(way.name, format!("{}_clear_sky_goodput_bps", way.key)).shown_in("Mbit/s", MBIT)
    });
    let mut table = Table::new(
        "Clear-sky goodput for a journey",
        [Column::new("speed", "speed_kmh").shown_in("km/h", 1.0)].into_iter().chain(ways).collect(),
    );
    for (index, speed) in SPEEDS_KMH.into_iter().enumerate() {
        let cells = goodput.iter().map(|way| Cell::interval(Some(way[index]), 2));
        table.push([Cell::Number(speed.into(), 0)].into_iter().chain(cells).collect());
    }
    table
}

fn chart(goodput: &[Vec<Summary>]) -> BarChart {
    let chart = BarChart::new(
        "Clear-sky goodput from Bologna to Florence, split",
        Axis::new("train speed", "km/h"),
        Axis::new("clear-sky goodput", "Mbit/s"),
        SPEEDS_KMH.map(|speed| speed.to_string()),
    );
    let bars = |values: &[Summary]| -> Vec<Option<Estimate>> {
        values.iter().map(|value| Some(value.estimate().in_unit(MBIT))).collect()
    };
    WAYS.iter()
        .zip(goodput)
        .fold(chart, |chart, (way, values)| chart.with(BarGroup::new(way.name, bars(values))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Progress;
    use crate::results::{Seeds, World};

    #[test]
    fn explicit_rates_fill_the_link_between_the_tunnels() {
        let seeds = Seeds { first: 1, count: 1 };
        let results = RAILWAY.run(World::Sim, seeds, &Progress::default()).unwrap();
        assert!(results.verdicts.iter().all(|verdict| verdict.agrees), "{:?}", results.verdicts);
    }
}
