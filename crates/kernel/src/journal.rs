//! Entries with fields for the systemd journal: its native protocol, without libsystemd.
//!
//! An entry is a datagram of lines `NAME=value` to a socket at a fixed place; a value with a line feed is not
//! needed here, and not possible.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Where the journal listens.
const SOCKET: &str = "/run/systemd/journal/socket";
/// The priority "informational" of syslog(3).
const PRIORITY: u8 = 6;
/// How long a journal that does not read is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// A sender of entries. It connects for each, because the journal may be restarted.
#[derive(Debug)]
pub struct Journal {
    place: PathBuf,
    socket: Option<UnixDatagram>,
}

impl Default for Journal {
    /// The journal of this host.
    fn default() -> Self {
        Self::at(SOCKET)
    }
}

impl Journal {
    /// A journal whose socket is elsewhere.
    pub fn at(place: impl Into<PathBuf>) -> Self {
        Self { place: place.into(), socket: None }
    }

    /// Sends an entry with these fields, whose names have capital letters, digits and underscores
    /// (systemd.journal-fields(7)). `identifier` is what `journalctl -t` selects by.
    ///
    /// # Errors
    /// There is no journal, or it has not read for a second; and those of send(2).
    pub fn send(&mut self, identifier: &str, fields: &[(String, String)]) -> io::Result<()> {
        let mut entry = format!("SYSLOG_IDENTIFIER={identifier}\nPRIORITY={PRIORITY}\n");
        for (name, value) in fields {
            debug_assert!(!value.contains('\n') && !name.contains(['=', '\n']), "{name}={value}");
            entry.extend([name, "=", value, "\n"]);
        }
        let socket = match &self.socket {
            Some(socket) => socket,
            None => self.socket.insert(open()?),
        };
        // A send that has a limit of time is not restarted after a signal (signal(7)): the limit is then for all
        // attempts together, so that signals do not prolong it.
        let until = Instant::now() + PATIENCE;
        loop {
            match socket.send_to(entry.as_bytes(), &self.place) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    if Instant::now() >= until {
                        return Err(io::ErrorKind::WouldBlock.into());
                    }
                }
                sent => return sent.map(drop),
            }
        }
    }
}

fn open() -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(PATIENCE))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::thread::JoinHandleExt as _;

    fn field(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn an_entry_is_a_datagram_of_its_fields_also_after_the_journal_has_restarted() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("socket");
        let mut journal = Journal::at(&place);
        let fields = [field("MESSAGE", "hello world"), field("BENTPIPE_END", "closed")];
        assert_eq!(journal.send("test", &fields).unwrap_err().kind(), io::ErrorKind::NotFound);
        for _ in 0..2 {
            let _ = std::fs::remove_file(&place);
            let reader = UnixDatagram::bind(&place).unwrap();
            journal.send("test", &fields).unwrap();
            let mut buffer = [0; 1000];
            let length = reader.recv(&mut buffer).unwrap();
            assert_eq!(
                std::str::from_utf8(&buffer[..length]).unwrap(),
                "SYSLOG_IDENTIFIER=test\nPRIORITY=6\nMESSAGE=hello world\nBENTPIPE_END=closed\n"
            );
        }
    }

    #[test]
    fn a_journal_that_does_not_read_is_not_waited_for_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("socket");
        let _reader = UnixDatagram::bind(&place).unwrap();
        let mut journal = Journal::at(&place);
        let error = std::iter::repeat_with(|| journal.send("test", &[])).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_signal_does_not_end_an_entry() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("socket");
        let reader = UnixDatagram::bind(&place).unwrap();
        reader.set_nonblocking(true).unwrap();
        let mut journal = Journal::at(&place);
        // The journal's queue is filled, and its reader waits until the sender has been interrupted.
        let fill = UnixDatagram::unbound().unwrap();
        fill.set_nonblocking(true).unwrap();
        while fill.send_to(b"-", &place).is_ok() {}
        extern "C" fn nothing(_: libc::c_int) {}
        // SAFETY: a handler that does nothing is safe at any moment, and no other test uses this signal.
        unsafe { libc::signal(libc::SIGUSR2, nothing as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        let sender = std::thread::spawn(move || journal.send("test", &[]));
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(20));
            // SAFETY: the thread has not been joined, so that its handle is valid.
            unsafe { libc::pthread_kill(sender.as_pthread_t(), libc::SIGUSR2) };
        }
        while reader.recv(&mut [0; 1000]).is_ok() {}
        sender.join().unwrap().unwrap();
    }
}
