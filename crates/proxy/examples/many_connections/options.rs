//! What the command line says.

use std::time::Duration;

const USAGE: &str =
    "usage: many_connections [--connections N] [--minutes M] [--quick] [--relay copy|splice] [--rate R]
  --connections N   connections that are held, 9000 by default
  --minutes M       how long they are held, 3 by default
  --quick           one minute
  --relay KIND      \"splice\" by default
  --rate R          others that come and go in a second, 100 by default";

#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) connections: usize,
    pub(crate) hold: Duration,
    pub(crate) relay: &'static str,
    /// Visitors in a second.
    pub(crate) rate: u32,
}

impl Options {
    pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options =
            Self { connections: 9000, hold: Duration::from_secs(180), relay: "splice", rate: 100 };
        while let Some(option) = arguments.next() {
            if option == "--quick" {
                options.hold = Duration::from_secs(60);
                continue;
            }
            let value = arguments.next().ok_or(USAGE)?;
            match option.as_str() {
                "--connections" => options.connections = number(&value)? as usize,
                "--minutes" => options.hold = Duration::from_secs(60 * u64::from(number(&value)?)),
                "--rate" => options.rate = number(&value)?,
                "--relay" => {
                    let known = ["copy", "splice"].into_iter().find(|relay| *relay == value);
                    options.relay = known.ok_or(USAGE)?;
                }
                _ => return Err(USAGE.into()),
            }
        }
        Ok(options)
    }

    /// With no more connections than there is room for.
    pub(crate) fn with_at_most(self, room: usize) -> Self {
        if room < self.connections {
            println!("{room} connections, not {}: the descriptors allow no more", self.connections);
        }
        Self { connections: self.connections.min(room), ..self }
    }

    /// Between two visitors.
    pub(crate) fn interval(&self) -> Duration {
        Duration::from_secs(1) / self.rate
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|&number| number > 0).ok_or_else(|| USAGE.into())
}
