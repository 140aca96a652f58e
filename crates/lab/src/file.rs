//! Files that are written as a whole or not at all.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::Builder;

use crate::Error;

/// Writes a file, and creates its folder if needed. On an error the file keeps its old contents: the text is
/// written to a temporary file next to it, which then replaces it (rename(2) is atomic).
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), Error> {
    replace(path, text)
        .map_err(|error| Error::Write { path: path.display().to_string(), message: explain(&error) })
}

/// Some file systems report a full disk only when the data reach it, hence the sync.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(ErrorKind::IsADirectory)?.display();
    let folder = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder)?;
    // Less the process's mask, as for any new file.
    let mode = fs::Permissions::from_mode(0o666);
    let prefix = format!(".{name}.");
    let mut file = Builder::new().prefix(&prefix).suffix(".partial").permissions(mode).tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// The error and a remedy.
fn explain(error: &io::Error) -> String {
    let advice = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space there or write to another disk",
        ErrorKind::PermissionDenied => "write to a folder that is yours, or make this one writable",
        ErrorKind::ReadOnlyFilesystem => "write to a folder on another file system",
        ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
            "a part of the path is a file where a folder must be: move it or write to another folder"
        }
        ErrorKind::IsADirectory => {
            "a folder has the name that the file must have: remove it or choose another"
        }
        _ => "write to another folder",
    };
    format!("{error}; {advice}")
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder of its own for a test, removed at the end.
    pub(crate) struct Folder(pub(crate) PathBuf);

    impl Folder {
        pub(crate) fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("bentpipe-lab-{}-{test}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        /// The names of all files in it, hidden ones too, sorted.
        pub(crate) fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_else_is_left() {
        let folder = Folder::new("replaced");
        let path = folder.0.join("new").join("a.csv");
        write_whole(&path, "longer text\n").unwrap();
        write_whole(&path, "text\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text\n");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_failed_write_suggests_a_remedy_and_keeps_the_old_file() {
        let folder = Folder::new("failed");
        let taken = folder.0.join("a.csv");
        fs::create_dir_all(taken.join("inside")).unwrap();
        let message = write_whole(&taken, "text").unwrap_err().to_string();
        assert!(message.contains("a.csv") && message.contains("remove it or choose another"), "{message}");
        assert_eq!(folder.names(), ["a.csv"]);
    }

    #[test]
    fn a_file_in_the_place_of_the_folder_is_named() {
        let folder = Folder::new("file");
        fs::write(folder.0.join("out"), "").unwrap();
        for path in ["out/a.csv", "out/deeper/a.csv"] {
            let message = write_whole(&folder.0.join(path), "text").unwrap_err().to_string();
            assert!(
                message.contains(path) && message.contains("is a file where a folder must be"),
                "{message}"
            );
        }
    }

    #[test]
    fn several_threads_may_write_the_same_file() {
        let folder = Folder::new("threads");
        let path = folder.0.join("a.csv");
        let texts = ["a".repeat(100_000), "b".repeat(100_000)];
        std::thread::scope(|scope| {
            for text in &texts {
                scope.spawn(|| (0..20).for_each(|_| write_whole(&path, text).unwrap()));
            }
        });
        assert!(texts.contains(&fs::read_to_string(&path).unwrap()));
        assert_eq!(folder.names(), ["a.csv"]);
    }
}
