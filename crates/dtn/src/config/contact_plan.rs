//! The contact plan in a file of its own, in ION's format.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bentpipe_config::{Fault, Place};

use super::{ConfigError, NodeConfig};
use crate::DtnTime;
use crate::route::ion::{self, LineFault};

/// The longest plan that is read, bytes: some hundred thousand lines.
const MAX_PLAN: u64 = 4 << 20;

impl NodeConfig {
    /// Reads the file that `node.contact_plan` names, if it names one, and adds its contacts to those of the
    /// configuration. Relative times in it count from `now`. Returns what is accepted, but hardly meant.
    ///
    /// # Errors
    /// The file cannot be read, or all of its lines that are not accepted.
    pub fn read_contact_plan(&mut self, now: DtnTime) -> Result<Vec<Fault>, ConfigError> {
        let Some(path) = &self.node.contact_plan else { return Ok(Vec::new()) };
        let file = path.display().to_string();
        let text = match read(path) {
            Ok(text) if text.len() as u64 > MAX_PLAN => {
                return Err(ConfigError::TooLong { file, limit: MAX_PLAN });
            }
            Ok(text) => text,
            Err(source) => return Err(ConfigError::Read { file, source }),
        };
        let in_file = |fault| in_file(&file, &text, fault);
        let faults = |faults: Vec<LineFault>| faults.into_iter().map(in_file).collect();
        let plan = ion::parse(&text, now).map_err(|wrong| ConfigError::Faults(faults(wrong)))?;
        self.contacts.extend(plan.contacts);
        Ok(faults(plan.warnings))
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // One byte more than is accepted tells a file that is too long, and a device that never ends.
    File::open(path)?.take(MAX_PLAN + 1).read_to_string(&mut text)?;
    Ok(text)
}

fn in_file(file: &str, text: &str, LineFault { line, what }: LineFault) -> Fault {
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let written =
        text.lines().nth(line.saturating_sub(1)).map(|line| line.trim().chars().map(visible).take(100));
    let (file, key) = (file.to_owned(), String::new());
    Fault { file, place: Place::Line(line), key, what, written: written.map(Iterator::collect) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(folder: &Path, plan: Option<&str>) -> NodeConfig {
        let path = folder.join("node.toml");
        std::fs::write(&path, "[node]\nid = \"ipn:1.0\"\ncontact_plan = \"plan.ionrc\"\n").unwrap();
        if let Some(plan) = plan {
            std::fs::write(folder.join("plan.ionrc"), plan).unwrap();
        }
        NodeConfig::load(path).unwrap()
    }

    #[test]
    fn its_contacts_are_added_and_its_errors_have_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        let read = |plan| {
            let mut config = config(folder.path(), plan);
            let warnings = config.read_contact_plan(DtnTime::from_millis(5000));
            warnings.map(|warnings| (config.contacts.len(), warnings))
        };
        let error = read(None).unwrap_err().to_string();
        assert!(error.contains("cannot read") && error.contains("plan.ionrc"), "{error}");
        let (contacts, warnings) = read(Some("# plan\na contact +0 +9 1 2 9\n")).unwrap();
        assert_eq!((contacts, warnings.len()), (1, 1));
        let warning = warnings[0].to_string();
        assert!(warning.contains("plan.ionrc:2: no range from 1 to 2"), "{warning}");
        let error = read(Some("\na contact\nb\nc\n")).unwrap_err().to_string();
        assert!(error.contains("plan.ionrc:2: a contact has") && error.contains("plan.ionrc:4: "), "{error}");
        let error = read(Some(&"#".repeat(5 << 20))).unwrap_err().to_string();
        assert!(error.contains("longer than"), "{error}");
    }
}
