//! Transfers become files of a folder.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use bentpipe_http::decode_percent;
use tokio::task::block_in_place;

use crate::node::NodeError;

use super::egress::{Egress, Failure, Transfer};
use super::envelope::Envelope;
use super::{file, folder_ingress};

/// A folder that receives files.
#[derive(Debug)]
pub(super) struct FolderEgress {
    folder: PathBuf,
}

/// Checks that files can be written to the folder, and removes incomplete ones.
pub(super) fn check(folder: &Path) -> Result<(), NodeError> {
    folder_ingress::check(folder)?;
    file::remove_partials(folder)
        .map_err(NodeError::system(format!("remove incomplete files from {}", folder.display())))
}

impl FolderEgress {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    fn write(&self, mut transfer: Transfer) -> Result<(), Failure> {
        let name = file_name(&transfer.envelope.target).map_err(Failure::Permanent)?;
        let path = self.folder.join(&name);
        let partial = self.folder.join(file::partial(transfer.key));
        make_folders(&self.folder, &name)
            .and_then(|()| file::put(&mut transfer.body, &partial, &path))
            .map_err(|error| classify(&path, &error))
    }
}

impl Egress for FolderEgress {
    fn target(&self, envelope: &Envelope) -> Result<String, Failure> {
        let name = file_name(&envelope.target).map_err(Failure::Permanent)?;
        Ok(name.to_string_lossy().into_owned())
    }

    async fn deliver(&self, transfer: Transfer) -> Result<(), Failure> {
        block_in_place(|| self.write(transfer))
    }
}

/// Makes the parent folders of a file. Links are not followed: they may lead out of the folder.
fn make_folders(folder: &Path, name: &Path) -> io::Result<()> {
    let mut path = folder.to_owned();
    for part in name.parent().into_iter().flat_map(Path::components) {
        path.push(part);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => {
                let text = format!("{} exists and is not a folder", path.display());
                return Err(io::Error::new(io::ErrorKind::NotADirectory, text));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir(&path)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Only invalid names are permanent errors: space may be freed, obstacles may be removed.
fn classify(path: &Path, error: &io::Error) -> Failure {
    let text = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::InvalidFilename | io::ErrorKind::InvalidInput => Failure::Permanent(text),
        _ => Failure::Temporary(text),
    }
}

/// The path that a target names, within the folder.
fn file_name(target: &str) -> Result<PathBuf, String> {
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let mut name = PathBuf::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        let bytes =
            decode_percent(part).ok_or_else(|| format!("{target:?} has an invalid percent-encoding"))?;
        // Not out of the folder, not hidden, and not an invalid name.
        if bytes.starts_with(b".") || bytes.contains(&b'/') || bytes.contains(&0) {
            return Err(format!("{target:?} is not allowed as a file name"));
        }
        name.push(std::ffi::OsString::from_vec(bytes));
    }
    if name.as_os_str().is_empty() { Err(format!("{target:?} names no file")) } else { Ok(name) }
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
