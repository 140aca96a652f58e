//! Names of clients and servers, by reverse lookup, for those who ask.
//!
//! Nothing here happens unless somebody asks for it: a lookup tells the operator's resolver, and whoever runs
//! the zone, which addresses are looked at. It may also take long, so that each has a thread of its own, few
//! run at a time, and whoever asks waits for a moment only; what is found later is there for the next
//! question.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bentpipe_kernel::reverse_lookup::reverse_lookup;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// The most lookups at a time. Each may hold its thread for as long as the resolver waits.
pub(crate) const MOST_LOOKUPS: usize = 4;
/// How long a question waits for its answers.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a name is remembered, and that there is none.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// The most that is remembered: 100 bytes each.
const MOST_REMEMBERED: usize = 10_000;

/// What was looked up lately.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    known: Arc<Mutex<HashMap<IpAddr, Known>>>,
    turns: Arc<Semaphore>,
    look_up: fn(IpAddr) -> Option<String>,
}

#[derive(Debug, Clone)]
struct Known {
    /// `None` while the lookup goes on.
    name: Option<Option<String>>,
    since: Instant,
}

impl Default for Names {
    fn default() -> Self {
        Self::by(reverse_lookup)
    }
}

impl Names {
    fn by(look_up: fn(IpAddr) -> Option<String>) -> Self {
        Self { known: Arc::default(), turns: Arc::new(Semaphore::new(MOST_LOOKUPS)), look_up }
    }

    /// The names of these addresses, as far as they are known within a moment: `Some(None)` is an address
    /// without a name.
    pub(crate) async fn of(&self, addresses: &[IpAddr]) -> BTreeMap<IpAddr, Option<Option<String>>> {
        let lookups: Vec<_> = addresses.iter().filter(|address| self.begin(**address)).copied().collect();
        let tasks: Vec<_> =
            lookups.into_iter().map(|address| tokio::spawn(self.clone().look(address))).collect();
        let _ = tokio::time::timeout(PATIENCE, async {
            for task in tasks {
                let _ = task.await;
            }
        })
        .await;
        let known = self.known();
        let name = |address: &IpAddr| known.get(address).and_then(|known| known.name.clone());
        addresses.iter().map(|address| (*address, name(address))).collect()
    }

    /// Whether the address is to be looked up now.
    fn begin(&self, address: IpAddr) -> bool {
        let mut known = self.known();
        known.retain(|_, known| known.name.is_none() || known.since.elapsed() < REMEMBERED_FOR);
        if known.contains_key(&address) || known.len() >= MOST_REMEMBERED {
            return false;
        }
        known.insert(address, Known { name: None, since: Instant::now() });
        true
    }

    async fn look(self, address: IpAddr) {
        let permit = self.turns.clone().acquire_owned().await;
        let look_up = self.look_up;
        // The thread keeps the permit although nobody waits any more.
        let found = spawn_blocking(move || {
            let _permit = permit;
            look_up(address)
        });
        let name = Some(found.await.unwrap_or(None));
        self.known().insert(address, Known { name, since: Instant::now() });
    }

    fn known(&self) -> MutexGuard<'_, HashMap<IpAddr, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    #[tokio::test]
    async fn a_name_is_asked_for_once_and_remembered() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let names = Names::by(|address| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            (address == self::address(1)).then(|| "one.example".to_owned())
        });
        for _ in 0..2 {
            let found = names.of(&[address(1), address(2)]).await;
            assert_eq!(found[&address(1)], Some(Some("one.example".to_owned())));
            assert_eq!(found[&address(2)], Some(None), "it has none, and that is known");
        }
        assert_eq!(ASKED.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_resolver_that_does_not_answer_holds_nobody_up_and_few_threads() {
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        let names = Names::by(|_| {
            RUNNING.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_secs(4));
            RUNNING.fetch_sub(1, Ordering::SeqCst);
            Some("late.example".to_owned())
        });
        let all: Vec<IpAddr> = (0..20).map(address).collect();
        let began = Instant::now();
        let found = names.of(&all).await;
        assert!(found.values().all(Option::is_none) && began.elapsed() < PATIENCE + Duration::from_secs(1));
        assert!(RUNNING.load(Ordering::SeqCst) <= MOST_LOOKUPS);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let found = names.of(&all[..1]).await;
        assert_eq!(found[&address(0)], Some(Some("late.example".to_owned())), "it is there for the next one");
    }
}
