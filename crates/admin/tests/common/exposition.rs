//! The text format of OpenMetrics 1.0, read strictly. Families go by the names of their samples, so that
//! those of counters end in `_total`.

use std::collections::BTreeMap;

/// A family as it was read.
#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) help: String,
    pub(crate) kind: String,
    /// Labels and value.
    pub(crate) samples: Vec<(BTreeMap<String, String>, f64)>,
}

/// A parser of the format that takes nothing which the format does not have, and no family in two pieces.
pub(crate) fn read(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    // The family's own name, and the name of its samples.
    let (mut described, mut current) = (String::new(), String::new());
    assert!(!text.contains("\n\n") && !text.contains('\r'), "lines end with a line feed");
    let text = text.strip_suffix("# EOF\n").expect("the text ends with # EOF");
    let mut help_before_type = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            help_before_type = Some(help.to_owned());
            described = name.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert_eq!(name, described, "the type is behind the help");
            assert!(matches!(kind, "counter" | "gauge"), "{line}");
            let help = help_before_type.take().unwrap_or_else(|| panic!("{line}"));
            current = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
            let family = Family { help, kind: kind.to_owned(), ..Family::default() };
            assert!(families.insert(current.clone(), family).is_none(), "{name} comes twice");
        } else if let Some(rest) = line.strip_prefix("# UNIT ") {
            let (name, unit) = rest.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            assert_eq!(name, described, "the unit is behind the type");
            assert!(name.ends_with(&format!("_{unit}")), "{line}: the name ends in the unit");
            assert!(families[&current].samples.is_empty(), "{line}");
        } else {
            let (name, labels, value) = read_sample(line);
            assert_eq!(name, current, "samples are behind their type");
            let family = families.get_mut(&name).unwrap();
            assert!(!family.kind.is_empty(), "{line}");
            assert!(family.samples.iter().all(|(others, _)| *others != labels), "twice: {line}");
            family.samples.push((labels, value));
        }
    }
    families
}

/// Panics unless each family has a help, a type, and a unit that its name says.
pub(crate) fn assert_well_described(families: &BTreeMap<String, Family>) {
    for (name, Family { help, kind, samples }) in families {
        assert!(name.starts_with("bentpipe_"), "{name}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name}: only counters end in _total");
        let (what, unit) = help.split_once(" Unit: ").unwrap_or_else(|| panic!("{name} has no unit: {help}"));
        let unit = unit.strip_suffix('.').unwrap_or_else(|| panic!("{name}: {help}"));
        assert!(what.ends_with('.') && what.len() > 5, "{name}: {help}");
        let bare = name.strip_suffix("_total").unwrap_or(name);
        for (said, suffix) in [
            ("seconds", "_seconds"),
            ("bytes", "_bytes"),
            ("bytes per second", "_bytes_per_second"),
            ("ratio", "_ratio"),
        ] {
            assert_eq!(unit == said, bare.ends_with(suffix), "{name}: {unit}");
        }
        // What has no such unit is a number of things, and says of which.
        assert!(
            !unit.is_empty() && unit.chars().all(|c| c.is_ascii_alphanumeric() || c == ' '),
            "{name}: {unit}"
        );
        for (labels, value) in samples {
            assert!(*value >= 0.0 || kind == "gauge", "{name} {labels:?}");
        }
    }
}

fn read_sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}"));
    let (name, mut rest) = line.split_at(end);
    let is_name = |text: &str| {
        let mut chars = text.chars();
        chars.next().is_some_and(|c| c.is_ascii_lowercase())
            && chars.all(|c| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit())
    };
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, behind) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(label) && !label.starts_with("__"), "{line}");
            let (value, behind) = read_quoted(behind);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
            match behind.strip_prefix(',') {
                Some(next) => rest = next,
                None => {
                    rest = behind.strip_prefix('}').unwrap_or_else(|| panic!("{line}"));
                    break;
                }
            }
        }
    }
    let value = match rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}")) {
        "inf" => f64::INFINITY,
        "-inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        number => {
            assert!(number.bytes().all(|b| b.is_ascii_digit() || b"+-.e".contains(&b)), "{line}");
            number.parse().unwrap_or_else(|_| panic!("{line}"))
        }
    };
    (name.to_owned(), labels, value)
}

/// A value up to its closing quote, and what is behind that.
fn read_quoted(text: &str) -> (String, &str) {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((place, c)) = chars.next() {
        match c {
            '"' => return (value, &text[place + 1..]),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, c @ ('\\' | '"'))) => value.push(c),
                other => panic!("\\ and {other:?} in {text}"),
            },
            c => value.push(c),
        }
    }
    panic!("no closing quote: {text}")
}
