//! The answers as tables for people, within a hundred columns.

use std::fmt::Write as _;
use std::time::Duration;

use bentpipe_table::Align::{Left, Right};
use bentpipe_table::aligned;

use crate::path::span;
use crate::{Answer, Catalogue, Need, Path, Place, Protocol, kilometres};

const WIDTH: usize = 100;
/// Where the second column of the answer for a path begins.
const INDENT: usize = 28;

/// The radii of all protocols.
pub fn table(catalogue: &Catalogue) -> String {
    let headings = [
        ("one way, in light-seconds", Left),
        ("inner", Right),
        ("limit", Right),
        ("million km", Right),
        ("reaches", Left),
        ("bound by", Left),
    ];
    let rows: Vec<_> = catalogue.protocols().iter().map(|protocol| row(catalogue, protocol)).collect();
    let mut text = aligned(&headings, &rows).join("\n") + "\n";
    text.push_str(&wrapped(
        "\nWithin the inner radius everything is sent once. Beyond it, up to the limit, the first message is \
         sent again \
         before its answer is there. Beyond the limit it fails: the timer in the last column has expired. \
         ∞: no timer ever \
         expires. ~: between this and a farther limit two clocks race, and it may work or not.",
        0,
    ));
    text.push_str(&wrapped(&ceilings(catalogue), 0));
    text.push_str("\nPlaces, one way:\n");
    for place in catalogue.places() {
        let _ = writeln!(
            text,
            "  {:<19} {:>9.3} s {:>12.3} million km",
            place.name,
            place.delay.as_secs_f64(),
            kilometres(place.delay) / 1e6
        );
    }
    text
}

/// The protocols with a ceiling of the retransmission timeout that shows within their limit.
fn ceilings(catalogue: &Catalogue) -> String {
    let ceilings =
        catalogue.protocols().iter().filter(|protocol| protocol.over.is_none()).filter_map(|protocol| {
            let reach = catalogue.reach(protocol);
            let ceiling = reach.ceiling.filter(|ceiling| reach.limit.is_none_or(|limit| *ceiling < limit))?;
            Some(format!("{} s, {}", seconds(ceiling), protocol.name))
        });
    format!(
        "Beyond a third radius the round trip passes the longest retransmission timeout, and data are sent \
         again before their answer is there, on a connection that knows the round trip, too: {}.",
        ceilings.collect::<Vec<_>>().join("; ")
    )
}

/// The answers for a path.
pub fn path_table(catalogue: &Catalogue, path: Path) -> String {
    let mut text = format!(
        "{} one way ({:.3} million km), round trip {}, outages up to {}\n\n",
        span(path.delay),
        path.kilometres() / 1e6,
        span(path.rtt()),
        span(path.outage)
    );
    for protocol in catalogue.protocols() {
        text.push_str(&answer_rows(protocol, &catalogue.verdict(protocol, path)));
    }
    if !path.outage.is_zero() {
        text.push_str(
            "\nSet-ups and single questions are tried between the outages, connections live through them.\n",
        );
    }
    text + "\n" + &wrapped(&conclusion(catalogue, path), 0)
}

/// A sentence on store and forward: the protocols for which only that remains, and the lifetime that bundles
/// need.
pub fn conclusion(catalogue: &Catalogue, path: Path) -> String {
    let lost: Vec<&str> = catalogue
        .protocols()
        .iter()
        .filter(|protocol| catalogue.verdict(protocol, path).only_store_and_forward)
        .map(|protocol| protocol.name.as_str())
        .collect();
    let lifetime = span(path.bundle_lifetime());
    let bundles = format!(
        "Store and forward works over it: the bundle protocol (RFC 9171) waits for no answer, and a bundle \
         crosses it with a \
         lifetime above {lifetime}."
    );
    match lost.as_slice() {
        [] => format!("No protocol here has a timer that cannot be set long enough for this path. {bundles}"),
        lost => format!(
            "Only store and forward remains for {}: their timers cannot be set long enough. {bundles}",
            lost.join("; ")
        ),
    }
}

fn row(catalogue: &Catalogue, protocol: &Protocol) -> [String; 6] {
    let reach = catalogue.reach(protocol);
    let farthest = match reach.limit {
        None => "anywhere",
        limit => catalogue.places_within(limit).last().map_or("-", |place: &Place| place.name.as_str()),
    };
    let races = if reach.perhaps == reach.limit { "" } else { "~" };
    [
        protocol.name.clone(),
        reach.inner.map_or("-".into(), seconds),
        reach.limit.map_or("∞".into(), |limit| races.to_owned() + &seconds(limit)),
        reach.limit.map_or("∞".into(), |limit| format!("{:.2}", kilometres(limit) / 1e6)),
        farthest.to_owned(),
        reach.limited_by.unwrap_or_else(|| "-".into()),
    ]
}

fn seconds(delay: Duration) -> String {
    format!("{}", (delay.as_secs_f64() * 100.0).round() / 100.0)
}

fn answer_rows(protocol: &Protocol, answer: &Answer) -> String {
    let mut text = format!(
        "{:<INDENT$}{:<8} first answer after {}\n",
        protocol.name,
        answer.verdict.name(),
        span(answer.first_answer)
    );
    let mut line = |words: &str| text.push_str(&wrapped(words, INDENT + 9));
    if answer.needs.is_empty() {
        line(&answer.why);
    }
    let (own, below): (Vec<&Need>, Vec<&Need>) =
        answer.needs.iter().partition(|need| need.protocol == protocol.name);
    for need in own {
        line(&format!("{}: waits {}, needs {}", need.timer, span(need.has), span(need.needed)));
        line(&format!("→ {}", need.setting));
    }
    if let Some(need) = below.first() {
        line(&format!("{} below it fails: see there", need.protocol));
    }
    if answer.only_store_and_forward {
        line("→ only store and forward");
    }
    text
}

/// The text in lines of at most [`WIDTH`] columns, each behind `indent` spaces.
fn wrapped(text: &str, indent: usize) -> String {
    let margin = " ".repeat(indent);
    let mut lines = String::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        for word in paragraph.split_whitespace() {
            if !line.is_empty() && indent + line.chars().count() + 1 + word.chars().count() > WIDTH {
                let _ = writeln!(lines, "{margin}{line}");
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        let _ = writeln!(lines, "{}", if line.is_empty() { line } else { format!("{margin}{line}") });
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_wider_than_a_hundred_columns() {
        let catalogue = Catalogue::embedded();
        let path = Path { delay: Duration::from_secs(480), outage: Duration::from_secs(7200) };
        for text in [table(&catalogue), path_table(&catalogue, path)] {
            for line in text.lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
            }
        }
    }

    #[test]
    fn a_word_moves_to_the_next_line_as_a_whole() {
        let text = wrapped(&"abcdefghi ".repeat(11), 4);
        assert_eq!(text.lines().map(str::len).collect::<Vec<_>>(), [93, 23]);
    }
}
