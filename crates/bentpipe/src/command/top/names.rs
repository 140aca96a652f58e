//! Names in the place of addresses, looked up one after another by a thread that holds nobody up.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use bentpipe_admin::Status;
use bentpipe_kernel::reverse_lookup::reverse_lookup;

/// The names that are known, while somebody wants them.
#[derive(Debug, Default)]
pub(super) struct Names {
    wanted: bool,
    /// The thread's queue, from the first wish on.
    queue: Option<Sender<IpAddr>>,
    asked: HashSet<IpAddr>,
    known: Arc<Mutex<HashMap<IpAddr, String>>>,
}

impl Names {
    /// Shows names from now on, or addresses again.
    pub(super) fn toggle(&mut self) {
        self.wanted = !self.wanted;
    }

    /// Whether names are shown.
    pub(super) fn are_wanted(&self) -> bool {
        self.wanted
    }

    /// Puts the known names into the status's flows, and has the others looked up; nothing unless they are
    /// wanted.
    pub(super) fn put_into(&mut self, status: &mut Status) {
        if !self.wanted {
            return;
        }
        for flow in &mut status.flows {
            for end in [&mut flow.client, &mut flow.server] {
                if let Ok(address) = end.parse::<SocketAddr>() {
                    *end = self.name(address).unwrap_or_else(|| std::mem::take(end));
                }
            }
        }
    }

    fn name(&mut self, end: SocketAddr) -> Option<String> {
        if self.asked.insert(end.ip()) {
            let known = &self.known;
            let queue = self.queue.get_or_insert_with(|| start(Arc::clone(known), reverse_lookup));
            let _ = queue.send(end.ip());
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&end.ip()).map(|name| format!("{name}:{}", end.port()))
    }
}

/// A thread that looks addresses up until nobody sends any.
fn start(
    known: Arc<Mutex<HashMap<IpAddr, String>>>,
    look_up: impl Fn(IpAddr) -> Option<String> + Send + 'static,
) -> Sender<IpAddr> {
    let (queue, addresses) = mpsc::channel();
    thread::spawn(move || {
        for address in addresses {
            if let Some(name) = look_up(address) {
                known.lock().unwrap_or_else(PoisonError::into_inner).insert(address, name);
            }
        }
    });
    queue
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::status::tests::sample;
    use std::time::{Duration, Instant};

    #[test]
    fn names_are_looked_up_only_when_they_are_wanted_and_take_the_place_of_addresses() {
        let (asking, asked) = mpsc::channel();
        let mut names = Names::default();
        names.queue = Some(start(Arc::clone(&names.known), move |address| {
            asking.send(address).unwrap();
            (address == IpAddr::from([192, 0, 2, 1])).then(|| "web.example".to_owned())
        }));
        let mut status = sample();
        names.put_into(&mut status);
        assert_eq!(status.flows[0].server, "192.0.2.1:443");
        assert!(asked.recv_timeout(Duration::from_millis(200)).is_err(), "nobody has asked");
        names.toggle();
        let start = Instant::now();
        while status.flows[0].server != "web.example:443" {
            assert!(start.elapsed() < Duration::from_secs(20));
            status = sample();
            names.put_into(&mut status);
        }
        assert_eq!(status.flows[0].client, "10.0.0.1:40001", "it has no name");
        names.toggle();
        let mut status = sample();
        names.put_into(&mut status);
        assert_eq!(status.flows[0].server, "192.0.2.1:443");
        drop(names);
        assert_eq!(asked.iter().count(), 3, "each address is looked up once");
    }
}
