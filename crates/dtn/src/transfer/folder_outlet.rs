//! Transfers become files of a folder.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use tokio::task::block_in_place;

use crate::node::{Node, NodeError};
use crate::store::{Key, Record};

use super::envelope::{Envelope, NoTransfer};
use super::folder_inlet;
use super::outlet::{Failure, Outlet};

/// See the module.
#[derive(Debug)]
pub(super) struct FolderOutlet {
    folder: PathBuf,
}

/// Whether files can be put into the folder.
pub(super) fn check(folder: &Path) -> Result<(), NodeError> {
    folder_inlet::check(folder)
}

impl FolderOutlet {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn write(&self, key: Key, payload: &mut impl Read) -> Result<(), Failure> {
        let (envelope, _) = Envelope::read(payload).map_err(|error| match error {
            NoTransfer::Read(_) => Failure::ForNow(error.to_string()),
            NoTransfer::NotAPut(_) => Failure::ForGood(error.to_string()),
        })?;
        let name = file_name(&envelope.target).map_err(Failure::ForGood)?;
        let path = self.folder.join(name);
        self.put(key, payload, &path).map_err(|error| Failure::ForNow(format!("{}: {error}", path.display())))
    }

    /// A file has its name only when it is complete and on the disk.
    fn put(&self, key: Key, payload: &mut impl Read, path: &Path) -> io::Result<()> {
        let folder = path.parent().unwrap_or(&self.folder);
        fs::create_dir_all(folder)?;
        let partial = self.folder.join(format!(".{}.part", key.0));
        let mut file = File::create(&partial)?;
        let written = io::copy(payload, &mut file).and_then(|_| file.sync_all());
        let named =
            written.and_then(|()| fs::rename(&partial, path)).and_then(|()| File::open(folder)?.sync_all());
        named.inspect_err(|_| drop(fs::remove_file(&partial)))
    }
}

impl Outlet for FolderOutlet {
    async fn deliver(&self, node: &Node, record: &Record) -> Result<(), Failure> {
        let mut payload = node.store().read(&record.payload);
        block_in_place(|| self.write(record.key, &mut payload))
    }
}

/// The path that a target names, within the folder.
fn file_name(target: &str) -> Result<PathBuf, String> {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let mut name = PathBuf::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let bytes =
            decode(part).ok_or_else(|| format!("{target:?} has a percent sign that stands for nothing"))?;
        // Neither out of the folder, nor what is hidden, nor what no file can be called.
        if bytes.starts_with(b".") || bytes.contains(&b'/') || bytes.contains(&0) {
            return Err(format!("{target:?} is no name that a file may have here"));
        }
        name.push(std::ffi::OsString::from_vec(bytes));
    }
    if name.as_os_str().is_empty() { Err(format!("{target:?} names no file")) } else { Ok(name) }
}

fn decode(part: &str) -> Option<Vec<u8>> {
    let mut bytes = part.bytes();
    let mut decoded = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            let text = std::str::from_utf8(&digits).ok().filter(|text| !text.starts_with('+'))?;
            decoded.push(u8::from_str_radix(text, 16).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_stay_within_the_folder() {
        assert_eq!(file_name("/a%20b/c.txt?x").unwrap(), Path::new("a b/c.txt"));
        assert_eq!(file_name("//a").unwrap(), Path::new("a"));
        for target in ["/", "/..", "/a/../b", "/%2e%2e/b", "/a%2fb", "/.hidden", "/a%00", "/%+1", "/%f"] {
            assert!(file_name(target).is_err(), "{target}");
        }
    }

    proptest! {
        #[test]
        fn no_target_leads_out_of_the_folder(target in "[/.%a-f0-9]{0,24}") {
            if let Ok(name) = file_name(&target) {
                prop_assert!(name.is_relative());
                prop_assert!(name.components().all(|part| matches!(part, std::path::Component::Normal(_))));
            }
        }
    }
}
