//! Contact plans in the format of ION's `ionadmin`, ionrc(5): lines of commands, of which those count that add
//! contacts and ranges and that set the reference time. No clock: the time of reading is a parameter.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bentpipe_units::Rate;

use super::Contact;
use crate::{DtnTime, Eid};

/// Commands of ionadmin that say nothing about contacts.
const IGNORED: &[&str] = &["?", "h", "e", "v", "1", "!", "i", "l", "b", "m", "r", "s", "x", "q"];
/// The most faults that are collected.
const MAX_FAULTS: usize = 100;
/// The fastest contact, bytes per second: 10^15 bit/s.
const MAX_RATE: u64 = 125_000_000_000_000;

/// A plan that has been read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IonPlan {
    /// Its contacts, in the order of the lines. Their delays are those of the ranges.
    pub contacts: Vec<Contact>,
    /// Lines that have been read, but are hardly meant so.
    pub warnings: Vec<LineFault>,
}

/// What is wrong with a line, and what to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineFault {
    /// The line, counted from one.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// A distance between two nodes.
struct Range {
    start: DtnTime,
    end: DtnTime,
    delay: Duration,
}

#[derive(Default)]
struct Reader {
    reference: DtnTime,
    /// The section of a file for all programs of ION, between `## begin NAME` and `## end NAME`.
    section: Option<String>,
    contacts: Vec<(usize, (u64, u64), Contact)>,
    /// By the two nodes, in the order in which they are written.
    ranges: BTreeMap<(u64, u64), Vec<Range>>,
    warnings: Vec<LineFault>,
}

/// Reads a plan. Relative times count from `now`, until a line sets another reference time.
///
/// # Errors
/// All lines that are not accepted, at least one.
pub fn parse(text: &str, now: DtnTime) -> Result<IonPlan, Vec<LineFault>> {
    let mut reader = Reader { reference: now, ..Reader::default() };
    let mut faults = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        if let Err(what) = reader.read(line, text) {
            faults.push(LineFault { line, what });
        }
        if faults.len() == MAX_FAULTS {
            break;
        }
    }
    if faults.is_empty() { Ok(reader.finish()) } else { Err(faults) }
}

impl Reader {
    fn read(&mut self, line: usize, text: &str) -> Result<(), String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            ["##", "begin", section, ..] => self.section = Some(section.to_owned()),
            ["##", "end", ..] => self.section = None,
            [] => {}
            [word, ..] if word.starts_with('#') => {}
            _ if self.section.as_ref().is_some_and(|section| section != "ionadmin") => {}
            ["a", "contact", ref values @ ..] => self.add_contact(line, values)?,
            ["a", "range", ref values @ ..] => self.add_range(values)?,
            ["@", time] => self.reference = self.time(time)?,
            ["^", ..] => self.warn(line, "regions are not told apart; write a plan of one region alone"),
            ["c" | "d", ..] => {
                let what = "changes and deletions are not read; write the plan as it is to be, of \"a contact\" and \
                            \"a range\" lines alone";
                return Err(what.into());
            }
            [command, ..] if IGNORED.contains(&command) => {}
            [command, ..] => {
                return Err(format!(
                    "{} is not a command of a contact plan; write \"a contact\", \"a range\", \"@\" or \"#\"",
                    quoted(command)
                ));
            }
        }
        Ok(())
    }

    fn warn(&mut self, line: usize, what: impl Into<String>) {
        self.warnings.push(LineFault { line, what: what.into() });
    }

    fn add_contact(&mut self, line: usize, values: &[&str]) -> Result<(), String> {
        let (start, end, from, to, rate, confidence) = match *values {
            [start, end, from, to, rate] => (start, end, from, to, rate, None),
            [start, end, from, to, rate, confidence] => (start, end, from, to, rate, Some(confidence)),
            _ => {
                return Err(format!(
                    "a contact has 5 or 6 values, not {}; write a contact +START +END FROM TO RATE [CONFIDENCE]",
                    values.len()
                ));
            }
        };
        if start == "-1" {
            // A registration in a region, which is no opportunity to send.
            return Ok(());
        }
        if end == "0" {
            self.warn(line, "a hypothetical contact is ignored, because its times are unknown; leave it out");
            return Ok(());
        }
        let (start, end) = self.times(start, end)?;
        let ends = (node_number(from)?, node_number(to)?);
        let rate = rate_of(rate)?;
        if let Some(text) = confidence {
            let sure = text.parse().ok().filter(|value: &f64| *value > 0.0 && *value <= 1.0);
            let sure = sure.ok_or_else(|| {
                format!("{} is not a confidence; write a number above 0, at most 1.0", quoted(text))
            })?;
            if sure < 1.0 {
                self.warn(
                    line,
                    format!("a confidence of {sure} is ignored; leave out contacts that hardly happen"),
                );
            }
        }
        if ends.0 == ends.1 {
            // A loop of a node to itself: what is for this node does not leave it.
            return Ok(());
        }
        let (from, to) = (node(ends.0), node(ends.1));
        let contact = Contact { from, to, start, end, rate, delay: Duration::ZERO, every: None, until: None };
        self.contacts.push((line, ends, contact));
        Ok(())
    }

    fn add_range(&mut self, values: &[&str]) -> Result<(), String> {
        let &[start, end, one, other, distance] = values else {
            return Err(format!(
                "a range has 5 values, not {}; write a range +START +END FROM TO SECONDS",
                values.len()
            ));
        };
        let (start, end) = self.times(start, end)?;
        let ends = (node_number(one)?, node_number(other)?);
        let seconds: u32 = distance.parse().map_err(|_| {
            format!("{} is not a distance; write whole light seconds, below 2^32", quoted(distance))
        })?;
        let delay = Duration::from_secs(seconds.into());
        self.ranges.entry(ends).or_default().push(Range { start, end, delay });
        Ok(())
    }

    fn times(&self, start: &str, end: &str) -> Result<(DtnTime, DtnTime), String> {
        let times = (self.time(start)?, self.time(end)?);
        if times.0 < times.1 {
            return Ok(times);
        }
        Err(format!("{} is not after {}; write an end after the start", quoted(end), quoted(start)))
    }

    fn time(&self, text: &str) -> Result<DtnTime, String> {
        let time = match text.strip_prefix('+') {
            Some(seconds) => whole(seconds).map(|seconds| self.reference.after(Duration::from_secs(seconds))),
            None => absolute(text),
        };
        time.ok_or_else(|| {
            format!(
                "{} is not a time; write yyyy/mm/dd-hh:mm:ss in UTC, from 2000 on, or +SECONDS",
                quoted(text)
            )
        })
    }

    /// Gives the contacts the delays of the ranges.
    fn finish(mut self) -> IonPlan {
        let mut without = BTreeSet::new();
        for (line, ends, contact) in &mut self.contacts {
            match delay(&self.ranges, *ends, contact) {
                Some(delay) => contact.delay = delay,
                None => {
                    // One line is enough for two nodes.
                    if without.insert(*ends) {
                        let (from, to) = ends;
                        let what = format!(
                            "no range from {from} to {to} covers a contact, which has no delay for that; write a \
                             range +START +END {from} {to} SECONDS"
                        );
                        self.warnings.push(LineFault { line: *line, what });
                    }
                }
            }
        }
        self.warnings.sort_by_key(|warning| warning.line);
        IonPlan {
            contacts: self.contacts.into_iter().map(|(_, _, contact)| contact).collect(),
            warnings: self.warnings,
        }
    }
}

/// The longest of the ranges during a contact, so that nothing arrives earlier than it is expected. A range from
/// the smaller node number to the larger one counts in the other direction, too, where that has none of its own
/// (ionrc(5), `a range`).
fn delay(
    ranges: &BTreeMap<(u64, u64), Vec<Range>>,
    (from, to): (u64, u64),
    contact: &Contact,
) -> Option<Duration> {
    let longest = |ends: (u64, u64)| {
        let ranges = ranges.get(&ends).into_iter().flatten();
        let during = ranges.filter(|range| range.start < contact.end && contact.start < range.end);
        during.map(|range| range.delay).max()
    };
    longest((from, to)).or_else(|| if from > to { longest((to, from)) } else { None })
}

fn node(number: u64) -> Eid {
    Eid::Ipn { node: number, service: 0, form: crate::IpnForm::Two }
}

fn node_number(text: &str) -> Result<u64, String> {
    let number = whole(text).filter(|number| *number > 0);
    number.ok_or_else(|| format!("{} is not a node; write the number N of ipn:N.0, from 1", quoted(text)))
}

fn rate_of(text: &str) -> Result<Rate, String> {
    let rate = whole(text).filter(|bytes| *bytes <= MAX_RATE).and_then(|bytes| Rate::from_bps(bytes * 8));
    rate.ok_or_else(|| format!("{} is not a rate; write whole bytes per second, 1 to 125e12", quoted(text)))
}

/// Digits alone.
fn whole(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// `yyyy/mm/dd-hh:mm:ss`, UTC.
fn absolute(text: &str) -> Option<DtnTime> {
    let (date, time) = text.split_once('-')?;
    let parts = |text: &str, between| text.split(between).map(whole).collect::<Option<Vec<u64>>>();
    let (date, time) = (parts(date, '/')?, parts(time, ':')?);
    let (&[year, month, day], &[hour, minute, second]) = (&date[..], &time[..]) else { return None };
    DtnTime::from_utc((year, month, day), (hour, minute, second))
}

/// The beginning of what was written, as one line of visible characters.
fn quoted(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    format!("\"{}\"", text.chars().take(40).map(visible).collect::<String>())
}

#[cfg(test)]
mod tests;
