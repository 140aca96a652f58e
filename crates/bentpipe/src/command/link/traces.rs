//! Traces from files, and to them.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use bentpipe_link::{DirectionConfig, LinkConfig, LinkTrace};

/// How long a profile made of a seed goes on before it begins anew, where nothing else is asked for.
pub(super) const PROFILE_LASTS: Duration = Duration::from_secs(3600);

/// One of the two directions, seen from the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Towards {
    /// To the command.
    Down,
    /// From the command.
    Up,
}

impl Towards {
    pub(super) fn of(self, link: &LinkConfig) -> &DirectionConfig {
        match self {
            Self::Down => &link.forward,
            Self::Up => &link.reverse,
        }
    }
}

impl FromStr for Towards {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "down" => Ok(Self::Down),
            "up" => Ok(Self::Up),
            _ => Err("write down, to the command, or up, from it".into()),
        }
    }
}

/// Reads a trace in its own format or in mahimahi's, whose lines are numbers.
pub(super) fn read(path: &Path) -> anyhow::Result<LinkTrace> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the link trace {}", path.display()))?;
    let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let trace = match first.parse::<u64>() {
        Ok(_) => LinkTrace::from_mahimahi(&text),
        Err(_) => LinkTrace::from_csv(&text),
    };
    trace.with_context(|| format!("cannot use the link trace {}", path.display()))
}

/// Adds the delays of a file of LeoReplayer.
pub(super) fn with_delays(trace: LinkTrace, path: &Path) -> anyhow::Result<LinkTrace> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the delays {}", path.display()))?;
    trace.with_leoreplayer_delays(&text).with_context(|| format!("cannot use the delays {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_leoreplayer_are_read_together() {
        let folder = tempfile::tempdir().unwrap();
        let [rates, delays] = ["bw_1.txt", "delay_1.txt"].map(|name| folder.path().join(name));
        std::fs::write(&rates, "0\n1\n2\n20\n").unwrap();
        std::fs::write(&delays, "24\n18\n").unwrap();
        let trace = with_delays(read(&rates).unwrap(), &delays).unwrap();
        assert_eq!(trace.longest_delay(), Some(Duration::from_millis(24)));
        assert!(trace.to_csv().contains("\n0.01,,18ms,\n"), "{}", trace.to_csv());
        std::fs::write(&delays, "24\nlate\n").unwrap();
        let error = format!("{:#}", with_delays(LinkTrace::default(), &delays).unwrap_err());
        assert!(error.contains("delay_1.txt") && error.contains("line 2"), "{error}");
    }

    #[test]
    fn a_direction_is_down_or_up() {
        assert_eq!(("down".parse(), "up".parse()), (Ok(Towards::Down), Ok(Towards::Up)));
        assert!("forward".parse::<Towards>().unwrap_err().contains("down"));
    }
}
