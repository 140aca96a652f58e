//! The result: medians over the rounds, and ratios to the reference, each with its spread.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::bulk::{self, Direction};
use crate::options::Options;
use crate::peer::Peer;
use crate::{exchange, short};

const PLAIN: &str = "plain forwarding";

pub(crate) struct Report {
    ways: Vec<String>,
    reference: Option<usize>,
    seconds: f64,
    figures: Vec<Figure>,
    /// How many processors other programs kept busy, in each of the bulk measurements.
    others: Vec<f64>,
}

/// One quantity, by way and round.
struct Figure {
    name: String,
    unit: &'static str,
    samples: Vec<Vec<f64>>,
}

/// The middle of some values and their extremes.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Report {
    pub(crate) fn new(options: &Options, peers: &[Option<Peer>]) -> Self {
        let name = |peer: &Option<Peer>| peer.as_ref().map_or(PLAIN.to_owned(), |peer| peer.name.clone());
        let ways: Vec<String> = peers.iter().map(name).collect();
        let reference = ways.iter().position(|name| *name == options.reference);
        let seconds = options.time().as_secs_f64();
        Self { ways, reference, seconds, figures: Vec::new(), others: Vec::new() }
    }

    pub(crate) fn add_bulk(
        &mut self,
        way: usize,
        direction: Direction,
        flows: usize,
        outcome: &bulk::Outcome,
    ) {
        let direction = if direction == Direction::Up { "up" } else { "down" };
        let noun = if flows == 1 { "flow" } else { "flows" };
        let name = format!("{flows} {noun} {direction}");
        self.add(way, &name, "Gbit/s", outcome.rate);
        self.add(way, &format!("{name}, whole machine"), "CPU s/GB", outcome.machine_per_gb);
        self.add(way, &format!("{name}, proxy"), "CPU s/GB", outcome.proxy_per_gb);
        self.others.push(outcome.others);
    }

    pub(crate) fn add_short(&mut self, way: usize, concurrency: usize, outcome: &short::Outcome) {
        let name = format!("short connections, {concurrency} at once");
        self.add(way, &name, "1/s", outcome.rate);
        self.add(way, &format!("{name}, whole machine"), "CPU µs each", outcome.cost);
        self.add(way, &format!("{name}, failed"), "%", outcome.failed * 100.0);
    }

    pub(crate) fn add_latency(&mut self, way: usize, outcome: &exchange::Outcome) {
        self.add(way, "request–response, median", "µs", outcome.median);
        self.add(way, "request–response, 99th percentile", "µs", outcome.p99);
    }

    /// Quantities as lines, ways as columns, and the ratio of each proxy to the reference.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::from("| | |");
        self.ways.iter().for_each(|way| write!(text, " {way} |").unwrap());
        for way in self.compared() {
            let reference = &self.ways[self.reference.unwrap_or(0)];
            write!(text, " {} / {reference} |", self.ways[way]).unwrap();
        }
        let columns = 2 + self.ways.len() + self.compared().len();
        writeln!(text, "\n|{}", "---|".repeat(columns)).unwrap();
        // Failures are worth a line only where there were any.
        let failures =
            |figure: &&Figure| figure.unit != "%" || figure.samples.iter().flatten().any(|&x| x > 0.0);
        for figure in self.figures.iter().filter(failures) {
            self.line(figure, &mut text);
        }
        let others = Spread::of(&self.others).map_or(String::new(), |others| {
            format!(
                " Other programs kept {:.1} processors busy ({:.1}–{:.1}).",
                others.median, others.least, others.most
            )
        });
        let rounds = self.figures.first().map_or(0, |figure| figure.samples[0].len());
        writeln!(
            text,
            "\nMedians of {rounds} rounds of {} s; ratios with their extremes.{others}",
            self.seconds
        )
        .unwrap();
        text
    }

    pub(crate) fn json(&self) -> Value {
        let figures: Vec<Value> = self.figures.iter().map(|figure| self.figure_json(figure)).collect();
        json!({
            "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
            "processors": std::thread::available_parallelism().map_or(0, usize::from),
            "seconds": self.seconds,
            "ways": self.ways,
            "reference": self.reference.map(|index| &self.ways[index]),
            "processors_busy_with_others": self.others,
            "figures": figures,
        })
    }

    fn add(&mut self, way: usize, name: &str, unit: &'static str, value: f64) {
        let ways = self.ways.len();
        let found = self.figures.iter().position(|figure| figure.name == name && figure.unit == unit);
        let place = found.unwrap_or_else(|| {
            self.figures.push(Figure { name: name.to_owned(), unit, samples: vec![Vec::new(); ways] });
            self.figures.len() - 1
        });
        self.figures[place].samples[way].push(value);
    }

    fn compared(&self) -> Vec<usize> {
        let Some(reference) = self.reference else { return Vec::new() };
        (0..self.ways.len()).filter(|&way| way != reference && self.ways[way] != PLAIN).collect()
    }

    fn line(&self, figure: &Figure, text: &mut String) {
        write!(text, "| {} | {} |", figure.name, figure.unit).unwrap();
        for samples in &figure.samples {
            let median = Spread::of(samples).map_or(String::from("–"), |spread| digits(spread.median));
            write!(text, " {median} |").unwrap();
        }
        for way in self.compared() {
            let ratio = self.ratio(figure, way).map_or(String::from("–"), |ratio| {
                format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.least, ratio.most)
            });
            write!(text, " {ratio} |").unwrap();
        }
        text.push('\n');
    }

    /// Round by round, so that what changes from round to round for all ways alike drops out.
    fn ratio(&self, figure: &Figure, way: usize) -> Option<Spread> {
        let reference = &figure.samples[self.reference?];
        let pairs = figure.samples[way].iter().zip(reference).filter(|&(_, &reference)| reference > 0.0);
        Spread::of(&pairs.map(|(value, reference)| value / reference).collect::<Vec<_>>())
    }

    fn figure_json(&self, figure: &Figure) -> Value {
        let by_way = |value: &dyn Fn(usize) -> Option<Value>, ways: Vec<usize>| -> Map<String, Value> {
            ways.into_iter().filter_map(|way| Some((self.ways[way].clone(), value(way)?))).collect()
        };
        let all = || (0..self.ways.len()).collect();
        let median = |way: usize| Spread::of(&figure.samples[way]).map(|spread| json!(spread.median));
        let ratio = |way| {
            let Spread { median, least, most } = self.ratio(figure, way)?;
            Some(json!({ "median": median, "least": least, "most": most }))
        };
        json!({
            "name": figure.name,
            "unit": figure.unit,
            "samples": by_way(&|way| Some(json!(figure.samples[way])), all()),
            "median": by_way(&median, all()),
            "ratio": by_way(&ratio, self.compared()),
        })
    }
}

impl Spread {
    fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Some(Self { median, least, most })
    }
}

/// Three significant digits or so.
fn digits(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
