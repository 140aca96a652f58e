//! The list of profiles.

use bentpipe_lab::table::{Cell, Column, Table};
use bentpipe_link::{DirectionConfig, Profile};
use bentpipe_units::Span;

/// Every profile with its values.
pub(super) fn list() -> String {
    let columns =
        ["profile", "down", "up", "delay, one way", "RTT", "loss", "queue down", "queue up", "outages"];
    let mut table = Table::new("Link profiles", columns.map(|name| Column::new(name, name)).into());
    for profile in Profile::ALL {
        let config = profile.config();
        let (down, up) = (&config.forward, &config.reverse);
        table.push(vec![
            Cell::text(profile.to_string()),
            Cell::text(rate(down)),
            Cell::text(rate(up)),
            Cell::text(Span::from(down.delay).to_string()),
            Cell::text(Span::from(down.delay + up.delay).to_string()),
            Cell::text(format!("{}%", down.per.get() * 100.0)),
            Cell::text(queue(down)),
            Cell::text(queue(up)),
            Cell::text(outages(down)),
        ]);
    }
    let summaries = Profile::ALL.map(|profile| format!("{profile:<13} {}\n", profile.summary()));
    format!("{}\n{}\n{VARY}", table.to_text(), summaries.concat())
}

const VARY: &str = "\
leo-handovers, rain-front, aircraft and ship are made of --seed: other seeds, other links. Their nominal
rate and delay are in the table; --print-trace down has what changes.
";

fn rate(direction: &DirectionConfig) -> String {
    direction.rate.map_or_else(|| "unlimited".to_owned(), |rate| rate.to_string())
}

fn queue(direction: &DirectionConfig) -> String {
    direction.queue_limit().map_or_else(|| "none".to_owned(), |bytes| bytes.to_string())
}

fn outages(direction: &DirectionConfig) -> String {
    match direction.outages.total().as_secs() {
        0 => "none".to_owned(),
        seconds => format!("{} min in all", (seconds + 30) / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_there_with_its_values() {
        let text = list();
        let row =
            |name: &str| text.lines().find(|line| line.trim_start().starts_with(name)).unwrap().to_owned();
        for (profile, values) in [
            ("geo", ["10Mbit/s", "300ms", "600ms", "750kB"]),
            ("leo", ["100Mbit/s", "20Mbit/s", "40ms", "500kB"]),
            ("train", ["10Mbit/s", "300ms", "1%", "19 min in all"]),
        ] {
            for value in values {
                assert!(row(profile).contains(value), "{value} is not in: {}", row(profile));
            }
        }
        assert!(Profile::ALL.iter().all(|profile| text.contains(profile.summary())), "{text}");
    }
}
