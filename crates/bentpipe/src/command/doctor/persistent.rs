//! The files by which kernel parameters and modules are there again after a start of the host: sysctl.d(5),
//! modules-load.d(5).

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use bentpipe_kernel::host::Step;

const HEAD: &str = "# Written by bentpipe doctor --fix: settings that bentpipe needs.\n";

/// One of the two files, with the entries to add. Its other entries stay.
pub(super) struct PersistentFile {
    path: PathBuf,
    kind: Kind,
    /// Key and value, or a module's name.
    entries: Vec<(String, Option<String>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sysctls,
    Modules,
}

impl PersistentFile {
    pub(super) fn sysctls(etc: &Path) -> Self {
        Self { path: etc.join("sysctl.d/60-bentpipe.conf"), kind: Kind::Sysctls, entries: Vec::new() }
    }

    pub(super) fn modules(etc: &Path) -> Self {
        Self { path: etc.join("modules-load.d/60-bentpipe.conf"), kind: Kind::Modules, entries: Vec::new() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The line that makes a step last, if it belongs into this file.
    pub(super) fn line(&self, step: &Step) -> Option<String> {
        self.entry(step).map(|entry| line(&entry))
    }

    /// Takes up a step, if it belongs into this file.
    pub(super) fn add(&mut self, step: &Step) {
        self.entries.extend(self.entry(step));
    }

    /// Writes the file as a whole, so that none is ever half written.
    ///
    /// # Errors
    /// That of the file system, with the file's name.
    pub(super) fn write(&self) -> anyhow::Result<()> {
        let before = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            other => other.with_context(|| format!("cannot read {}", self.path.display()))?,
        };
        self.replace(&self.merged(&before)).with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn replace(&self, text: &str) -> std::io::Result<()> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        // A name that sysctl and modules-load do not read, should it stay behind.
        let new = self.path.with_extension("new");
        let mut file = File::create(&new)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &self.path)
    }

    fn entry(&self, step: &Step) -> Option<(String, Option<String>)> {
        match (self.kind, step) {
            (Kind::Sysctls, Step::Sysctl { key, value }) => Some((key.clone(), Some(value.clone()))),
            (Kind::Modules, Step::Module(name)) => Some((name.clone(), None)),
            _ => None,
        }
    }

    /// The existing lines without those that are replaced, followed by the new lines.
    fn merged(&self, before: &str) -> String {
        let is_replaced = |line: &str| self.entries.iter().any(|(key, _)| key_of(line) == Some(key));
        let kept = before.lines().filter(|line| !is_replaced(line)).map(str::to_owned);
        let lines: Vec<String> = kept.chain(self.entries.iter().map(line)).collect();
        let head = if before.is_empty() { HEAD } else { "" };
        format!("{head}{}\n", lines.join("\n"))
    }
}

fn line((key, value): &(String, Option<String>)) -> String {
    value.as_ref().map_or_else(|| key.clone(), |value| format!("{key} = {value}"))
}

/// The key or the module of a line; none of a comment or an empty line.
fn key_of(line: &str) -> Option<&str> {
    let key = line.split('=').next().unwrap_or_default().trim().trim_start_matches('-');
    (!key.is_empty() && !key.starts_with(['#', ';'])).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gains_new_rows_and_keeps_the_old_ones() {
        let etc = tempfile::tempdir().unwrap();
        let write = |steps: &[Step]| {
            let mut file = PersistentFile::sysctls(etc.path());
            steps.iter().for_each(|step| file.add(step));
            file.write().unwrap();
            fs::read_to_string(file.path()).unwrap()
        };
        let text = write(&[Step::sysctl("net.ipv4.tcp_wmem", "1 2 3"), Step::Module("tcp_bbr".into())]);
        assert_eq!(text, format!("{HEAD}net.ipv4.tcp_wmem = 1 2 3\n"));
        let text = write(&[Step::sysctl("net.ipv4.ip_forward", 1)]);
        assert!(text.ends_with("tcp_wmem = 1 2 3\nnet.ipv4.ip_forward = 1\n"), "{text}");
        let text = write(&[Step::sysctl("net.ipv4.tcp_wmem", "1 2 9")]);
        assert!(text.ends_with("ip_forward = 1\nnet.ipv4.tcp_wmem = 1 2 9\n"), "{text}");
        assert_eq!(text.matches(HEAD).count(), 1);
        assert_eq!(fs::read_dir(etc.path().join("sysctl.d")).unwrap().count(), 1, "nothing stays behind");
    }

    #[test]
    fn modules_are_named_once() {
        let mut file = PersistentFile::modules(Path::new("/nonexistent"));
        file.add(&Step::Module("tcp_bbr".into()));
        file.add(&Step::sysctl("a.b", 1));
        assert_eq!(file.merged("# mine\ntcp_bbr\nother\n"), "# mine\nother\ntcp_bbr\n");
    }

    #[test]
    fn an_operators_comments_are_no_keys() {
        assert_eq!(key_of("# net.x = 1"), None);
        assert_eq!(key_of(""), None);
        assert_eq!(key_of("-net.x=1"), Some("net.x"));
    }
}
