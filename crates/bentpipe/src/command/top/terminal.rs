//! A terminal that is drawn on, and left as it was found.

use std::io::{self, ErrorKind, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{
    LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};
use signal_hook::flag;

use super::write_all;

/// Enters an alternate screen without a cursor, and leaves it (xterm's control sequences, `smcup` and `civis`
/// of terminfo(5)).
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Moves the cursor home, clears the rest of a line, and clears below the last line.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
/// Where the terminal does not know its size.
const USUAL_SIZE: (usize, usize) = (80, 24);
/// The byte of Ctrl-C on a terminal that does not turn it into a signal.
const CTRL_C: u8 = 3;

/// A key, as far as it means something here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Sort,
    Names,
    Other,
}

/// Standard input and output, in a mode of their own until this is dropped, also by a panic.
pub(super) struct Terminal {
    before: Termios,
    ended: Arc<AtomicBool>,
}

impl Terminal {
    /// None where input or output is no terminal.
    pub(super) fn enter() -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Ok(None);
        }
        let ended = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            flag::register(signal, Arc::clone(&ended))?;
        }
        // It only has to interrupt the wait for a key: the size is asked for at each picture.
        flag::register(SIGWINCH, Arc::new(AtomicBool::new(false)))?;
        let before = tcgetattr(io::stdin())?;
        let mut mode = before.clone();
        // Keys come one by one and unseen, Ctrl-C and Ctrl-Z among them (termios(3)).
        mode.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        mode.special_codes[SpecialCodeIndex::VMIN] = 0;
        mode.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &mode)?;
        let terminal = Self { before, ended };
        write_all(ENTER)?;
        Ok(Some(terminal))
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => USUAL_SIZE,
        }
    }

    /// Replaces the screen's contents in one write, so that nothing flickers.
    pub(super) fn draw(&mut self, lines: &[String], width: usize) -> io::Result<()> {
        write_all(&screen(lines, width))
    }

    /// Waits for a key; none where the time is up or the window has changed its size.
    pub(super) fn key(&mut self, patience: Duration) -> io::Result<Option<Key>> {
        if self.ended.load(Ordering::Relaxed) {
            return Ok(Some(Key::Quit));
        }
        let stdin = io::stdin();
        let mut waiting = [PollFd::new(&stdin, PollFlags::IN)];
        let patience =
            Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        match poll(&mut waiting, Some(&patience)) {
            Ok(0) => Ok(None),
            Ok(_) => self.read(),
            Err(Errno::INTR) if self.ended.load(Ordering::Relaxed) => Ok(Some(Key::Quit)),
            Err(Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The last key that means something of those that have come. A terminal that has gone away ends it.
    fn read(&mut self) -> io::Result<Option<Key>> {
        let mut bytes = [0; 64];
        match rustix::io::read(io::stdin(), &mut bytes) {
            Ok(0) => Ok(Some(Key::Quit)),
            Ok(len) => Ok(Some(meaning(&bytes[..len]))),
            Err(error) if io::Error::from(error).kind() == ErrorKind::Interrupted => Ok(None),
            Err(Errno::IO) => Ok(Some(Key::Quit)),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that has gone needs no cleaning up.
        let _ = write_all(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

fn meaning(bytes: &[u8]) -> Key {
    // An arrow or a function key is several bytes behind an escape, letters among them.
    if bytes.first() == Some(&b'\x1b') {
        return Key::Other;
    }
    let keys = bytes.iter().map(|byte| match byte {
        b'q' | b'Q' | &CTRL_C => Key::Quit,
        b's' | b'S' => Key::Sort,
        b'n' | b'N' => Key::Names,
        _ => Key::Other,
    });
    keys.reduce(|chosen, key| if chosen == Key::Quit || key == Key::Other { chosen } else { key })
        .unwrap_or(Key::Other)
}

/// Cuts lines at the edge; each clears the rest of its line.
fn screen(lines: &[String], width: usize) -> String {
    let cut = |line: &String| line.chars().take(width).collect::<String>();
    let body = lines.iter().map(|line| cut(line) + CLEAR_LINE).collect::<Vec<_>>().join("\r\n");
    format!("{HOME}{body}{CLEAR_BELOW}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_covers_the_one_before_and_ends_at_the_edge() {
        let lines = ["abcdef".to_owned(), "x".to_owned()];
        assert_eq!(screen(&lines, 4), "\x1b[Habcd\x1b[K\r\nx\x1b[K\x1b[J");
    }

    #[test]
    fn letters_are_keys_and_arrows_are_not() {
        assert_eq!(meaning(b"q"), Key::Quit);
        assert_eq!(meaning(&[CTRL_C]), Key::Quit);
        assert_eq!(meaning(b"xs"), Key::Sort);
        assert_eq!(meaning(b"n"), Key::Names);
        assert_eq!(meaning(b"sq"), Key::Quit);
        assert_eq!(meaning(b"qs"), Key::Quit);
        assert_eq!(meaning(b"\x1b[S"), Key::Other);
    }
}
