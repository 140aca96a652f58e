//! The daemon: checks, listeners, workers, and the rules last; all of it undone in the opposite order.

use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use crate::config::{Config, RelayKind};
use crate::error::Error;
use crate::host;
use crate::intercept::{Family, Interception, Names};
use crate::listener;
use crate::path::{self, Legs, Path};
use crate::stats::{Counters, Stats};
use crate::worker::{Listener, Shared, Worker};

/// A running splitter. It works until it is stopped or dropped.
#[derive(Debug)]
pub struct Daemon {
    /// Dropped before the workers stop, so that no connection is taken that nobody serves.
    interception: Option<Interception>,
    shared: Arc<Shared>,
    workers: Vec<Handle>,
    /// The name that keeps a second daemon out; the kernel frees it with the process.
    _only_one: UnixListener,
}

/// A worker as its daemon sees it.
#[derive(Debug)]
struct Handle {
    thread: Option<JoinHandle<()>>,
    wake: OwnedFd,
    counters: Arc<Counters>,
}

impl Daemon {
    /// Starts to split the connections that cross the configured legs, in the calling thread's network namespace. When
    /// it returns, every new connection is split. On failure whatever it did is undone.
    pub fn start(config: &Config) -> Result<Self, Error> {
        Self::start_as(config, Names::default())
    }

    /// [`Daemon::start`] with names of its own for the rules and routes.
    pub fn start_as(config: &Config, names: Names) -> Result<Self, Error> {
        host::check_interfaces(config)?;
        listener::check_privileges()?;
        let only_one = claim(&names)?;
        let paths = path::paths(config.legs.len(), config.proxy.port.get());
        let families = listener::families();
        check_ports(&paths, &families)?;
        for warning in host::warnings(config) {
            tracing::warn!("{warning}");
        }
        let shared = Arc::new(Shared { legs: Legs::prepare(config), stop: AtomicBool::new(false) });
        let mut daemon = Self { interception: None, shared, workers: Vec::new(), _only_one: only_one };
        for index in 0..config.proxy.workers.get() {
            let listeners = open_listeners(&paths, &families, &daemon.shared.legs)?;
            daemon.workers.push(Handle::spawn(index, listeners, config.proxy.relay, &daemon.shared)?);
        }
        let interfaces = path::interfaces(config);
        daemon.interception = Some(Interception::install(names, &interfaces, &paths, families)?);
        tracing::info!(workers = daemon.workers.len(), relay = ?config.proxy.relay, "splitting connections");
        Ok(daemon)
    }

    /// What the daemon has done so far.
    pub fn stats(&self) -> Stats {
        Stats::sum(self.workers.iter().map(|worker| &*worker.counters))
    }

    /// Removes the rules, then the listeners; flows that are still open are reset at both ends.
    pub fn stop(self) -> Stats {
        self.stats()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.interception.take());
        self.shared.stop.store(true, Ordering::Release);
        for worker in &mut self.workers {
            worker.join();
        }
    }
}

impl Handle {
    fn spawn(
        index: usize,
        listeners: Vec<Listener>,
        relay: RelayKind,
        shared: &Arc<Shared>,
    ) -> Result<Self, Error> {
        let action = || format!("start worker {index}");
        let counters = Arc::new(Counters::default());
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(Error::system(action()))?;
        let worker = Worker::new(listeners, relay, shared.clone(), counters.clone(), &wake)
            .map_err(Error::system(action()))?;
        let thread = std::thread::Builder::new()
            .name(format!("bentpipe-{index}"))
            .spawn(move || {
                if let Err(error) = worker.run() {
                    tracing::error!(%error, "worker {index} failed: its flows are reset");
                }
            })
            .map_err(Error::system(action()))?;
        Ok(Self { thread: Some(thread), wake, counters })
    }

    fn join(&mut self) {
        if let Err(error) = rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes()) {
            tracing::error!(%error, "cannot wake a worker to stop it");
        }
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a worker had panicked");
        }
    }
}

/// Keeps a second daemon, whose start would clear our rules as a dead run's, out of this network namespace: abstract
/// socket names belong to a namespace and to a living process (unix(7)).
fn claim(names: &Names) -> Result<UnixListener, Error> {
    let action = "claim this network namespace";
    let name = UnixAddress::from_abstract_name(format!("bentpipe/{}", names.table));
    let name = name.map_err(Error::system(action))?;
    UnixListener::bind_addr(&name).map_err(|source| match source.kind() {
        std::io::ErrorKind::AddrInUse => Error::AlreadyRunning { table: names.table.clone() },
        _ => Error::system(action)(source),
    })
}

fn check_ports(paths: &[Path], families: &[Family]) -> Result<(), Error> {
    for path in paths {
        for &family in families {
            listener::check_free(listener::address(family, path.port))?;
        }
    }
    Ok(())
}

fn open_listeners(paths: &[Path], families: &[Family], legs: &Legs) -> Result<Vec<Listener>, Error> {
    let each = paths.iter().flat_map(|path| families.iter().map(move |&family| (*path, family)));
    each.map(|(path, family)| {
        let address = listener::address(family, path.port);
        Ok(Listener { socket: listener::open(address, legs.get(path.client))?, path })
    })
    .collect()
}
