//! Files that get their names only when they are complete and on the disk.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The suffix of incomplete files.
const PARTIAL: &str = ".bentpipe-part";

/// The hidden name that a bundle's file has until it is complete.
pub(super) fn partial(key: u64) -> PathBuf {
    format!(".{key}{PARTIAL}").into()
}

/// Writes a file under the first name and renames it to the second, replacing a file of that name.
pub(super) fn put(content: &mut impl Read, partial: &Path, path: &Path) -> io::Result<()> {
    // A leftover of an earlier attempt may be a link, so it is not opened.
    remove(partial)?;
    let mut file = File::create_new(partial)?;
    let written = io::copy(content, &mut file).and_then(|_| file.sync_all());
    let folder = path.parent().unwrap_or(Path::new("."));
    let named =
        written.and_then(|()| fs::rename(partial, path)).and_then(|()| File::open(folder)?.sync_all());
    named.inspect_err(|_| drop(fs::remove_file(partial)))
}

/// Removes the incomplete files that a killed process has left in a folder.
pub(super) fn remove_partials(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().ends_with(PARTIAL.as_bytes()) {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_complete_does_not_take_the_place_of_another_and_leaves_nothing() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("broken"))
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let (partial, path) = (folder.path().join(partial(7)), folder.path().join("a"));
        put(&mut &b"first"[..], &partial, &path).unwrap();
        fs::write(&partial, "left behind").unwrap();
        put(&mut (&b"second"[..]).chain(Broken), &partial, &path).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        fs::write(&partial, "left behind").unwrap();
        remove_partials(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
