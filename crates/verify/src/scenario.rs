//! What a scenario says of its links, read anew from its TOML: of the sections `[[link]]` what happens to
//! packets between two nodes, of the sections `[[flow]]` their lengths.

mod files;

use std::collections::BTreeSet;
use std::path::Path;

use toml::{Table, Value};

use crate::InputError;
use crate::chance::GilbertElliott;
use crate::quantity::{bits_per_second, bytes, nanos, probability, text};
use crate::steps::{Service, Steps};
use files::Trace;

/// The links and flows of a scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub(crate) links: Vec<Link>,
    flows: Vec<Flow>,
}

#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) name: String,
    /// The forward and the reverse one.
    pub(crate) directions: [Direction; 2],
}

/// What a direction of a link does to packets.
#[derive(Debug, Clone)]
pub(crate) struct Direction {
    /// `None` is infinitely fast.
    pub(crate) service: Option<Service>,
    /// Wire bytes.
    pub(crate) queue: Option<u64>,
    /// Nanoseconds.
    pub(crate) delays: Steps<u64>,
    pub(crate) per: Steps<f64>,
    /// Whether `per` comes from a trace, in which 1 is an outage.
    pub(crate) per_varies: bool,
    /// The packets that are lost whatever chance says, by their numbers among those sent.
    pub(crate) prescribed: BTreeSet<u64>,
    pub(crate) bursts: Option<GilbertElliott>,
    /// Starts and ends, nanoseconds, sorted and apart.
    pub(crate) outages: Vec<(u64, u64)>,
    /// By how much these may be rounded: a file has them in seconds or kilometres.
    pub(crate) outage_rounding: u64,
    pub(crate) encapsulation: Encapsulation,
    pub(crate) duplicate: f64,
    pub(crate) reorder: f64,
    /// Nanoseconds.
    pub(crate) reorder_by: u64,
    pub(crate) corrupt: f64,
    /// Whether some of what it carries are reports of an ARQ, which no corruption hits.
    pub(crate) has_reports: bool,
}

/// The bytes that a link layer adds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Encapsulation {
    overhead: u64,
    /// Payload and header of each frame.
    frame: Option<(u64, u64)>,
}

#[derive(Debug, Clone)]
struct Flow {
    name: String,
    is_copied: bool,
    bytes: Option<u64>,
}

/// The keys of a direction.
const DIRECTION: [&str; 13] = [
    "rate",
    "delay",
    "per",
    "queue",
    "losses",
    "gilbert_elliott",
    "outages",
    "trace",
    "encapsulation",
    "duplicate",
    "reorder",
    "reorder_by",
    "corrupt",
];
/// IP bytes of a full-size packet.
const FULL_PACKET: u64 = 1500;
/// The default queue takes so many of them, at least.
const DEFAULT_QUEUE_PACKETS: u64 = 16;
const REORDER_BY: u64 = 10_000_000;

impl Scenario {
    /// Reads a scenario's file; `settings` are as those of `bentpipe sim --set`: `link.satellite.per=1%`.
    ///
    /// # Errors
    /// If the file, or one that it names, cannot be read, or says what no link is.
    pub fn load(path: &Path, settings: &[String]) -> Result<Self, InputError> {
        let fail = |error| InputError(format!("cannot read the scenario {}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(fail)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, folder, settings)
            .map_err(|InputError(why)| InputError(format!("the scenario {}: {why}", path.display())))
    }

    /// The same of a text; the files that it names are in `folder`.
    ///
    /// # Errors
    /// As those of [`load`](Self::load).
    pub fn parse(scenario: &str, folder: &Path, settings: &[String]) -> Result<Self, InputError> {
        let mut table: Table = scenario.parse().map_err(|error| InputError(format!("{error}")))?;
        for setting in settings {
            set(&mut table, setting).map_err(InputError)?;
        }
        let links = sections(&table, "link").map(|table| {
            let name = name(table)?;
            Link::read(table, folder).map_err(|why| InputError(format!("link.{name}: {why}")))
        });
        let links = links.collect::<Result<Vec<_>, _>>()?;
        if links.is_empty() {
            return Err(InputError("it has no section [[link]]".to_owned()));
        }
        let flow = |table: &Table| {
            let bytes = table.get("bytes").map(bytes).transpose().map_err(InputError)?;
            Ok(Flow { name: name(table)?.to_owned(), is_copied: table.contains_key("count"), bytes })
        };
        Ok(Self { links, flows: sections(&table, "flow").map(flow).collect::<Result<_, InputError>>()? })
    }

    /// How much a flow sends: `None` if there is no such flow, `Some(None)` if it is without end.
    pub(crate) fn bytes_of_flow(&self, name: &str) -> Option<Option<u64>> {
        let is_it = |flow: &&Flow| {
            let copy = name.strip_prefix(&flow.name).and_then(|rest| rest.strip_prefix('-'));
            let is_copy = copy.is_some_and(|number| number.parse::<u64>().is_ok());
            if flow.is_copied { is_copy } else { name == flow.name }
        };
        self.flows.iter().find(is_it).map(|flow| flow.bytes)
    }
}

fn sections<'a>(table: &'a Table, key: &str) -> impl Iterator<Item = &'a Table> {
    table.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table)
}

fn name(table: &Table) -> Result<&str, InputError> {
    let name = table.get("name").and_then(Value::as_str);
    name.ok_or_else(|| InputError("a section has no name".to_owned()))
}

/// Writes a setting into the tables: sections of a list are found by their names.
fn set(table: &mut Table, setting: &str) -> Result<(), String> {
    let wrong = || format!("\"{setting}\" is no setting: write KEY=VALUE, for example link.satellite.per=1%");
    let (key, text) = setting.split_once('=').ok_or_else(wrong)?;
    let value = format!("value = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
    let value = value.unwrap_or_else(|| Value::String(text.trim().to_owned()));
    let mut parts = key.trim().split('.').peekable();
    let mut table = table;
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            table.insert(part.to_owned(), value);
            return Ok(());
        }
        let is_table = matches!(table.get(part), Some(Value::Table(_) | Value::Array(_)));
        if !is_table {
            table.insert(part.to_owned(), Value::Table(Table::new()));
        }
        table = match table.get_mut(part) {
            Some(Value::Table(inner)) => inner,
            Some(Value::Array(list)) => {
                let name = parts.next().ok_or_else(wrong)?;
                let entry = |value: &&mut Value| value.get("name").and_then(Value::as_str) == Some(name);
                let found = list.iter_mut().find(entry).and_then(Value::as_table_mut);
                found.ok_or_else(|| format!("\"{setting}\": there is no {part} {name}"))?
            }
            _ => return Err(wrong()),
        };
    }
    Err(wrong())
}

impl Link {
    fn read(table: &Table, folder: &Path) -> Result<Self, String> {
        let name = table.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let has_reports = table.get("arq").is_some_and(|arq| arq.as_str() != Some("off"));
        let keys = DIRECTION.into_iter().filter_map(|key| Some((key.to_owned(), table.get(key)?.clone())));
        let forward: Table = keys.collect();
        let mut reverse = forward.clone();
        if let Some(own) = table.get("reverse") {
            let own = own.as_table().ok_or("reverse is not a table")?;
            reverse.extend(own.clone());
        }
        let read = |keys: &Table| Direction::read(keys, folder, has_reports);
        let reverse = read(&reverse).map_err(|why| format!("reverse: {why}"))?;
        Ok(Self { name, directions: [read(&forward)?, reverse] })
    }
}

impl Direction {
    fn read(keys: &Table, folder: &Path, has_reports: bool) -> Result<Self, String> {
        if let Some(unknown) = keys.keys().find(|key| !DIRECTION.contains(&key.as_str())) {
            return Err(format!("{unknown} is not known"));
        }
        let given = |key: &str, off: &str| keys.get(key).filter(|value| value.as_str() != Some(off));
        let rate = given("rate", "unlimited").map(|rate| bits_per_second(text(rate)?)).transpose()?;
        let span = |key: &str| keys.get(key).map(|span| nanos(&quantity(span))).transpose();
        let delay = span("delay")?.unwrap_or(0);
        let chance = |key: &str| keys.get(key).map_or(Ok(0.0), probability);
        let per = chance("per")?;
        let trace = keys.get("trace").map_or(Ok(Trace::default()), |trace| Trace::read(trace, folder))?;
        let encapsulation =
            keys.get("encapsulation").map_or(Ok(Encapsulation::default()), Encapsulation::read)?;
        let rates = trace.rates(rate);
        let delays = trace.delays(delay);
        let highest = rates.as_ref().and_then(|rates| rates.values().max());
        let longest = delays.values().max().unwrap_or(0).max(delay);
        let queue = match given("queue", "bdp") {
            Some(queue) => Some(bytes(queue)?),
            None => highest.max(rate).map(|rate| {
                let bdp = u128::from(rate) * 2 * u128::from(longest) / 8_000_000_000;
                let packets = DEFAULT_QUEUE_PACKETS * encapsulation.wire_bytes(FULL_PACKET);
                u64::try_from(bdp).unwrap_or(u64::MAX).max(packets)
            }),
        };
        let reorder = chance("reorder")?;
        Ok(Self {
            service: rates.map(Service::new),
            queue,
            delays,
            per: trace.error_rates(per),
            per_varies: trace.has_error_rates(),
            prescribed: keys.get("losses").map_or(Ok(BTreeSet::new()), read_numbers)?,
            bursts: given("gilbert_elliott", "off").map(read_bursts).transpose()?,
            outages: keys.get("outages").map_or(Ok(Vec::new()), |rows| files::outages(rows, folder))?,
            outage_rounding: keys.get("outages").map_or(0, |rows| u64::from(rows.is_table())),
            encapsulation,
            duplicate: chance("duplicate")?,
            reorder,
            reorder_by: if reorder > 0.0 { span("reorder_by")?.unwrap_or(REORDER_BY) } else { 0 },
            corrupt: chance("corrupt")?,
            has_reports,
        })
    }
}

/// A quantity as a text; a number without a unit, as 0, is its digits.
fn quantity(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn read_numbers(value: &Value) -> Result<BTreeSet<u64>, String> {
    let number = |value: &Value| value.as_integer().and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
    let numbers = value.as_array().and_then(|list| list.iter().map(number).collect());
    numbers.ok_or_else(|| "losses is not a list of numbers from 1 on".to_owned())
}

fn read_bursts(value: &Value) -> Result<GilbertElliott, String> {
    let table = value.as_table().ok_or("gilbert_elliott is not a table")?;
    let given = |key: &str| table.get(key).map(probability).transpose();
    let required = |key: &str| given(key)?.ok_or_else(|| format!("gilbert_elliott has no {key}"));
    Ok(GilbertElliott {
        good_to_bad: required("good_to_bad")?,
        bad_to_good: required("bad_to_good")?,
        loss_in_good: given("loss_in_good")?.unwrap_or(0.0),
        loss_in_bad: given("loss_in_bad")?.unwrap_or(1.0),
        slot: table.get("slot").map(|slot| nanos(&quantity(slot))).transpose()?,
    })
}

impl Encapsulation {
    fn read(value: &Value) -> Result<Self, String> {
        let known = |overhead, payload, header| Ok(Self { overhead, frame: Some((payload, header)) });
        match value {
            Value::String(name) => match name.as_str() {
                "none" => Ok(Self::default()),
                // ETSI EN 301 192: 12 bytes of section header and 4 of CRC behind a pointer field of 1, in
                // transport stream packets of 188 bytes with 4 of header.
                "dvb-mpe" => known(17, 184, 4),
                // ITU-T I.363.5: a trailer of 8 bytes, in cells of 53 bytes with 5 of header.
                "aal5-atm" => known(8, 48, 5),
                _ => Err(format!("the encapsulation \"{name}\" is not known")),
            },
            Value::Table(table) => {
                let number = |key: &str| {
                    let number =
                        table.get(key).map(|value| value.as_integer().and_then(|n| n.try_into().ok()));
                    number.map(|number| number.ok_or_else(|| format!("encapsulation.{key} is no number")))
                };
                let overhead = number("overhead").transpose()?.unwrap_or(0);
                let header = number("frame_header").transpose()?.unwrap_or(0);
                let payload: Option<u64> = number("frame_payload").transpose()?.filter(|bytes| *bytes > 0);
                Ok(Self { overhead, frame: payload.map(|payload| (payload, header)) })
            }
            _ => Err("encapsulation is neither a name nor a table".to_owned()),
        }
    }

    /// The bytes on the wire of a packet.
    pub(crate) fn wire_bytes(self, bytes: u64) -> u64 {
        let padded =
            |(payload, header): (u64, u64)| (bytes + self.overhead).div_ceil(payload) * (payload + header);
        self.frame.map_or(bytes + self.overhead, padded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINKS: &str = r#"
        [[link]]
        name = "satellite"
        between = ["gateway", "terminal"]
        rate = "10Mbit/s"
        delay = "300ms"
        per = "1%"
        encapsulation = "dvb-mpe"
        reverse = { per = 0, rate = "200kbit/s", queue = "15kB" }
        snoop = { at = "gateway" }

        [[flow]]
        name = "file"
        bytes = "1MB"

        [[flow]]
        name = "stream"
        count = 2
    "#;

    fn parse(settings: &[&str]) -> Result<Scenario, InputError> {
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        Scenario::parse(LINKS, Path::new(""), &settings)
    }

    #[test]
    fn the_reverse_direction_is_as_the_forward_one_but_for_its_own_keys() {
        let scenario = parse(&[]).unwrap();
        let [forward, reverse] = &scenario.links[0].directions;
        assert_eq!((forward.queue, reverse.queue), (Some(750_000), Some(15_000)));
        assert_eq!((forward.per.at(0), reverse.per.at(0)), (0.01, 0.0));
        assert_eq!((forward.delays.at(0), reverse.delays.at(0)), (300_000_000, 300_000_000));
        assert_eq!(reverse.encapsulation.wire_bytes(1500), 1692);
        assert_eq!(scenario.bytes_of_flow("file"), Some(Some(1_000_000)));
        assert_eq!(scenario.bytes_of_flow("stream-2"), Some(None));
        assert_eq!((scenario.bytes_of_flow("stream"), scenario.bytes_of_flow("file-1")), (None, None));
    }

    #[test]
    fn settings_find_sections_by_name_and_make_tables() {
        let settings = ["duration=10s", "link.satellite.reverse.queue=bdp", "link.satellite.per=2%"];
        let scenario = parse(&settings).unwrap();
        let [forward, reverse] = &scenario.links[0].directions;
        assert_eq!((forward.per.at(0), reverse.queue), (0.02, Some(16 * 1692)));
        let outages = "link.satellite.outages=[{ start = \"2s\", duration = \"1s\" }]";
        let scenario = parse(&[outages]).unwrap();
        assert_eq!(scenario.links[0].directions[1].outages, [(2_000_000_000, 3_000_000_000)]);
        for wrong in ["link.none.per=1", "link=", "per"] {
            assert!(parse(&[wrong]).is_err(), "{wrong}");
        }
        let profile = parse(&["link.satellite.trace={ profile = \"ship\" }"]).unwrap_err().to_string();
        assert!(profile.contains("--print-trace"), "{profile}");
    }

    #[test]
    fn frames_are_padded() {
        let table: Table = "e = { overhead = 4, frame_payload = 60, frame_header = 4 }".parse().unwrap();
        let encapsulation = Encapsulation::read(&table["e"]).unwrap();
        assert_eq!([56, 57].map(|bytes| encapsulation.wire_bytes(bytes)), [64, 128]);
    }
}
