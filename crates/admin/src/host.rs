//! What the document says of the host: its name and its time zone.

use std::fs;
use std::path::Path;

/// The host's name; empty where the kernel does not say it.
pub(crate) fn name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// The host's time zone as the tz database has it, such as `Europe/Berlin`: by the variable TZ, or by
/// /etc/localtime (localtime(5)), or UTC without either. None where it has no such name.
pub(crate) fn time_zone() -> Option<String> {
    match std::env::var("TZ") {
        Ok(zone) if !zone.is_empty() => zone_name(zone.trim_start_matches(':')),
        _ => match fs::read_link("/etc/localtime") {
            Ok(target) => zone_of(&target),
            Err(_) if Path::new("/etc/localtime").exists() => None,
            Err(_) => Some("UTC".to_owned()),
        },
    }
}

/// The zone whose file this is: `/usr/share/zoneinfo/Europe/Berlin`.
fn zone_of(file: &Path) -> Option<String> {
    let (_, name) = file.to_str()?.split_once("zoneinfo/")?;
    zone_name(name.strip_prefix("posix/").or(name.strip_prefix("right/")).unwrap_or(name))
}

/// A name of the tz database, and no rule such as `CET-1CEST`.
fn zone_name(text: &str) -> Option<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '/');
    let is_name = text == "UTC" || text.contains('/') && !text.starts_with('/');
    (is_name && text.len() < 64 && text.chars().all(is_part)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_zone_is_named_by_its_file() {
        let zone = |path: &str| zone_of(Path::new(path));
        assert_eq!(zone("/usr/share/zoneinfo/Europe/Berlin").as_deref(), Some("Europe/Berlin"));
        assert_eq!(
            zone("../usr/share/zoneinfo/America/Argentina/Ushuaia").as_deref(),
            Some("America/Argentina/Ushuaia")
        );
        assert_eq!(zone("/usr/share/zoneinfo/posix/Etc/GMT+3").as_deref(), Some("Etc/GMT+3"));
        assert_eq!(zone("/usr/share/zoneinfo/UTC").as_deref(), Some("UTC"));
        assert_eq!(zone("/etc/adjtime"), None);
    }

    #[test]
    fn a_rule_and_markup_are_no_names() {
        for text in ["CET-1CEST,M3.5.0,M10.5.0/3", "/etc/passwd", "a/<b>", ""] {
            assert_eq!(zone_name(text), None, "{text}");
        }
    }

    #[test]
    fn this_host_has_a_name() {
        assert!(!name().is_empty() && !name().contains('\n'));
    }
}
