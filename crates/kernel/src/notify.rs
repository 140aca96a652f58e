//! Status messages to the service manager: the protocol of sd_notify(3), without libsystemd.
//!
//! A manager puts the address of a datagram socket into `NOTIFY_SOCKET`, and the service sends lines of
//! `KEY=value` there. No error here stops a daemon: where a message cannot be sent, one log line says so.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

const SOCKET: &str = "NOTIFY_SOCKET";
/// Microseconds, sd_watchdog_enabled(3).
const WATCHDOG: &str = "WATCHDOG_USEC";
/// The one process that they are meant for.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// The service manager, if there is one.
#[derive(Debug, Default)]
pub struct Notifier {
    manager: Option<Manager>,
    watchdog: Option<Duration>,
}

/// The data with which another process continues the same service. Its environment does not have them if the
/// manager did not start it, or if only the main process may send messages (`NotifyAccess=main`).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NotifierSnapshot {
    /// The address as in `NOTIFY_SOCKET`: a path, or a name in the abstract namespace behind an `@`.
    pub address: Vec<u8>,
    /// The manager's watchdog interval, microseconds.
    pub watchdog_us: Option<u64>,
}

#[derive(Debug)]
struct Manager {
    socket: UnixDatagram,
    name: OsString,
    address: SocketAddr,
    is_silent: AtomicBool,
}

impl Notifier {
    /// The manager that has started this process, from its environment: `NOTIFY_SOCKET`, `WATCHDOG_USEC` and
    /// `WATCHDOG_PID`, which are taken out of the environment, so that no program that is started from here
    /// sends messages in this service's name.
    ///
    /// Call it **while the process has one thread**: the environment belongs to all of them. With more, the
    /// variables stay.
    pub fn from_environment() -> Self {
        let number = |key: &str| env::var(key).ok().and_then(|text| text.parse::<u64>().ok());
        let is_for_us = number(WATCHDOG_PID).is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog_us = number(WATCHDOG).filter(|_| is_for_us);
        let address = env::var_os(SOCKET).unwrap_or_default().into_vec();
        let notifier = Self::of(&NotifierSnapshot { address, watchdog_us });
        forget_environment();
        notifier
    }

    /// The manager of a service that this process continues, by [`Self::snapshot`] of the process before.
    pub fn of(snapshot: &NotifierSnapshot) -> Self {
        let address = OsString::from_vec(snapshot.address.clone());
        let manager = (!address.is_empty()).then(|| Manager::at(address)).transpose();
        let manager = manager.unwrap_or_else(|error| {
            tracing::warn!("cannot send status messages to the service manager: {error}");
            None
        });
        let watchdog = snapshot.watchdog_us.filter(|us| *us > 0).map(Duration::from_micros);
        Self { watchdog: watchdog.filter(|_| manager.is_some()), manager }
    }

    /// The data for [`Self::of`] in the next process of this service; `None` without a manager.
    pub fn snapshot(&self) -> Option<NotifierSnapshot> {
        let address = self.manager.as_ref()?.name.as_bytes().to_vec();
        let watchdog_us = self.watchdog.map(|interval| interval.as_micros().try_into().unwrap_or(u64::MAX));
        Some(NotifierSnapshot { address, watchdog_us })
    }

    /// The service is started, or has read its configuration again: `READY=1`.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// It reads its configuration again, until [`Self::ready`]: `RELOADING=1`, with the time of the monotonic
    /// clock in microseconds, which tells this reload from an earlier one.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let microseconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={microseconds}"));
    }

    /// It is about to end: `STOPPING=1`.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// Another process is the service's main one from now on: `MAINPID=`. It must be a process of the
    /// service, and with `NotifyAccess=main` only the main process until now may send it.
    pub fn main_pid(&self, pid: u32) {
        self.tell(&format!("MAINPID={pid}"));
    }

    /// The line that `systemctl status` shows: `STATUS=`.
    pub fn status(&self, text: &str) {
        self.tell(&format!("STATUS={}", text.replace('\n', " ")));
    }

    /// A heartbeat: `WATCHDOG=1`.
    pub fn watchdog(&self) {
        self.tell("WATCHDOG=1");
    }

    /// The time after which the manager kills a silent service as hung; `None` if it does not. Send a
    /// heartbeat at least twice as often (sd_watchdog_enabled(3)).
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog
    }

    fn tell(&self, lines: &str) {
        let Some(manager) = &self.manager else { return };
        match manager.send(lines) {
            Ok(()) => manager.is_silent.store(false, Ordering::Relaxed),
            Err(error) if !manager.is_silent.swap(true, Ordering::Relaxed) => {
                let name = manager.name.display();
                tracing::warn!("cannot send a status message to the service manager at {name}: {error}");
            }
            Err(_) => {}
        }
    }
}

impl Manager {
    /// Not connected: the manager may recreate its socket.
    fn at(name: OsString) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name)?,
            [b'/', ..] => SocketAddr::from_pathname(&name)?,
            _ => return Err(not_supported(&name)),
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not stop the service.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, name, address, is_silent: AtomicBool::new(false) })
    }

    fn send(&self, lines: &str) -> io::Result<()> {
        self.socket.send_to_addr(lines.as_bytes(), &self.address).map(drop)
    }
}

fn not_supported(name: &std::ffi::OsStr) -> io::Error {
    let text = format!("{SOCKET}={} is neither a path nor an abstract name", name.display());
    io::Error::new(io::ErrorKind::Unsupported, text)
}

fn forget_environment() {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads != 1 {
        return;
    }
    for key in [SOCKET, WATCHDOG, WATCHDOG_PID] {
        // SAFETY: this process has one thread, so nobody reads the environment meanwhile (environ(7)).
        unsafe { env::remove_var(key) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(address: &[u8], watchdog_us: Option<u64>) -> NotifierSnapshot {
        NotifierSnapshot { address: address.to_vec(), watchdog_us }
    }

    /// A manager, and a notifier that speaks to it by its path.
    fn pair(folder: &tempfile::TempDir) -> (UnixDatagram, Notifier) {
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        (manager, Notifier::of(&snapshot(path.as_os_str().as_bytes(), None)))
    }

    fn heard(manager: &UnixDatagram) -> String {
        let mut buffer = [0; 1024];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    #[test]
    fn the_manager_hears_the_lines_of_the_protocol() {
        let folder = tempfile::tempdir().unwrap();
        let (manager, notifier) = pair(&folder);
        notifier.ready();
        assert_eq!(heard(&manager), "READY=1");
        notifier.main_pid(7);
        assert_eq!(heard(&manager), "MAINPID=7");
        notifier.status("two\nlines");
        assert_eq!(heard(&manager), "STATUS=two lines");
        notifier.watchdog();
        assert_eq!(heard(&manager), "WATCHDOG=1");
        notifier.stopping();
        assert_eq!(heard(&manager), "STOPPING=1");
    }

    #[test]
    fn a_reload_carries_the_time_of_the_monotonic_clock() {
        let folder = tempfile::tempdir().unwrap();
        let (manager, notifier) = pair(&folder);
        let mut last = 0;
        for _ in 0..2 {
            notifier.reloading();
            let text = heard(&manager);
            let microseconds = text.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            let now = clock_gettime(ClockId::Monotonic);
            let microseconds: i64 = microseconds.parse().unwrap();
            assert!(microseconds >= last && microseconds / 1_000_000 <= now.tv_sec, "{text}");
            last = microseconds;
        }
        assert!(last > 0);
    }

    #[test]
    fn an_abstract_address_is_reached_and_handed_on() {
        let name = format!("bentpipe-notify-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        manager.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let first = Notifier::of(&snapshot(format!("@{name}").as_bytes(), Some(3_000_000)));
        let second = Notifier::of(&first.snapshot().unwrap());
        assert_eq!(second.watchdog_interval(), Some(Duration::from_secs(3)));
        second.ready();
        assert_eq!(heard(&manager), "READY=1");
    }

    #[test]
    fn without_a_manager_nothing_is_said_and_nothing_fails() {
        for address in [&b""[..], b"relative", b"/nonexistent/notify", b"vsock:2:1", &[b'/'; 300]] {
            let notifier = Notifier::of(&snapshot(address, None));
            notifier.ready();
            notifier.reloading();
        }
        let nobody = Notifier::of(&snapshot(b"", Some(1_000_000)));
        assert_eq!((nobody.watchdog_interval(), nobody.snapshot()), (None, None));
        assert!(Notifier::default().snapshot().is_none());
    }

    #[test]
    fn a_service_manager_that_does_not_read_blocks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (manager, notifier) = pair(&folder);
        // More than any queue of datagrams takes.
        for _ in 0..10_000 {
            notifier.watchdog();
        }
        let manager_of = notifier.manager.as_ref().unwrap();
        assert!(manager_of.is_silent.load(Ordering::Relaxed), "the queue is full");
        assert_eq!(heard(&manager), "WATCHDOG=1");
        notifier.watchdog();
        assert!(!manager_of.is_silent.load(Ordering::Relaxed), "there is room again");
    }
}
