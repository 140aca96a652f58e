//! A line of the access log: its fields, and the two ways to write them.

use std::fmt::{self, Write as _};
use std::net::SocketAddr;

use bentpipe_kernel::Weight;
use bentpipe_units::human::rfc3339;
use serde::Serialize;

use super::Record;
use crate::config::{Handshake, LogFormat};

/// The fields of a line, in the order of the text. As JSON, one that is absent is left out.
#[derive(Debug, Serialize)]
pub(crate) struct Line<'a> {
    /// UTC, RFC 3339 with milliseconds.
    start: String,
    duration_s: f64,
    client: SocketAddr,
    server: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    dscp: Option<u8>,
    client_leg: &'a str,
    server_leg: &'a str,
    up_bytes: u64,
    down_bytes: u64,
    end: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    client_retransmissions: u32,
    server_retransmissions: u32,
    handshake: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u16>,
}

impl<'a> Line<'a> {
    pub(crate) fn of(record: &'a Record) -> Self {
        let Record { pair, legs, .. } = record;
        let [client_retransmissions, server_retransmissions] = record.retransmissions;
        Self {
            start: rfc3339(record.start),
            duration_s: record.duration.as_millis() as f64 / 1000.0,
            client: record.client,
            server: record.server,
            dscp: Some(record.dscp).filter(|&dscp| dscp != 0),
            client_leg: legs.get(pair.client).name(),
            server_leg: legs.get(pair.server).name(),
            up_bytes: record.up,
            down_bytes: record.down,
            end: record.ending.word(),
            by: record.ending.by(),
            client_retransmissions,
            server_retransmissions,
            handshake: match record.handshake {
                Handshake::Early => "early",
                Handshake::Faithful => "faithful",
            },
            weight: Some(pair.weight).filter(|&weight| weight != Weight::default()).map(Weight::get),
        }
    }

    /// Appends the line, with its end.
    pub(crate) fn write(&self, format: LogFormat, out: &mut String) {
        match format {
            // Neither its types nor its keys can fail, and a String takes everything.
            LogFormat::Json => out.push_str(&serde_json::to_string(self).unwrap_or_default()),
            LogFormat::Text => {
                let _ = write!(out, "{self}");
            }
        }
        out.push('\n');
    }

    /// The fields for the journal: names as systemd.journal-fields(7) allows them.
    pub(crate) fn journal_fields(&self) -> Vec<(String, String)> {
        let mut fields = vec![("MESSAGE".to_owned(), self.to_string())];
        if let Ok(serde_json::Value::Object(values)) = serde_json::to_value(self) {
            fields.extend(values.into_iter().map(|(key, value)| {
                let text = value.as_str().map_or_else(|| value.to_string(), |text| Word(text).to_string());
                (format!("BENTPIPE_{}", key.to_ascii_uppercase()), text)
            }));
        }
        fields
    }
}

/// Fields separated by single spaces; `-` for one that is absent.
impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |number: Option<u16>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        write!(
            f,
            "{} {:.3} {} {} {} {} {} {} {} {} {} {} {} {} {}",
            self.start,
            self.duration_s,
            self.client,
            self.server,
            number(self.dscp.map(u16::from)),
            Word(self.client_leg),
            Word(self.server_leg),
            self.up_bytes,
            self.down_bytes,
            self.end,
            self.by.unwrap_or("-"),
            self.client_retransmissions,
            self.server_retransmissions,
            self.handshake,
            number(self.weight),
        )
    }
}

/// A name as one word of printable ASCII: a leg may have any key of TOML as its name.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("\"\"");
        }
        self.0.chars().try_for_each(|c| match c {
            '\\' => f.write_str("\\\\"),
            c if c.is_ascii_graphic() => f.write_char(c),
            c => write!(f, "{}", c.escape_unicode()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::IpAddr;
    use std::time::{Duration, UNIX_EPOCH};

    const FIELDS: usize = 15;

    fn any_line() -> impl Strategy<Value = (String, String, Line<'static>)> {
        let address = || (any::<IpAddr>(), any::<u16>()).prop_map(SocketAddr::from);
        let by = prop_oneof![Just(None), Just(Some("client")), Just(Some("limits.connections"))];
        (
            (0..4_000_000_000_000u64, 0..1_000_000_000u64, address(), address(), any::<Option<u8>>()),
            ("\\PC{0,20}", "(?s).{0,20}", any::<u64>(), any::<u64>(), by),
            (any::<u32>(), any::<u32>(), proptest::option::of(2u16..=100)),
        )
            .prop_map(
                |(
                    (start, duration, client, server, dscp),
                    (near, far, up, down, by),
                    (one, other, weight),
                )| {
                    let leak = |name: &String| &*Box::leak(name.clone().into_boxed_str());
                    let line = Line {
                        start: rfc3339(UNIX_EPOCH + Duration::from_millis(start)),
                        duration_s: duration as f64 / 1000.0,
                        client,
                        server,
                        dscp,
                        client_leg: leak(&near),
                        server_leg: leak(&far),
                        up_bytes: up,
                        down_bytes: down,
                        end: "closed",
                        by,
                        client_retransmissions: one,
                        server_retransmissions: other,
                        handshake: "early",
                        weight,
                    };
                    (near, far, line)
                },
            )
    }

    proptest! {
        #[test]
        fn json_reads_back_as_one_line_with_every_field((near, far, line) in any_line()) {
            let mut text = String::new();
            line.write(LogFormat::Json, &mut text);
            prop_assert_eq!(text.matches('\n').count(), 1);
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(value["client_leg"].as_str(), Some(&*near));
            prop_assert_eq!(value["server_leg"].as_str(), Some(&*far));
            prop_assert_eq!(value["client"].as_str().unwrap().parse::<SocketAddr>().unwrap(), line.client);
            prop_assert_eq!(value["up_bytes"].as_u64(), Some(line.up_bytes));
            prop_assert_eq!(value["duration_s"].as_f64(), Some(line.duration_s));
            prop_assert_eq!(value.get("dscp").and_then(|dscp| dscp.as_u64()), line.dscp.map(u64::from));
            let absent = [line.dscp.is_none(), line.by.is_none(), line.weight.is_none()];
            let absent = absent.into_iter().filter(|absent| *absent).count();
            prop_assert_eq!(value.as_object().unwrap().len(), FIELDS - absent);
        }

        #[test]
        fn text_has_the_same_number_of_fields_whatever_a_leg_is_called((_, _, line) in any_line()) {
            let mut text = String::new();
            line.write(LogFormat::Text, &mut text);
            let line = text.strip_suffix('\n').unwrap();
            prop_assert!(line.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{}", line);
            prop_assert_eq!(line.split(' ').count(), FIELDS);
            prop_assert!(line.split(' ').all(|field| !field.is_empty()));
        }

        #[test]
        fn journal_fields_have_names_and_values_that_the_journal_takes((_, _, line) in any_line()) {
            for (name, value) in line.journal_fields() {
                prop_assert!(name.chars().all(|c| c.is_ascii_uppercase() || c == '_'), "{}", name);
                prop_assert!(!value.contains('\n'));
            }
        }
    }
}
