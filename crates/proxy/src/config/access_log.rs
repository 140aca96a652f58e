//! `[access_log]`: one line for each connection that has ended.

use std::path::PathBuf;

use bentpipe_config::{Bytes, Plain as _, Problem, Whole};
use serde::Deserialize;

use super::change::key_effects;

/// The size at which a file is rotated, where it is left out, bytes.
const MAX_SIZE: u64 = 100_000_000;
/// The rotated files that are kept, where it is left out.
const KEEP: u32 = 5;

/// `[access_log]`: off, unless there is a file or the journal is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessLogSettings {
    /// The file that lines are appended to.
    pub file: Option<PathBuf>,
    /// Lines go to the systemd journal, with a field for each value.
    pub journal: bool,
    /// The form of a line in the file.
    pub format: LogFormat,
    /// A file that would become longer is rotated: 10 kB to 1 TB, by default 100 MB.
    pub max_size: Option<Bytes<10_000, 1_000_000_000_000>>,
    /// Rotated files that are kept, 1 to 1000; by default 5.
    pub keep: Option<Whole<u32, 1, 1000>>,
}

key_effects!(AccessLogSettings { file: Now, journal: Now, format: Now, max_size: Now, keep: Now });

/// The form of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// An object of JSON.
    #[default]
    Json,
    /// A fixed number of fields between spaces.
    Text,
}

impl AccessLogSettings {
    /// Whether there is an access log.
    pub fn is_on(&self) -> bool {
        self.journal || self.file.is_some()
    }

    /// The size at which the file is rotated, bytes.
    pub(crate) fn max_size(&self) -> u64 {
        self.max_size.map_or(MAX_SIZE, |size| size.get().get())
    }

    /// Rotated files that are kept.
    pub(crate) fn keep(&self) -> u32 {
        self.keep.map_or(KEEP, Whole::get)
    }

    /// Checks that it goes to one place.
    pub(super) fn check(&self) -> Result<(), Problem> {
        match &self.file {
            Some(_) if self.journal => Err(Problem::of(
                "journal",
                "the access log goes to a file already; write file or journal = true",
            )),
            // The daemon's working directory is no place of its own.
            Some(path) if !path.is_absolute() || path.file_name().is_none() => {
                let path = path.display();
                Err(Problem::of(
                    "file",
                    format!(
                        "\"{path}\" is not the whole path of a file; write for example \"/var/log/bentpipe/access.log\""
                    ),
                ))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(text: &str) -> Result<AccessLogSettings, String> {
        let text = format!("[access_log]\n{text}\n[legs.a]\ninterface = \"sat0\"\n");
        Config::parse("x", &text).map(|config| config.access_log).map_err(|error| error.to_string())
    }

    #[test]
    fn it_is_off_unless_it_has_a_place() {
        let settings = parse("").unwrap();
        assert_eq!((settings.is_on(), settings.max_size(), settings.keep()), (false, 100_000_000, 5));
        assert!(parse("journal = true").unwrap().is_on());
        let settings = parse("file = \"/x/y\"\nformat = \"text\"\nmax_size = \"1MB\"\nkeep = 9").unwrap();
        assert_eq!((settings.is_on(), settings.format), (true, LogFormat::Text));
        assert_eq!((settings.max_size(), settings.keep()), (1_000_000, 9));
    }

    #[test]
    fn it_has_one_place_and_a_file_has_its_whole_path() {
        assert!(parse("file = \"/x\"\njournal = true").unwrap_err().contains(":3: access_log.journal: "));
        for path in ["access.log", "/", "../x", ""] {
            let error = parse(&format!("file = \"{path}\"")).unwrap_err();
            assert!(error.contains(":2: access_log.file: ") && error.contains("whole path"), "{error}");
        }
        assert!(parse("max_size = \"1kB\"").is_err() && parse("keep = 0").is_err());
    }
}
