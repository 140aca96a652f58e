//! The file of the access log: whole lines, appended; rotated by renaming.
//!
//! It is opened with `O_APPEND`, and a batch of lines is one write(2), so that two processes may write to it
//! at a time, as they do for a moment in an upgrade. What of a batch did not fit is cut off at the end of its
//! last whole line.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bentpipe_kernel::privileges::Account;
use rustix::fs::{Access, Gid, OFlags, Uid};

/// Its owner writes, its group reads.
const MODE: u32 = 0o640;
/// How soon to try again to open the file, and to rotate it.
const OPEN_AGAIN: Duration = Duration::from_secs(1);
const ROTATE_AGAIN: Duration = Duration::from_secs(60);

/// The file, and those into which it has been rotated: `NAME.1`, the newest, up to `NAME.keep`.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    /// Bytes; a file that would become longer is rotated.
    max_size: u64,
    keep: u32,
    file: Option<File>,
    /// The file ends within a line.
    is_torn: bool,
    next_opening: Option<Instant>,
    next_rotation: Option<Instant>,
}

/// Lines that could not be written.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) lines: u64,
    pub(crate) error: io::Error,
}

impl LogFile {
    /// The file at `path`, which is not opened yet.
    pub(crate) fn new(path: PathBuf, max_size: u64, keep: u32) -> Self {
        Self { path, max_size, keep, file: None, is_torn: false, next_opening: None, next_rotation: None }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A part of the file, bytes, that is small enough to be written at once without making it too long.
    pub(crate) fn small_part(&self) -> usize {
        usize::try_from(self.max_size / 8).unwrap_or(usize::MAX)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.file.is_some()
    }

    pub(crate) fn set_limits(&mut self, max_size: u64, keep: u32) {
        (self.max_size, self.keep, self.next_rotation) = (max_size, keep, None);
    }

    /// Opens the file, or opens it again if another program has renamed it. On failure the one that was open
    /// stays open.
    ///
    /// It follows no symbolic link, waits for no FIFO, and takes no file that has another name elsewhere.
    pub(crate) fn open(&mut self) -> io::Result<()> {
        self.next_opening = Some(Instant::now() + OPEN_AGAIN);
        self.file = Some(open(&self.path)?);
        self.is_torn = false;
        Ok(())
    }

    /// Gives the file to the account that the daemon goes on as, so that it can open it again.
    pub(crate) fn give_to(&self, account: Account) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let (uid, gid) = (Uid::from_raw(account.uid()), Gid::from_raw(account.gid()));
        Ok(rustix::fs::fchown(file, Some(uid), Some(gid))?)
    }

    /// Whether this process may rename files in the folder, without which it cannot rotate.
    pub(crate) fn check_rotation(&self) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        Ok(rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
    }

    /// Appends whole lines. Before that it rotates the file if they would make it too long; the error of that
    /// goes to `on_rotation`, and then the file grows.
    pub(crate) fn append(
        &mut self,
        lines: &[u8],
        mut on_rotation: impl FnMut(io::Result<()>),
    ) -> Result<(), Lost> {
        let lose_all = |error| Lost { lines: count(lines), error };
        let size = self.ready().map_err(lose_all)?;
        let is_too_long = size > 0 && size + lines.len() as u64 > self.max_size;
        if is_too_long && self.next_rotation.is_none_or(|at| at <= Instant::now()) {
            let outcome = self.rotate();
            self.next_rotation = outcome.is_err().then(|| Instant::now() + ROTATE_AGAIN);
            on_rotation(outcome);
        }
        let Some(file) = &self.file else { return Err(lose_all(ErrorKind::NotFound.into())) };
        // Whoever reads the lines finds one that is torn, not two.
        let ended = if self.is_torn { [b"\n", lines].concat() } else { lines.to_vec() };
        let written = write_once(file, &ended).map_err(lose_all)?;
        if written == ended.len() {
            self.is_torn = false;
            return Ok(());
        }
        let whole = ended[..written].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        self.is_torn = !cut(file, (written - whole) as u64);
        Err(Lost { lines: count(&ended[whole..]), error: ErrorKind::StorageFull.into() })
    }

    /// Sees that a file is open that still has a name; its length.
    fn ready(&mut self) -> io::Result<u64> {
        if let Some(file) = &self.file {
            let metadata = file.metadata()?;
            if metadata.nlink() > 0 {
                return Ok(metadata.len());
            }
            self.file = None;
        } else if self.next_opening.is_some_and(|at| at > Instant::now()) {
            return Err(ErrorKind::NotFound.into());
        }
        self.open()?;
        self.file.as_ref().map_or(Ok(0), |file| Ok(file.metadata()?.len()))
    }

    /// Renames the file and those before it, and opens a new one.
    fn rotate(&mut self) -> io::Result<()> {
        // Another process has rotated it: the predecessor in an upgrade, or logrotate.
        if !self.is_current() {
            return self.open();
        }
        for number in (1..self.keep).rev() {
            match fs::rename(self.numbered(number), self.numbered(number + 1)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, self.numbered(1))?;
        self.open()
    }

    /// Whether the file that is open is the one at the path.
    fn is_current(&self) -> bool {
        let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let open = self.file.as_ref().and_then(|file| file.metadata().ok()).map(id);
        open.is_some() && fs::symlink_metadata(&self.path).ok().map(id) == open
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

/// Opens the file for appending, or makes it. Root may open it in a folder in which others can write, so
/// it follows no symbolic link, waits for no FIFO, and takes no file that has another name elsewhere.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let mut options = OpenOptions::new();
    options.append(true).mode(MODE).custom_flags(flags.cast_signed());
    let file = match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => options.open(path)?,
        Err(error) => return Err(error),
        Ok(file) => {
            // Whatever the umask is.
            file.set_permissions(Permissions::from_mode(MODE))?;
            file
        }
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.nlink() > 1 {
        let text = "it is not a regular file with one name";
        return Err(io::Error::new(ErrorKind::InvalidInput, text));
    }
    Ok(file)
}

fn write_once(mut file: &File, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match file.write(bytes) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// Cuts bytes off that were just written to the end of the file; false if that cannot be done, because
/// another process has written behind them.
fn cut(mut file: &File, bytes: u64) -> bool {
    if bytes == 0 {
        return true;
    }
    let end = file.stream_position().ok();
    let is_last = file.metadata().is_ok_and(|metadata| Some(metadata.len()) == end);
    is_last && end.and_then(|end| end.checked_sub(bytes)).is_some_and(|end| file.set_len(end).is_ok())
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|&&byte| byte == b'\n').count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(log: &mut LogFile, text: &str) -> Result<(), Lost> {
        log.append(text.as_bytes(), |outcome| outcome.unwrap())
    }

    fn log(folder: &tempfile::TempDir, max_size: u64, keep: u32) -> LogFile {
        LogFile::new(folder.path().join("access.log"), max_size, keep)
    }

    fn texts(folder: &tempfile::TempDir) -> Vec<(String, String)> {
        let mut files: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap())
            })
            .collect();
        files.sort();
        files
    }

    #[test]
    fn a_file_is_for_its_owner_and_its_group() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(&folder, 1000, 1);
        append(&mut log, "a\n").unwrap();
        assert_eq!(fs::metadata(log.path()).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_file_that_would_become_too_long_is_rotated_and_the_oldest_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(&folder, 6, 2);
        for line in ["one\n", "two\n", "three\n", "4\n", "five\n", "too long a line\n"] {
            append(&mut log, line).unwrap();
        }
        let expected =
            [("access.log", "too long a line\n"), ("access.log.1", "five\n"), ("access.log.2", "4\n")];
        assert_eq!(texts(&folder), expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
    }

    #[test]
    fn a_file_that_has_been_renamed_is_written_until_it_is_opened_again_and_one_that_is_gone_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log(&folder, 1000, 1);
        append(&mut log, "one\n").unwrap();
        let renamed = folder.path().join("renamed");
        fs::rename(log.path(), &renamed).unwrap();
        append(&mut log, "two\n").unwrap();
        log.open().unwrap();
        append(&mut log, "three\n").unwrap();
        assert_eq!(fs::read_to_string(renamed).unwrap(), "one\ntwo\n");
        fs::remove_file(log.path()).unwrap();
        append(&mut log, "four\n").unwrap();
        assert_eq!(fs::read_to_string(log.path()).unwrap(), "four\n");
    }

    #[test]
    fn two_processes_append_whole_lines_and_only_one_of_them_rotates() {
        let folder = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (log(&folder, 10, 3), log(&folder, 10, 3));
        append(&mut one, "one\n").unwrap();
        append(&mut other, "other\n").unwrap();
        append(&mut one, "next\n").unwrap();
        append(&mut other, "rest\n").unwrap();
        // The other one finds its file too long, and opens the one that is at the path now.
        let expected = [("access.log", "next\nrest\n"), ("access.log.1", "one\nother\n")];
        assert_eq!(texts(&folder), expected.map(|(name, text)| (name.to_owned(), text.to_owned())));
    }

    #[test]
    fn a_missing_folder_loses_lines_until_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("later/access.log");
        let mut log = LogFile::new(path.clone(), 1000, 1);
        let lost = append(&mut log, "one\ntwo\n").unwrap_err();
        assert_eq!((lost.lines, lost.error.kind()), (2, ErrorKind::NotFound));
        fs::create_dir(path.parent().unwrap()).unwrap();
        log.next_opening = None;
        append(&mut log, "three\n").unwrap();
        assert_eq!(fs::read_to_string(path).unwrap(), "three\n");
    }

    #[test]
    fn what_is_no_file_of_its_own_is_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("target"), "precious").unwrap();
        std::os::unix::fs::symlink(path("target"), path("link")).unwrap();
        fs::hard_link(path("target"), path("hard")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path("fifo"), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .unwrap();
        for name in ["link", "hard", "folder", "fifo"] {
            let mut log = LogFile::new(path(name), 1000, 1);
            assert!(append(&mut log, "x\n").is_err(), "{name}");
        }
        assert_eq!(fs::read_to_string(path("target")).unwrap(), "precious");
    }
}
