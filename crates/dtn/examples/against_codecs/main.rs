//! Generates bundles, changes some of their bytes, has them read by this crate and by two other
//! implementations of RFC 9171, and says where they disagree.
//!
//! ```text
//! against_codecs --count 10000000 --seed 1
//! ```
//!
//! A disagreement is that one takes what the other refuses, or that both take it and read something else. Each
//! kind that is known has its explanation beside the other codec; one that is not known fails the run, with an
//! example.

mod bp7_codec;
mod bundles;
mod content;
mod hardy_codec;

use std::collections::BTreeMap;
use std::panic::RefUnwindSafe;
use std::process::ExitCode;
use std::time::Instant;

use bundles::Random;
use clap::Parser;
use content::Content;
use indicatif::{ProgressBar, ProgressStyle};

/// Compares the bundle codec with those of others.
#[derive(Debug, Parser)]
struct Options {
    /// How many inputs.
    #[arg(long, default_value_t = 1_000_000)]
    count: u64,
    /// Which ones.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// On how many threads.
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

/// Another implementation of RFC 9171.
trait Codec: Sync + RefUnwindSafe {
    /// Its crate.
    fn name(&self) -> &'static str;

    /// What it says of these bytes, or why it refuses them.
    fn read(&self, bytes: &[u8]) -> Result<Content, String>;

    /// The disagreements that are known.
    fn explained(&self) -> &'static [Explained];
}

/// Who takes it, a part of the reason of the other, and why that is right. The first that fits counts.
type Explained = (Who, &'static str, &'static str);

const CODECS: [&dyn Codec; 2] = [&bp7_codec::Bp7, &hardy_codec::Hardy];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// Only bentpipe takes it; the reason is the other's.
    Ours,
    /// Only the other takes it; the reason is bentpipe's.
    Theirs,
    /// Both take it, and read something else.
    Both,
}

/// Kinds of disagreement: how many there were, and the shortest example.
type Disagreements = BTreeMap<(Who, String), (u64, Vec<u8>)>;

/// What one run has seen of one codec.
#[derive(Debug, Default)]
struct Seen {
    both: u64,
    neither: u64,
    disagreements: Disagreements,
}

fn main() -> ExitCode {
    let Options { count, seed, threads } = Options::parse();
    let begun = Instant::now();
    // That a codec panics is a finding, too; the text would be printed a million times.
    std::panic::set_hook(Box::new(|_| ()));
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} inputs, {eta} left");
    let bar = ProgressBar::new(count).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let seen = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|thread| {
                let part = count / threads + u64::from(thread < count % threads);
                let bar = bar.clone();
                scope.spawn(move || run(part, seed.wrapping_mul(0x1_0001).wrapping_add(thread), &bar))
            })
            .collect();
        let mut all = CODECS.map(|_| Seen::default());
        for part in parts {
            let part = part.join().expect("panics of codecs are caught, and there are no others");
            all.iter_mut().zip(part).for_each(|(all, part)| all.add(part));
        }
        all
    });
    bar.finish_and_clear();
    println!("seed {seed}: {count} inputs in {:.0} s", begun.elapsed().as_secs_f64());
    let explained: Vec<bool> = CODECS.iter().zip(&seen).map(|(codec, seen)| seen.report(*codec)).collect();
    if explained.contains(&false) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn run(count: u64, seed: u64, bar: &ProgressBar) -> [Seen; CODECS.len()] {
    let (mut random, mut seen) = (Random::new(seed), CODECS.map(|_| Seen::default()));
    for number in 0..count {
        let bytes = bundles::input(&mut random);
        let ours = content::read(&bytes);
        for (codec, seen) in CODECS.iter().zip(&mut seen) {
            let theirs = std::panic::catch_unwind(|| codec.read(&bytes));
            seen.compare(&bytes, &ours, theirs.unwrap_or_else(|_| Err("it panics".into())));
        }
        if number % 1000 == 999 {
            bar.inc(1000);
        }
    }
    seen
}

impl Seen {
    /// Notes what came of one input.
    fn compare(&mut self, bytes: &[u8], ours: &Result<Content, String>, theirs: Result<Content, String>) {
        let kind = match (ours, theirs) {
            (Err(_), Err(_)) => {
                self.neither += 1;
                return;
            }
            (Ok(_), Err(reason)) => (Who::Ours, reason),
            (Err(reason), Ok(_)) => (Who::Theirs, reason.clone()),
            (Ok(ours), Ok(theirs)) if *ours == theirs => {
                self.both += 1;
                return;
            }
            (Ok(ours), Ok(theirs)) => (Who::Both, ours.difference(&theirs)),
        };
        self.note(kind, 1, bytes);
    }

    fn note(&mut self, kind: (Who, String), times: u64, bytes: &[u8]) {
        let entry = self.disagreements.entry(kind).or_insert_with(|| (0, bytes.to_vec()));
        entry.0 += times;
        if bytes.len() < entry.1.len() {
            entry.1 = bytes.to_vec();
        }
    }

    fn add(&mut self, part: Self) {
        (self.both, self.neither) = (self.both + part.both, self.neither + part.neither);
        for (kind, (times, example)) in part.disagreements {
            self.note(kind, times, &example);
        }
    }

    /// Prints the disagreements, and says whether all are explained.
    fn report(&self, codec: &dyn Codec) -> bool {
        let (name, Self { both, neither, disagreements }) = (codec.name(), self);
        println!("\n{name}: {both} taken by both alike, {neither} refused by both");
        println!("\n| taken by | inputs | the other's reason | explanation |\n|---|---|---|---|");
        let mut unexplained = Vec::new();
        for ((who, reason), (count, example)) in disagreements {
            let mut explained = codec.explained().iter();
            let known = explained.find(|(other, part, _)| other == who && reason.contains(part));
            let takers = match who {
                Who::Ours => "bentpipe",
                Who::Theirs => name,
                Who::Both => "both, with other content",
            };
            let explanation = known.map_or("**none**", |(_, _, explanation)| explanation);
            println!("| {takers} | {count} | {} | {explanation} |", reason.replace('|', "\\|"));
            if known.is_none() {
                unexplained.push((reason, example));
            }
        }
        for (reason, example) in &unexplained {
            println!("\n{reason}:\n{}", hex(example));
        }
        unexplained.is_empty()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
